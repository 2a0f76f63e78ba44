"""An agent whose child processes cannot start says so, and goes on without them."""

import os

import pytest

from loadline.core.vocabulary.events import AllocationFailed, ForecastFitted
from loadline.rig.rig import Rig
from tests.support.agents import loadline
from tests.support.children import contending, events_in, forecasting, write_past
from tests.waiting import until_true

pytestmark = pytest.mark.process

# Python imports it at its start, in the agent and in its children.
BREAKS_CHILDREN = """
import os, sys
if sys.orig_argv[1:3] == ["-P", "-m"] and sys.orig_argv[3].startswith("loadline.adapters."):
    os._exit(1)
"""


def test_children_that_cannot_start_are_one_alarm_each(rig: Rig) -> None:
    write_past(rig)
    (rig.directory / "sitecustomize.py").write_text(BREAKS_CHILDREN, "utf-8")
    path = os.pathsep.join(filter(None, [str(rig.directory), os.environ.get("PYTHONPATH")]))
    agent = rig.agent(
        rig.config(contending() + forecasting(["kalman", "seasonal"])), runner=("env", f"PYTHONPATH={path}")
    )
    agent.wait_ready()
    journal = rig.directory / "journal-agent"

    def fitted() -> list[ForecastFitted]:
        return [one for one in events_in(journal) if isinstance(one, ForecastFitted)]

    until_true(lambda: len(fitted()) == 2 and any(isinstance(one, AllocationFailed) for one in events_in(journal)))
    forecasts = [forecast for one in fitted() for forecast in one.forecasts]
    assert [forecast.fallback for forecast in forecasts if forecast is not None] == ["away"] * 6
    counted = 'loadline_alarms_total{kind="child_not_started"} 2.0'
    until_true(lambda: counted in agent.get("/metrics")[1])
    assert "loadline_forecasts_failed_total 2.0" in agent.get("/metrics")[1]
    assert "the forecasting process cannot start" in agent.log.read_text("utf-8")
    assert "the process of the exact solver cannot start" in agent.log.read_text("utf-8")
    assert '"alarm_child_not_started": 2' in loadline(rig, "status", "--json").stdout
