"""First forecast of an agent that is warmed up with a trace."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadline.core.vocabulary.events import ForecastFitted
from loadline.rig.rig import Rig
from tests.support.children import events_in, forecasting, write_past
from tests.waiting import until_true

pytestmark = pytest.mark.process


def fitted(journal: Path) -> list[ForecastFitted]:
    return [event for event in events_in(journal) if isinstance(event, ForecastFitted)]


def test_the_first_forecast_knows_the_season_and_a_replay_needs_no_trace(rig: Rig) -> None:
    bins = write_past(rig, days=3)
    agent = rig.agent(rig.config(forecasting(["seasonal"])))
    agent.wait_ready()
    journal = rig.directory / "journal-agent"
    until_true(lambda: bool(fitted(journal)))
    first = fitted(journal)[0].forecasts[0]
    assert first is not None
    assert (first.predictor, first.fallback) == ("seasonal", "")
    # The trace ends where the wave rises fastest: 87 requests in 3 min, and some more in the next.
    assert bins[-1] * 0.3 < first.mean[0] < first.mean[-1] < 110.0
    assert agent.stop() == 0
    (rig.directory / "past.csv").unlink()
    command = [sys.executable, "-m", "loadline", "replay", str(journal)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
