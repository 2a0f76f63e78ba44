"""GPU ledger: the GPUs of each model in one turn, for the budget over all models and for limited supplies."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.unassigned import UnassignedWorkers
from loadline.core.planning.allocation.supplies import Supplies

NO_MODEL: Final = ""
"""Key of unassigned workers; no model has this name."""


class GpuLedger(Struct):
    """GPUs by model in one turn. Each decision is entered at once, so that the next model is planned with it."""

    pending: dict[str, dict[str, int]]
    """Targets being committed, by model and pool."""
    supplies: Supplies = Supplies()
    planned: dict[str, int] = field(default_factory=dict)
    """GPUs of current targets, and of those being committed."""
    occupied: dict[str, int] = field(default_factory=dict)
    """GPUs occupied or promised, including draining workers; those of unassigned workers are under ``NO_MODEL``."""
    widest: dict[str, int] = field(default_factory=dict)
    """GPUs of the widest worker of each model."""
    taken: dict[str, dict[str, int]] = field(default_factory=dict)
    """Occupied GPUs by model and limited supply."""
    taken_total: dict[str, int] = field(default_factory=dict)
    """Sums of ``taken`` by supply, which each of 1,000 waiting models reads."""

    def enter(self, model: Model, now: int) -> None:
        """Enter the GPUs of a model at ``now`` (ms)."""
        pending = self.pending.get(model.name, {})
        self.planned[model.name] = gpus_of(
            model, {pool.name: planned_of(pool, pending, now) for pool in model.pools.values()}
        )
        occupied = {
            pool.name: max(pool.occupied_workers(now), pending.get(pool.name, 0) + pool.draining_workers())
            for pool in model.pools.values()
        }
        self.occupied[model.name] = gpus_of(model, occupied)
        self.widest[model.name] = max(pool.knobs.gpus_per_worker for pool in model.pools.values())
        if model.name in self.supplies.takes:
            self._take(model.name, self.supplies.taken(model.name, occupied))

    def enter_unassigned(self, unassigned: UnassignedWorkers) -> None:
        """Enter the GPUs of workers whose pool is not configured; they keep running and are not drained."""
        taken: dict[str, int] = {}
        for model, by_type in unassigned.gpus.items():
            for gpu_type, gpus in by_type.items():
                self.occupied[NO_MODEL] = self.occupied.get(NO_MODEL, 0) + gpus
                for supply in self.supplies.of_type(model, gpu_type):
                    taken[supply] = taken.get(supply, 0) + gpus
        self._take(NO_MODEL, taken)

    def free(self, supply: str) -> int:
        """Return the free GPUs of a supply; negative if more are occupied than exist."""
        return self.supplies.limits[supply] - self.taken_total.get(supply, 0)

    def _take(self, name: str, taken: dict[str, int]) -> None:
        before = self.taken.get(name, {})
        for supply in before | taken:
            change = taken.get(supply, 0) - before.get(supply, 0)
            self.taken_total[supply] = self.taken_total.get(supply, 0) + change
        self.taken[name] = taken


def gpu_ledger_of(fleet: Fleet, pending: dict[str, dict[str, int]], supplies: Supplies, now: int) -> GpuLedger | None:
    """Return the GPUs of all models; None if neither a budget nor a supply limits them.

    Args:
        fleet: The fleet.
        pending: Counts of the decisions that are being committed, by model and pool.
        supplies: Limited supplies.
        now: Unix time in ms.
    """
    if fleet.knobs.gpu_budget_max is None and not fleet.knobs.gpu_budget_min and not supplies.limits:
        return None
    ledger = GpuLedger({name: _serving(fleet, name, counts) for name, counts in pending.items()}, supplies)
    for model in fleet.models.values():
        ledger.enter(model, now)
    ledger.enter_unassigned(fleet.unassigned)
    return ledger


def _serving(fleet: Fleet, name: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the workers that serve in each pool of a model with the counts of a decision."""
    pools = fleet.models[name].pools if name in fleet.models else {}
    return {pool: count + (pools[pool].moved if pool in pools else 0) for pool, count in counts.items()}


def planned_of(pool: Pool, pending: Mapping[str, int], now: int) -> int:
    """Return the count in force or being committed, but at least ``replicas_min``."""
    return max(pending.get(pool.name, pool.effective_target(now)), pool.knobs.replicas_min)


def gpus_of(model: Model, counts: Mapping[str, int]) -> int:
    """Return the GPUs of a model with these counts."""
    return sum(count * model.pools[pool].knobs.gpus_per_worker for pool, count in counts.items())
