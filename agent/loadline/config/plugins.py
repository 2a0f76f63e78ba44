"""Planners of installed packages, loaded from entry points of the group ``loadline.planners``."""

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

from loadline.core.planning.planners import PLANNERS, register
from loadline.core.state.settings import ModelKnobs
from loadline.toml.checking import did_you_mean

GROUP: Final = "loadline.planners"
"""Group of the entry points; each has the name of its planner."""
_LAYER_KEYS: Final = {"pool"}
"""Keys that the layers of a model have in addition to its own."""


def discover() -> Mapping[str, str]:
    """Register the planners of installed packages; import them once for each ``sys.path``.

    Returns:
        Problems of planners that cannot be used, by name.
    """
    return _discover(tuple(sys.path))


def forget() -> None:
    """Clear the cache, so that the next discovery imports the packages again."""
    _discover.cache_clear()


def plugin_warnings() -> Iterator[str]:
    """Yield a warning for each planner of an installed package that cannot be used."""
    for name, problem in discover().items():
        yield f"planner {name}: {problem} Models that do not use it are not affected."


def unknown_planner(name: str) -> tuple[str, str]:
    """Return the problem and the remedy for a planner that is not registered."""
    problem = discover().get(name)
    if problem is not None:
        return f"{name!r} cannot be used: {problem}", "Repair or remove the package."
    close = did_you_mean(name, PLANNERS)
    known = "" if close.startswith("Known") else f" Known are: {', '.join(sorted(PLANNERS))}."
    return (
        f"{name!r} is not an installed planner",
        f"{close}{known} Packages add planners by entry points of the group {GROUP}.",
    )


@cache
def _discover(path: tuple[str, ...]) -> Mapping[str, str]:  # noqa: ARG001 - the key of the cache
    problems: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        problem = _register(point)
        if problem:
            package = point.dist.name if point.dist is not None else "an unnamed package"
            problems[point.name] = f"{point.value} of {package} cannot be loaded: {problem}."
    return MappingProxyType(problems)


def _register(point: EntryPoint) -> str:
    """Load and register a planner; return its problem, empty if there is none."""
    try:
        kind = point.load()
        if getattr(kind, "name", point.name) != point.name:
            return f"its name {kind.name!r} differs from the name of the entry point"
        if point.name in {*ModelKnobs.__struct_fields__, *_LAYER_KEYS}:
            return f"{point.name!r} is a key of [[models]]"
        register(kind)
    except Exception as error:  # noqa: BLE001 - an arbitrary failure of a package must not stop the agent
        return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
    return ""
