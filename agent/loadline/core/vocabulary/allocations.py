"""The allocation problem: the demand of every model, the pools that can serve it, and the limited supplies.

An ``AllocationProblem`` holds a ``ModelRequest`` for each model, which holds a ``RoleRequest`` for each role, which
lists a ``PoolOption`` for each pool that can serve the role. A problem is complete: a solver, in the agent or in a
child process, needs no other input.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Literal

from msgspec import Struct

from loadline.core.vocabulary.scalars import WORKERS_MAX, Role

SaturationPolicy = Literal["none", "priority_exhaustive", "priority_round_robin", "round_robin", "weighted"]
"""Division of a supply that is too small for all models; docs/explanation/allocation.md describes each value."""


class PoolOption(Struct, frozen=True):
    """A pool that can serve a role, with the capacity, cost and supplies of one worker.

    Raises:
        ValueError: A number is not finite or is out of bounds.
    """

    pool: str
    capacity: float
    """Demand that one worker serves, in the unit of ``RoleRequest.demand``; above 0."""
    cost_per_hour: float
    """Cost of one worker per hour, in any currency; at least 0."""
    supplies: dict[str, int] = {}
    """Units of each limited supply that one worker occupies: ``{"h100": 2, "team-a/h100": 2}``."""
    replicas_min: int = 0
    """Workers that the pool keeps even when supplies are short."""
    replicas_max: int = WORKERS_MAX
    current: int = 0
    """Current number of workers; a change from it costs ``AllocationProblem.switching_cost_hours``."""

    def __post_init__(self) -> None:
        place = f"option {self.pool!r}"
        if not (isfinite(self.capacity) and self.capacity > 0.0):
            raise ValueError(f"{place}: capacity is {self.capacity}; leave out a pool that serves nothing")
        _check_numbers(
            place,
            {"cost_per_hour": self.cost_per_hour, "replicas_min": self.replicas_min, "current": self.current},
        )
        _check_numbers(f"{place}: supplies", self.supplies)
        if not self.replicas_min <= self.replicas_max <= WORKERS_MAX:
            raise ValueError(
                f"{place}: replicas_max is {self.replicas_max}; it must be from replicas_min ({self.replicas_min}) to"
                f" {WORKERS_MAX}"
            )


class RoleRequest(Struct, frozen=True):
    """Demand of one role of a model and the pools that can serve it.

    Raises:
        ValueError: The demand is negative or not finite, or two options name the same pool.
    """

    role: Role
    demand: float
    """Demand in any unit, such as requests per second; 0 requests only the minimum replicas."""
    options: tuple[PoolOption, ...]

    def __post_init__(self) -> None:
        _check_numbers(f"role {self.role!r}", {"demand": self.demand})
        _check_unique(f"role {self.role!r}", (option.pool for option in self.options))


class ModelRequest(Struct, frozen=True):
    """Request of one model; it is served only if all of its roles are.

    Raises:
        ValueError: The priority is below 1, or two roles name the same pool.
    """

    name: str
    priority: int
    """Rank among the models; 1 is served first."""
    roles: tuple[RoleRequest, ...]

    def __post_init__(self) -> None:
        if self.priority < 1:
            raise ValueError(f"model {self.name!r}: priority is {self.priority}; 1 is the first")
        _check_unique(f"model {self.name!r}", (option.pool for role in self.roles for option in role.options))


class AllocationProblem(Struct, frozen=True):
    """Requests of all models and the supplies that they share.

    Raises:
        ValueError: A limit is negative, the switching cost is negative or not finite, or two models have the same name.
    """

    models: tuple[ModelRequest, ...]
    limits: dict[str, int]
    """Available units by supply; a supply that is not listed is unlimited."""
    policy: SaturationPolicy = "none"
    delayed_best_effort: bool = False
    """Give leftovers to models that cannot be served only after all priorities have been tried."""
    switching_cost_hours: float = 0.1
    """Cost of starting or stopping a worker, in hours of its running cost."""

    def __post_init__(self) -> None:
        _check_numbers("problem", {"switching_cost_hours": self.switching_cost_hours})
        _check_numbers("limits", self.limits)
        _check_unique("problem", (model.name for model in self.models))


class Allocation(Struct, frozen=True):
    """Workers granted to each pool."""

    counts: dict[str, dict[str, int]]
    """Workers by model and pool, for all pools, ordered by name."""
    unserved: dict[str, float]
    """Fraction (0..1) of the demand of a model's worst-served role that is not met; only values above 0."""


def _check_numbers(place: str, numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        if not (isfinite(number) and number >= 0):
            raise ValueError(f"{place}: {name} is {number}; it must be a finite number, at least 0")


def _check_unique(place: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{place}: {name!r} is named twice; give each its own name")
        seen.add(name)
