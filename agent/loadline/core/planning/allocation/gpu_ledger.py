"""What each model has in one turn, of all that binds models together: the GPUs of one budget, and limited supplies."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.unassigned import UnassignedWorkers
from loadline.core.planning.allocation.supplies import Supplies

NO_MODEL: Final = ""
"""No model is called that."""


class GpuLedger(Struct):
    """What each model has in one turn. A decision is entered at once, so that the next model hears of it."""

    pending: dict[str, dict[str, int]]
    """Counts that are being committed, by model and pool."""
    supplies: Supplies = Supplies()
    planned: dict[str, int] = field(default_factory=dict)
    """GPUs by the counts that stand or are being committed."""
    occupied: dict[str, int] = field(default_factory=dict)
    """GPUs taken or promised, by workers that drain too; those of workers of no pool are under ``NO_MODEL``."""
    widest: dict[str, int] = field(default_factory=dict)
    """GPUs of the widest worker of each model."""
    taken: dict[str, dict[str, int]] = field(default_factory=dict)
    """What is occupied of each limited supply, by model."""
    occupied_of: dict[str, int] = field(default_factory=dict)
    """The sums of it by supply: of 1,000 models that wait each asks for them."""

    def enter(self, model: Model, now: int) -> None:
        """Count what a model has at ``now`` (ms)."""
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

    def enter_unassigned(self, strangers: UnassignedWorkers) -> None:
        """Count workers whose pool is no more configured: they run on, and nobody drains them."""
        taken: dict[str, int] = {}
        for model, by_type in strangers.gpus.items():
            for gpu_type, gpus in by_type.items():
                self.occupied[NO_MODEL] = self.occupied.get(NO_MODEL, 0) + gpus
                for supply in self.supplies.of_type(model, gpu_type):
                    taken[supply] = taken.get(supply, 0) + gpus
        self._take(NO_MODEL, taken)

    def free(self, supply: str) -> int:
        """What nobody occupies of a supply; below 0: more is occupied than there is."""
        return self.supplies.limits[supply] - self.occupied_of.get(supply, 0)

    def _take(self, name: str, taken: dict[str, int]) -> None:
        before = self.taken.get(name, {})
        for supply in before | taken:
            more = taken.get(supply, 0) - before.get(supply, 0)
            self.occupied_of[supply] = self.occupied_of.get(supply, 0) + more
        self.taken[name] = taken


def gpu_ledger_of(fleet: Fleet, pending: dict[str, dict[str, int]], supplies: Supplies, now: int) -> GpuLedger | None:
    """What all models have at ``now`` (ms); None where nothing binds them together."""
    if fleet.knobs.gpu_budget_max is None and not fleet.knobs.gpu_budget_min and not supplies.limits:
        return None
    ledger = GpuLedger(pending, supplies)
    for model in fleet.models.values():
        ledger.enter(model, now)
    ledger.enter_unassigned(fleet.unassigned)
    return ledger


def planned_of(pool: Pool, pending: Mapping[str, int], now: int) -> int:
    """The count that stands or is being committed. A least count is the pool's whether it has it yet or not."""
    return max(pending.get(pool.name, pool.effective_target(now)), pool.knobs.replicas_min)


def gpus_of(model: Model, counts: Mapping[str, int]) -> int:
    """GPUs of so many workers of each pool."""
    return sum(count * model.pools[pool].knobs.gpus_per_worker for pool, count in counts.items())
