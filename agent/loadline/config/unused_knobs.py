"""Warnings about settings that the planner of a model ignores: knobs of other planners, and objectives."""

from collections.abc import Iterator

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import ModelKnobs


def unused_knob_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Yield a warning for each setting of a model that its planner ignores."""
    for name, kind in sorted(PLANNERS.items()):
        if name != model.planner and model.knobs_of(name) != kind.Knobs():
            yield f"{place}.{name}: the {model.planner} planner ignores it. {_remedy(model, name)}"
    needs = PLANNERS[model.planner].needs
    for key in ObjectiveKnobs.__struct_fields__:
        planners = sorted(name for name, kind in PLANNERS.items() if key in kind.needs.objectives)
        changed = getattr(model.effective_objectives, key) != getattr(ObjectiveKnobs(), key)
        if key not in needs.objectives and planners and changed:
            yield (
                f"{place}.objectives.{key}: the {model.planner} planner ignores it. Remove it, or set "
                f"planner to one of {', '.join(planners)}."
            )


def _remedy(model: ModelKnobs, name: str) -> str:
    """Return the remedy for the section of another planner, which may be one that a hybrid combines."""
    if name in _parts(model.planner):
        return f"Write [models.{model.planner}.{name}]."
    if model.planner in _parts(name):
        return f'Write [models.{model.planner}], or set planner = "{name}".'
    return f'Remove it, or set planner = "{name}".'


def _parts(planner: str) -> set[str]:
    return {part.name for part in PLANNERS[planner].composed_of}
