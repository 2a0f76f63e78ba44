"""An agent and its children under the system-call filter of the systemd unit."""

import subprocess
import sys
from collections.abc import Iterator
from math import pi, sin
from pathlib import Path
from typing import Final

import msgspec
import pytest

from loadline.adapters.file_journal import read_segments
from loadline.core.vocabulary.events import AllocationFailed, AllocationSolved, AnyEvent, ForecastFitted
from loadline.core.vocabulary.forecasts import Forecast
from loadline.rig.rig import Rig
from tests.support import syscall_filter
from tests.waiting import until_true

pytestmark = pytest.mark.process

UNIT: Final = Path(__file__).parents[2] / "deploy" / "systemd" / "loadline.service"
FILTERED: Final = (sys.executable, syscall_filter.__file__, str(UNIT))
PREDICTORS: Final = ("arima", "kalman", "prophet", "seasonal")
FORECASTING: Final = """
[[models]]
name = "{0}"
planner = "throughput"
load_predictor_warmup_trace = "past.csv"
throughput.forecast.predictor = "{0}"
[[models.pools]]
name = "main"
role = "aggregated"
linear = {{ alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }}
"""
# Both models together want 16 of 8 GPUs.
CONTENDING: Final = """
[[models]]
name = "{0}"
planner = "static"
static.replicas = {{ main = 8 }}
[[models.pools]]
name = "main"
role = "aggregated"
replicas_max = 8
accelerator = "h100"
"""
MODELS: Final = "".join(
    [
        '[[accelerators]]\nname = "h100"\ntype = "h100"\n[allocation.capacity]\nh100 = 8\n',
        *(FORECASTING.format(name) for name in PREDICTORS),
        *(CONTENDING.format(name) for name in ("first", "second")),
    ]
)


class Turn(msgspec.Struct, tag="turn", tag_field="kind"):
    """Events of a turn in the journal."""

    events: list[AnyEvent]


def filtered(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*FILTERED, *command], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(autouse=True)
def _filter_can_be_installed() -> None:
    done = filtered(sys.executable, "-c", "")
    if done.returncode == syscall_filter.REFUSED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def received(rig: Rig) -> list[AnyEvent]:
    """All events in the journal of the agent, in order."""
    return [
        event
        for _, records in read_segments(rig.directory / "journal-agent")
        for line in records
        if line.startswith(b'{"kind":"turn"')
        for event in msgspec.json.decode(line, type=Turn).events
    ]


@pytest.mark.parametrize("call", ["os.nice(1)", "os.sched_setaffinity(0, {0})", "os.chown('/', -1, -1)"])
def test_the_filter_refuses_what_the_unit_refuses(call: str) -> None:
    done = filtered(sys.executable, "-c", f"import os; {call}")
    assert "PermissionError: [Errno 1]" in done.stderr


def test_children_forecast_and_solve_under_the_filter(rig: Rig) -> None:
    bins = "".join(f"{n * 600},{300 + 200 * sin(2 * pi * n / 144):.1f},500,100\n" for n in range(288))
    (rig.directory / "past.csv").write_text(f"t,num_req,mean_isl,mean_osl\n{bins}", "utf-8")
    agent = rig.agent(rig.config(MODELS), runner=FILTERED)
    agent.wait_ready()

    def fitted() -> dict[str, list[Forecast | None]]:
        return {one.model: one.forecasts for one in received(rig) if isinstance(one, ForecastFitted)}

    def solved() -> list[AnyEvent]:
        return [one for one in received(rig) if isinstance(one, AllocationSolved | AllocationFailed)]

    until_true(lambda: len(fitted()) == len(PREDICTORS) and solved(), "a forecast of each model, and a solution")
    requests = {name: forecasts[0] for name, forecasts in fitted().items()}
    used = {name: (found.predictor, found.fallback) for name, found in requests.items() if found is not None}
    assert used == {name: (name, "") for name in PREDICTORS}
    solution = solved()[0]
    assert isinstance(solution, AllocationSolved), solution
    assert sum(count for pools in solution.allocation.counts.values() for count in pools.values()) == 8
