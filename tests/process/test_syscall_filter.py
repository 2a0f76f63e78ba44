"""An agent and its children under the system-call filter of the systemd unit."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from loadline.core.vocabulary.events import AllocationFailed, AllocationSolved, AnyEvent, ForecastFitted
from loadline.core.vocabulary.forecasts import Forecast, PredictorName
from loadline.rig.rig import Rig
from tests.support import syscall_filter
from tests.support.children import contending, events_in, forecasting, write_past
from tests.waiting import SCENARIO_S, until_true

pytestmark = pytest.mark.process

UNIT: Final = Path(__file__).parents[2] / "deploy" / "systemd" / "loadline.service"
FILTERED: Final = (sys.executable, syscall_filter.__file__, str(UNIT))
PREDICTORS: Final[tuple[PredictorName, ...]] = ("arima", "kalman", "prophet", "seasonal")


def filtered(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*FILTERED, *command], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(autouse=True)
def _filter_can_be_installed() -> None:
    done = filtered(sys.executable, "-c", "")
    if done.returncode == syscall_filter.REFUSED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["os.nice(1)", "os.sched_setaffinity(0, {0})", "os.chown('/', -1, -1)"])
def test_the_filter_refuses_what_the_unit_refuses(call: str) -> None:
    done = filtered(sys.executable, "-c", f"import os; {call}")
    assert "PermissionError: [Errno 1]" in done.stderr


def test_children_forecast_and_solve_under_the_filter(rig: Rig) -> None:
    write_past(rig)
    models = contending() + forecasting(PREDICTORS, interval_ms=30_000)
    rig.agent(rig.config(models), runner=FILTERED).wait_ready()
    journal = rig.directory / "journal-agent"

    def requests() -> list[tuple[str, Forecast]]:
        """The forecasts of requests; those of lengths are flat."""
        fitted = [one for one in events_in(journal) if isinstance(one, ForecastFitted)]
        return [(one.model, one.forecasts[0]) for one in fitted if one.forecasts[0] is not None]

    def solved() -> list[AnyEvent]:
        return [one for one in events_in(journal) if isinstance(one, AllocationSolved | AllocationFailed)]

    def used() -> set[tuple[str, str]]:
        return {(model, found.predictor) for model, found in requests() if found.fallback != "late"}

    found = "a forecast of each model, and a solution"
    until_true(lambda: len(used()) == len(PREDICTORS) and solved(), found, deadline_s=SCENARIO_S)
    assert used() == {(name, name) for name in PREDICTORS}
    solution = solved()[0]
    assert isinstance(solution, AllocationSolved), solution
    assert sum(count for pools in solution.allocation.counts.values() for count in pools.values()) == 8
