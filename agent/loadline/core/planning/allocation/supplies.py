"""Limited supplies of GPUs by type, over all models and by namespace, and the GPUs that workers take from them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.fleet.fleet import Fleet
from loadline.core.vocabulary.allocations import SaturationPolicy

Gpus = Annotated[int, Meta(ge=0, le=10_000_000)]
Quota = dict[str, Annotated[int, Meta(ge=-1, le=10_000_000)]]
"""Quota of GPUs by type; ``DEFAULT`` applies to each type that is not listed."""
UNLIMITED: Final = -1
"""Quota of a type without a limit."""
DEFAULT: Final = "default"
"""Key of the quota for types that are not listed."""


class AllocationKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """GPU capacity by type, and its allocation to models when GPUs are short."""

    capacity: Annotated[
        dict[str, Gpus],
        Meta(description="Number of GPUs by accelerator type; types that are not listed are unlimited."),
    ] = {}
    policy: Annotated[
        SaturationPolicy,
        Meta(
            description="Distribution of the remaining GPUs among models that cannot be served in full: see"
            " docs/explanation/allocation.md."
        ),
    ] = "priority_round_robin"
    delayed_best_effort: Annotated[
        bool, Meta(description="Distribute remaining GPUs only after models of all priorities have been served.")
    ] = False
    solver: Annotated[
        Literal["exact", "greedy"],
        Meta(
            description="exact: greedy at once, then the optimum, which a child process computes; greedy: only greedy."
        ),
    ] = "exact"
    solve_deadline_ms: Annotated[int, Meta(ge=10, le=60_000, description="Time limit of the exact solver.")] = 2_000
    solve_interval_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="Minimum time between two runs of the exact solver.")
    ] = 2_000
    switching_cost_hours: Annotated[
        float, Meta(ge=0, le=1_000, description="Cost of starting or stopping a worker, in hours of its cost.")
    ] = 0.1


class Tenant(Struct, frozen=True):
    """Namespace and priority of a model."""

    namespace: str
    priority: int


class Supplies(Struct, frozen=True):
    """Limits of supplies, and the GPUs that one worker takes. A supply is a type, or ``namespace/type``."""

    limits: dict[str, int] = {}
    takes: dict[str, dict[str, dict[str, int]]] = {}
    """GPUs of one worker by model, pool and limited supply; pools that take none are left out."""
    quotas: dict[str, None] = {}
    """Supplies that are limited by the quota of a namespace."""
    priorities: dict[str, int] = {}
    """Priority by model; 1 is served first."""
    namespaces: dict[str, str] = {}
    """Namespace by model."""

    def of_type(self, model: str, gpu_type: str) -> list[str]:
        """Return the limited supplies of GPUs of a type; for a model that was removed, without its namespace."""
        supplies = (gpu_type, f"{self.namespaces.get(model, '')}/{gpu_type}")
        return [supply for supply in supplies if supply in self.limits]

    def taken(self, model: str, workers: Mapping[str, int]) -> dict[str, int]:
        """Return the GPUs that workers of a model take, by supply."""
        found: dict[str, int] = {}
        for pool, takes in self.takes.get(model, {}).items():
            for supply, gpus in takes.items():
                found[supply] = found.get(supply, 0) + gpus * workers[pool]
        return found


def limit_of(quota: Mapping[str, int], gpu_type: str) -> int | None:
    """Return the quota of a type; None: unlimited."""
    limit = quota.get(gpu_type, quota.get(DEFAULT, UNLIMITED))
    return None if limit == UNLIMITED else limit


def limits_on(
    gpu_type: str, namespace: str, capacity: Mapping[str, int], quotas: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, int]]:
    """Yield the supplies that limit GPUs of a type in a namespace, with their limits."""
    if gpu_type in capacity:
        yield gpu_type, capacity[gpu_type]
    limit = limit_of(quotas.get(namespace, {}), gpu_type)
    if limit is not None:
        yield f"{namespace}/{gpu_type}", limit


def supplies_of(
    fleet: Fleet, tenants: Mapping[str, Tenant], capacity: Mapping[str, int], quotas: Mapping[str, Mapping[str, int]]
) -> Supplies:
    """Return the limited supplies of the models of a fleet."""
    found = Supplies(
        priorities={name: tenant.priority for name, tenant in tenants.items()},
        namespaces={name: tenant.namespace for name, tenant in tenants.items()},
    )
    for model in fleet.models.values():
        namespace = tenants[model.name].namespace
        for pool in model.pools.values():
            limits = dict(limits_on(pool.accelerator.gpu_type, namespace, capacity, quotas))
            if limits:
                found.limits.update(limits)
                found.quotas.update(dict.fromkeys(limits.keys() - capacity.keys()))
                takes = dict.fromkeys(limits, pool.knobs.gpus_per_worker)
                found.takes.setdefault(model.name, {})[pool.name] = takes
    return found
