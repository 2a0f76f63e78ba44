"""What changes nothing: knobs and objectives that the planner does not obey, and seasons beyond what is remembered."""

from collections.abc import Iterator
from math import ceil
from typing import Final

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.planning.demand.intervals import KEPT
from loadline.core.planning.planners import BY_OBJECTIVE, BY_TRAFFIC, PLANNERS
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.forecasts import ForecastKnobs

_PARTS: Final = {"sla": ("throughput", "load"), "hybrid": ("queueing", "saturation")}
"""Planners that two others are the parts of."""


def unused_knob_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """What a model says, a sentence each, and its planner does not obey or cannot make use of."""
    for name in sorted(PLANNERS):
        knobs = getattr(model, name)
        if name != model.planner and knobs != type(knobs)():
            yield f"{place}.{name}: the {model.planner} planner does not obey it. {_remedy(model, name)}"
    for key, planners in BY_OBJECTIVE.items():
        if model.planner not in planners and getattr(model.objectives, key) != getattr(ObjectiveKnobs(), key):
            yield (
                f"{place}.objectives.{key}: the {model.planner} planner does not obey it. Take it out, or set "
                f"planner to one of {', '.join(sorted(planners))}."
            )
    if model.planner in BY_TRAFFIC:
        yield from _season_warnings(model, place)


def _remedy(model: ModelKnobs, name: str) -> str:
    """The section that is obeyed, where there is one of the same knobs."""
    if name in _PARTS.get(model.planner, ()):
        return f"Write [models.{model.planner}.{name}]."
    if model.planner in _PARTS.get(name, ()):
        return f'Write [models.{model.planner}], or set planner = "{name}".'
    return f'Take it out, or set planner = "{name}".'


def _season_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """A season is seen once two of it are known."""
    here, knobs = model.by_traffic
    season_ms, interval_ms = knobs.forecast.seasonal.season_s * 1_000, knobs.throughput_adjustment_interval_ms
    if _sees_seasons(knobs.forecast) and 2 * season_ms > KEPT * interval_ms:
        yield (
            f"{place}.{here}.forecast.seasonal.season_s: two seasons of {season_ms // 1_000} s are "
            f"{2 * season_ms // interval_ms} intervals of {interval_ms} ms, and {KEPT} are kept, so it is never seen. "
            f"Set throughput_adjustment_interval_ms to {ceil(2 * season_ms / KEPT / 1_000) * 1_000} or more, or "
            f"season_s to {KEPT * interval_ms // 2_000} or less."
        )


def _sees_seasons(knobs: ForecastKnobs) -> bool:
    return "seasonal" in (knobs.auto.candidates if knobs.predictor == "auto" else (knobs.predictor,))
