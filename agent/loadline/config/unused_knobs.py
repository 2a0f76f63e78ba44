"""Warnings of knobs without effect: those that the planner does not read, and seasons longer than the history."""

from collections.abc import Iterator
from math import ceil
from typing import Final

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.planning.demand.intervals import KEPT
from loadline.core.planning.planners import BY_OBJECTIVE, BY_TRAFFIC, PLANNERS
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.forecasts import ForecastKnobs

_PARTS: Final = {"sla": ("throughput", "load"), "hybrid": ("queueing", "saturation")}
"""Planners that combine two others."""


def unused_knob_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Warn of knobs that the planner of a model ignores or cannot use, a sentence each."""
    for name in sorted(PLANNERS):
        knobs = getattr(model, name)
        if name != model.planner and knobs != type(knobs)():
            yield f"{place}.{name}: the {model.planner} planner ignores it. {_remedy(model, name)}"
    for key, planners in BY_OBJECTIVE.items():
        if model.planner not in planners and getattr(model.objectives, key) != getattr(ObjectiveKnobs(), key):
            yield (
                f"{place}.objectives.{key}: the {model.planner} planner ignores it. Remove it, or set "
                f"planner to one of {', '.join(sorted(planners))}."
            )
    if model.planner in BY_TRAFFIC:
        yield from _season_warnings(model, place)


def _remedy(model: ModelKnobs, name: str) -> str:
    """Name the section with the same knobs that the planner reads, if there is one."""
    if name in _PARTS.get(model.planner, ()):
        return f"Write [models.{model.planner}.{name}]."
    if model.planner in _PARTS.get(name, ()):
        return f'Write [models.{model.planner}], or set planner = "{name}".'
    return f'Remove it, or set planner = "{name}".'


def _season_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Warn of a season of which the history never holds two, as the predictor needs."""
    here, knobs = model.by_traffic
    season_ms, interval_ms = knobs.forecast.seasonal.season_s * 1_000, knobs.throughput_adjustment_interval_ms
    if _sees_seasons(knobs.forecast) and 2 * season_ms > KEPT * interval_ms:
        yield (
            f"{place}.{here}.forecast.seasonal.season_s: two seasons of {season_ms // 1_000} s are "
            f"{2 * season_ms // interval_ms} intervals of {interval_ms} ms, and only {KEPT} are kept, so no season is "
            f"seen. Set throughput_adjustment_interval_ms to {ceil(2 * season_ms / KEPT / 1_000) * 1_000} or more, or "
            f"season_s to {KEPT * interval_ms // 2_000} or less."
        )


def _sees_seasons(knobs: ForecastKnobs) -> bool:
    """Return whether the predictor uses a season."""
    return "seasonal" in (knobs.auto.candidates if knobs.predictor == "auto" else (knobs.predictor,))
