"""Who needs how many workers, what there is of what they take, and who gets how many.

A model is a want, its roles are parts, and the pools that can serve a part are its options. All of them together with
the limits of what is short are a problem; it is complete, so that whoever solves it, in the agent or in a child
process, needs nothing else.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Literal

from msgspec import Struct

from loadline.core.vocabulary.scalars import WORKERS_MAX, Role

SaturationPolicy = Literal["none", "priority_exhaustive", "priority_round_robin", "round_robin", "weighted"]
"""Who gets what is left of a supply when it cannot serve all: see docs/explanation/allocation.md."""


class PoolOption(Struct, frozen=True):
    """A pool that can serve of a part.

    Raises:
        ValueError: A number is none, or out of bounds.
    """

    pool: str
    serves: float
    """Of the part's demand, by one worker, in the unit of the demand; above 0."""
    cost: float
    """Of a worker, an hour, in any currency; 0 or more."""
    takes: dict[str, int] = {}
    """What one worker takes of limited supplies, such as GPUs: ``{"h100": 2, "team-a/h100": 2}``."""
    least: int = 0
    """Workers that the pool has whatever is short."""
    most: int = WORKERS_MAX
    current: int = 0
    """Workers that it has now: a change costs."""

    def __post_init__(self) -> None:
        """Refuse what cannot be reckoned with."""
        place = f"option {self.pool!r}"
        if not (isfinite(self.serves) and self.serves > 0.0):
            raise ValueError(f"{place}: serves is {self.serves}; leave out a pool that serves nothing")
        _refuse(place, {"cost": self.cost, "least": self.least, "current": self.current})
        _refuse(f"{place}: takes", self.takes)
        if not self.least <= self.most <= WORKERS_MAX:
            raise ValueError(f"{place}: most is {self.most}; it must be from least ({self.least}) to {WORKERS_MAX}")


class RoleRequest(Struct, frozen=True):
    """What is demanded of one role of a model, and the pools that can serve it.

    Raises:
        ValueError: The demand is none, negative or infinite, or a pool is named twice.
    """

    role: Role
    demand: float
    """In any unit, such as requests a second; 0: only the least counts are needed."""
    options: tuple[PoolOption, ...]

    def __post_init__(self) -> None:
        """Refuse what cannot be reckoned with."""
        _refuse(f"part {self.role!r}", {"demand": self.demand})
        _once(f"part {self.role!r}", (option.pool for option in self.options))


class ModelRequest(Struct, frozen=True):
    """A model: it is served if all of its parts are.

    Raises:
        ValueError: The priority is below 1, or a pool is named twice.
    """

    name: str
    priority: int
    """1 is served first."""
    parts: tuple[RoleRequest, ...]

    def __post_init__(self) -> None:
        """Refuse what cannot be reckoned with."""
        if self.priority < 1:
            raise ValueError(f"want {self.name!r}: priority is {self.priority}; 1 is the first")
        _once(f"want {self.name!r}", (option.pool for part in self.parts for option in part.options))


class AllocationProblem(Struct, frozen=True):
    """All models, and what there is for them.

    Raises:
        ValueError: A limit is negative, the switching cost is none or negative, or a model is named twice.
    """

    wants: tuple[ModelRequest, ...]
    limits: dict[str, int]
    """By supply; one that is not named is not limited."""
    policy: SaturationPolicy = "none"
    delayed_best_effort: bool = False
    """Whether models that cannot be served get leftovers only after those of all priorities were tried."""
    switching_cost_hours: float = 0.1
    """What a worker that starts or goes costs, in hours of it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be reckoned with."""
        _refuse("problem", {"switching_cost_hours": self.switching_cost_hours})
        _refuse("limits", self.limits)
        _once("problem", (want.name for want in self.wants))


class Allocation(Struct, frozen=True):
    """Who gets how many workers."""

    counts: dict[str, dict[str, int]]
    """By model and pool, all of them, in the order of names."""
    unserved: dict[str, float]
    """Share (0..1) of its demand that a model is not served, of its worst part; only where it is above 0."""


def _refuse(place: str, numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        if not (isfinite(number) and number >= 0):
            raise ValueError(f"{place}: {name} is {number}; a number from 0 is needed")


def _once(place: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{place}: {name!r} is named twice; give each its own name")
        seen.add(name)
