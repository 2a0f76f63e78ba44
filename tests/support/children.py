"""Agents whose child processes forecast and solve, and what their journals say of it."""

from collections.abc import Iterable
from math import pi, sin
from pathlib import Path
from typing import Final

import msgspec

from loadline.adapters.file_journal import read_segments
from loadline.core.vocabulary.events import AnyEvent
from loadline.core.vocabulary.forecasts import PredictorName
from loadline.rig.rig import Rig

_FORECASTING: Final = """
[[models]]
name = "{0}"
planner = "throughput"
load_predictor_warmup_trace = "past.csv"
[models.throughput]
throughput_adjustment_interval_ms = {1}
forecast = {{ predictor = "{0}", arima.points = 48 }}
[[models.pools]]
name = "main"
role = "aggregated"
linear = {{ alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }}
"""
# Both models together want 16 of 8 GPUs.
_CONTENDING: Final = """
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
_LIMIT: Final = """
[[accelerators]]
name = "h100"
type = "h100"
[allocation]
solve_deadline_ms = 60_000
capacity = { h100 = 8 }
"""


class _Turn(msgspec.Struct, tag="turn", tag_field="kind"):
    """Events of a turn in the journal."""

    events: list[AnyEvent]


def write_past(rig: Rig, days: int = 2) -> list[float]:
    """Write the warm-up trace ``past.csv`` of a daily wave in bins of 600 s; return the requests of each bin."""
    bins = [300.0 + 200.0 * sin(2 * pi * n / 144) for n in range(days * 144)]
    lines = "".join(f"{n * 600},{requests:.1f},500,100\n" for n, requests in enumerate(bins))
    (rig.directory / "past.csv").write_text(f"t,num_req,mean_isl,mean_osl\n{lines}", "utf-8")
    return bins


def forecasting(predictors: Iterable[PredictorName], interval_ms: int = 180_000) -> str:
    """Return one model for each predictor, named after it, with the warm-up trace ``past.csv``."""
    return "".join(_FORECASTING.format(name, interval_ms) for name in predictors)


def contending() -> str:
    """Return two models that want more GPUs than there are, so that the exact solver divides them."""
    return _LIMIT + "".join(_CONTENDING.format(name) for name in ("first", "second"))


def events_in(journal: Path) -> list[AnyEvent]:
    """Return all events in a journal, in order."""
    return [
        event
        for _, records in read_segments(journal)
        for line in records
        if line.startswith(b'{"kind":"turn"')
        for event in msgspec.json.decode(line, type=_Turn).events
    ]
