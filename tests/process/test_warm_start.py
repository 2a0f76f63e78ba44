"""An agent that starts warm: the first thing that it forecasts is no guess from nothing."""

import subprocess
import sys
from collections.abc import Iterator
from math import pi, sin
from pathlib import Path

import msgspec
import pytest

from loadline.adapters.file_journal import read_segments
from loadline.core.vocabulary.events import AnyEvent, ForecastFitted
from loadline.rig.rig import Rig
from tests.waiting import until_true

pytestmark = pytest.mark.process

MODELS = """
[[models]]
name = "m"
planner = "throughput"
load_predictor_warmup_trace = "past.csv"
throughput.forecast.predictor = "seasonal"
[[models.pools]]
name = "main"
role = "aggregated"
linear = { alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }
"""


class Turn(msgspec.Struct, tag="turn", tag_field="kind"):
    """What of a journal's turn is looked at."""

    events: list[AnyEvent]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def fitted(directory: Path) -> list[ForecastFitted]:
    turns = [
        msgspec.json.decode(line, type=Turn)
        for _, records in read_segments(directory)
        for line in records
        if line.startswith(b'{"kind":"turn"')
    ]
    return [event for turn in turns for event in turn.events if isinstance(event, ForecastFitted)]


def test_the_first_forecast_knows_the_season_and_a_replay_needs_no_trace(rig: Rig) -> None:
    past = rig.directory / "past.csv"
    bins = [300.0 + 200.0 * sin(2 * pi * n / 144) for n in range(3 * 144)]
    past.write_text(
        "t,num_req,mean_isl,mean_osl\n" + "".join(f"{n * 600},{x:.1f},500,100\n" for n, x in enumerate(bins)), "utf-8"
    )
    agent = rig.agent(rig.config(MODELS))
    agent.wait_ready()
    journal = rig.directory / "journal-agent"
    until_true(lambda: bool(fitted(journal)))
    first = fitted(journal)[0].forecasts[0]
    assert first is not None
    assert (first.predictor, first.fallback) == ("seasonal", "")
    # The trace ends where the wave rises fastest: 87 requests in 3 min, and some more in the next.
    assert bins[-1] * 0.3 < first.mean[0] < first.mean[-1] < 110.0
    assert agent.stop() == 0
    past.unlink()
    command = [sys.executable, "-m", "loadline", "replay", str(journal)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
