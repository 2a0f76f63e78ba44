"""Checks of ``TrafficKnobs``."""

from collections.abc import Iterator
from math import ceil

from loadline.core.planning.demand.intervals import INTERVALS_MAX
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.planner import Finding, KnobProblem, KnobWarning, ModelSettings
from loadline.core.vocabulary.forecasts import ForecastKnobs


def traffic_findings(knobs: TrafficKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
    """Yield windows longer than the recorded traffic, and seasons longer than half the history of a forecast."""
    window_ms = model.fleet.traffic_window_ms
    for key, needed_ms in (("surge_window_ms", knobs.surge_window_ms), ("busiest_ms", knobs.busiest_ms)):
        if window_ms < needed_ms:
            problem = f"{window_ms} ms is below {place}.{key} {needed_ms}, so that window is never complete"
            yield KnobProblem("fleet.traffic_window_ms", problem, f"Raise it, or lower {key}.")
    season_ms, interval_ms = knobs.forecast.seasonal.season_s * 1_000, knobs.throughput_adjustment_interval_ms
    if _predicts_seasons(knobs.forecast) and 2 * season_ms > INTERVALS_MAX * interval_ms:
        yield KnobWarning(
            f"{place}.forecast.seasonal.season_s",
            f"two seasons of {season_ms // 1_000} s are {2 * season_ms // interval_ms} intervals of {interval_ms} ms, "
            f"and only {INTERVALS_MAX} are kept, so no season is detected. Set throughput_adjustment_interval_ms to "
            f"{ceil(2 * season_ms / INTERVALS_MAX / 1_000) * 1_000} or more, or season_s to "
            f"{INTERVALS_MAX * interval_ms // 2_000} or less.",
        )


def _predicts_seasons(knobs: ForecastKnobs) -> bool:
    return "seasonal" in (knobs.auto.candidates if knobs.predictor == "auto" else (knobs.predictor,))
