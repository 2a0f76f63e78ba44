"""Registry of planners: the built-in ones, one file each, and those of installed packages.

Packages provide planners by entry points, which ``config/plugins.py`` loads and registers.
"""

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from loadline.core.planning.planner import Planner
from loadline.core.planning.planners.auto import AutoPlanner
from loadline.core.planning.planners.baselines.apa import ApaPlanner
from loadline.core.planning.planners.baselines.hpa import HpaPlanner
from loadline.core.planning.planners.baselines.keda import KedaPlanner
from loadline.core.planning.planners.baselines.kpa import KpaPlanner
from loadline.core.planning.planners.hybrid import HybridPlanner
from loadline.core.planning.planners.load import LoadPlanner
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.planners.saturation import SaturationPlanner
from loadline.core.planning.planners.sla import SlaPlanner
from loadline.core.planning.planners.static import StaticPlanner
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.planning.planners.throughput import ThroughputPlanner
from loadline.core.planning.plugin_values import encode_plain

BUILT_IN: tuple[type[Planner], ...] = tuple(
    sorted(
        (one for one in globals().values() if isinstance(one, type) and issubclass(one, Planner) and one.name),
        key=lambda kind: kind.name,
    )
)
"""Planners of this package."""

PLANNERS: dict[str, type[Planner]] = {kind.name: kind for kind in BUILT_IN}
"""Planners by name, which is also the section of their knobs in the configuration of a model."""


def register(kind: type[Planner]) -> None:
    """Add a planner.

    Raises:
        ValueError: The class is not a valid planner, or its name is taken.
    """
    problem = _problem(kind)
    if problem:
        raise ValueError(problem)
    PLANNERS[kind.name] = kind


def _problem(kind: type) -> str:
    """Return the reason why a class is not a valid planner; empty if it is."""
    if not issubclass(kind, Planner):
        return f"{kind.__name__} is not a subclass of loadline.core.planning.planner.Planner"
    if not (kind.name.isidentifier() and kind.name.islower()):
        return f"its name {kind.name!r} must consist of lower-case letters, digits and _"
    if not kind.summary:
        return "its summary is empty"
    registered = PLANNERS.get(kind.name, kind)
    if registered is not kind:
        return f"the name {kind.name!r} is taken by {registered.__module__}"
    return _knobs_problem(kind) or _snapshot_problem(kind)


def _knobs_problem(kind: type[Planner]) -> str:
    """Return the reason why a configuration cannot hold the knobs of a planner; empty if it can."""
    knobs: object = kind.Knobs
    if not (isinstance(knobs, type) and issubclass(knobs, Struct)):
        return "its Knobs are not a msgspec Struct"
    required = [field.name for field in fields(knobs) if field.required]
    return f"its knob {required[0]!r} has no default" if required else ""


def _snapshot_problem(kind: type[Planner]) -> str:
    """Return the reason why no snapshot can restore a planner; empty if it can."""
    try:
        knobs = kind.Knobs()
        restored = msgspec.json.decode(encode_plain(kind(knobs)), type=kind)
    except Exception as error:  # noqa: BLE001 - the constructor of another package may raise anything
        return f"a snapshot cannot hold its fields: {error}"
    if fields(knobs) and type(restored.knobs) is not type(knobs):
        return f"its field knobs must be annotated as {type(knobs).__name__}, or a snapshot cannot restore it"
    return ""


__all__ = ["BUILT_IN", "PLANNERS", "Planner", "register"]
