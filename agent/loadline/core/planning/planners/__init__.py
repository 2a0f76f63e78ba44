"""The planners: a file each, and a line here.

Packages add theirs by an entry point, see ``config/plugins.py``; ``register`` is where those arrive.
"""

from msgspec import Struct
from msgspec.structs import fields

from loadline.core.planning.planner import Planner
from loadline.core.planning.planners.hpa import HpaPlanner
from loadline.core.planning.planners.hybrid import HybridPlanner
from loadline.core.planning.planners.kpa import KpaPlanner
from loadline.core.planning.planners.load import LoadPlanner
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.planners.saturation import SaturationPlanner
from loadline.core.planning.planners.sla import SlaPlanner
from loadline.core.planning.planners.static import StaticPlanner
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.planning.planners.throughput import ThroughputPlanner

BUILT_IN: tuple[type[Planner], ...] = tuple(
    kind for kind in tuple(globals().values()) if isinstance(kind, type) and issubclass(kind, Planner) and kind.name
)
"""The planners that are imported above."""

PLANNERS: dict[str, type[Planner]] = {kind.name: kind for kind in BUILT_IN}
"""Name -> planner. Its knobs are the section of that name in a model's configuration."""


def register(kind: type[Planner]) -> None:
    """Add a planner.

    Raises:
        ValueError: It does not describe itself as planners do, or its name is taken.
    """
    problem = _problem(kind)
    if problem:
        raise ValueError(problem)
    PLANNERS[kind.name] = kind


def _problem(kind: type) -> str:
    """Return the reason why something cannot be a planner; empty if it can."""
    if not issubclass(kind, Planner):
        return f"{kind.__name__} is no subclass of loadline's Planner"
    if not (kind.name.isidentifier() and kind.name.islower()):
        return f"the name {kind.name!r} is not lower-case letters, digits and _"
    if not kind.summary:
        return "it has no summary"
    knobs: object = kind.Knobs
    if not (isinstance(knobs, type) and issubclass(knobs, Struct)):
        return "its Knobs are no msgspec Struct"
    required = [field.name for field in fields(knobs) if field.required]
    if required:
        return f"its knob {required[0]!r} has no default"
    taken = PLANNERS.get(kind.name, kind)
    return "" if taken is kind else f"the name {kind.name!r} is taken by {taken.__module__}"


__all__ = ["BUILT_IN", "PLANNERS", "Planner", "register"]
