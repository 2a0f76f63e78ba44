"""Allocation of limited supplies over all models of the agent.

The last recommendation for each model is its demand. While supplies suffice, every model gets its first choice.
Otherwise the greedy allocation applies at once, while a child process computes the exact one, which applies from its
arrival until a demand changes. Guardrails and free GPUs still limit changes, so a model may wait for granted GPUs.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.fleet import Fleet
from loadline.core.planning.allocation import greedy
from loadline.core.planning.allocation.gpu_ledger import GpuLedger, planned_of
from loadline.core.planning.allocation.model_demand import ModelDemand, counts_of, left_of, problem_of
from loadline.core.planning.allocation.replacement_minimums import replacement_minimums
from loadline.core.planning.allocation.supplies import AllocationKnobs, Supplies
from loadline.core.planning.guardrails.constraints import UNLIMITED_HEADROOM, CapacityLimits, SupplyHeadroom
from loadline.core.vocabulary.allocations import Allocation
from loadline.core.vocabulary.effects import SolveAllocation
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.core.vocabulary.status import SupplyStatus

_SHORTAGE_CODES: Final = frozenset(
    {ReasonCode.GIVES_WAY, ReasonCode.UNNEEDED_GIVES_WAY, ReasonCode.CAPACITY_LIMITED, ReasonCode.QUOTA_LIMITED}
)
"""Reasons that limit a pool; all others exchange workers between pools."""
PAUSE_MS: Final = 200
"""Minimum time between two allocations under shortage: each takes 40 to 90 ms for 100 models of five pools."""
_NAMED_MAX: Final = 3
"""Maximum number of models named in a reason."""


class GpuWait(Struct, frozen=True):
    """A granted growth that waits for GPUs which other workers still occupy."""

    since_ms: int
    gpus: dict[str, int]
    """Missing GPUs by supply."""
    free: dict[str, int]
    """GPUs that were free for the model when it was last planned, by supply."""


class AllocationTerms(Struct, frozen=True):
    """Inputs of an allocation problem, apart from demands and counts."""

    supplies: Supplies = Supplies()
    knobs: AllocationKnobs = AllocationKnobs()
    pools: dict[str, dict[str, tuple[float, int]]] = {}
    """Cost of a worker and maximum replicas, by model and pool."""


def terms_of(fleet: Fleet, supplies: Supplies, knobs: AllocationKnobs) -> AllocationTerms:
    """Return the terms for the models that use limited supplies."""
    models = (fleet.models[name] for name in supplies.takes)
    pools = {
        model.name: {name: (pool.cost_per_hour, pool.knobs.replicas_max) for name, pool in model.pools.items()}
        for model in models
    }
    return AllocationTerms(supplies, knobs, pools)


class FleetAllocation(Struct):
    """Demands, grants and waits of all models that use limited supplies."""

    demands: dict[str, ModelDemand] = field(default_factory=dict)
    """Demands that the current allocation is for."""
    changed_demands: dict[str, ModelDemand] = field(default_factory=dict)
    """Demands that have changed since the current allocation."""
    allocated_at_ms: int = -1
    """Unix ms of the last allocation under shortage; -1: none."""
    granted: dict[str, dict[str, int]] = field(default_factory=dict)
    """Allocated counts by pool, of models that do not get their first choice; see ``grant_of``."""
    left: dict[str, int] = field(default_factory=dict)
    """GPUs granted to no model, by supply."""
    rising: dict[str, list[str]] = field(default_factory=dict)
    """Models that are granted more than they have, by supply, highest priority first."""
    waiting: dict[str, GpuWait] = field(default_factory=dict)
    """Waits for occupied GPUs, by model."""
    terms: AllocationTerms = AllocationTerms()
    """Terms of the current allocation."""
    problem: int = 0
    """Number of the current problem; solutions of older ones are ignored."""
    settled: bool = True
    """True if the current allocation is final: the exact solver has answered or is not needed."""
    solution: Allocation | None = None
    """Answer of the exact solver, for the next round."""
    solving: int = 0
    """Number of the problem that the exact solver works on; 0: none."""
    requested_at_ms: int = -1
    """Time of the last request to the exact solver, Unix ms; -1: none."""

    def apply_terms(self, terms: AllocationTerms) -> None:
        """Replace the terms; if they differ, discard all demands and grants."""
        if self.terms != terms:
            self.terms = terms
            for known in (self.demands, self.changed_demands, self.granted, self.rising, self.waiting):
                known.clear()
            self.problem += 1
            self.settled, self.solution, self.allocated_at_ms = True, None, -1

    def record_demand(self, name: str, demand: ModelDemand) -> None:
        """Record the demand of a model."""
        known = self.demands.get(name)
        if known is not None and name in self.granted and demand.is_equivalent(known):
            self.demands[name] = demand
        elif known != demand:
            self.changed_demands[name] = demand
            return
        self.changed_demands.pop(name, None)

    def grant_of(self, name: str) -> dict[str, int] | None:
        """Return the granted counts of a model by pool; None if it gets its first choice.

        Pools that take no limited supply get their first choice in any case, or more if they serve for another pool.
        """
        granted = self.granted.get(name)
        if granted is None:
            return None
        counts, takes = self.demands[name].counts, self.terms.supplies.takes.get(name, {})
        return {pool: count if pool in takes else max(count, counts[pool]) for pool, count in granted.items()}

    def forget(self, name: str) -> None:
        """Forget the wait of a model for which nothing can be decided."""
        self.waiting.pop(name, None)

    @property
    def next_allocation_ms(self) -> int:
        """Earliest time (Unix ms) of the next allocation under shortage."""
        return 0 if self.allocated_at_ms < 0 else self.allocated_at_ms + PAUSE_MS

    def allocate(
        self, fleet: Fleet, supplies: Supplies, knobs: AllocationKnobs, now: int
    ) -> tuple[list[str], SolveAllocation | None]:
        """Allocate limited supplies if demands have changed; ``now`` in ms.

        Returns:
            The models whose grant has changed, and a request to the exact solver or None.
        """
        changed: list[str] = []
        if self.changed_demands:
            demands = self.demands | self.changed_demands
            fit = all(gpus >= 0 for gpus in left_of(demands, {}, supplies).values())
            if fit or now >= self.next_allocation_ms:
                self.demands, self.changed_demands = demands, {}
                self.problem += 1
                self.solution, self.settled = None, fit or knobs.solver == "greedy"
                if not fit:
                    self.allocated_at_ms = now
                found = None if fit else greedy(problem_of(fleet, demands, supplies, knobs, now))
                changed = self._grant(found, supplies)
        if self.solution is not None:
            changed, self.solution = self._grant(self.solution, supplies), None
        self.rising = self._rising(fleet, supplies, now) if self.granted else {}
        too_early = self.requested_at_ms >= 0 and now - self.requested_at_ms < knobs.solve_interval_ms
        if self.settled or self.solving or too_early:
            return changed, None
        self.solving, self.requested_at_ms = self.problem, now
        problem = problem_of(fleet, self.demands, supplies, knobs, now)
        return changed, SolveAllocation(self.problem, problem, knobs.solve_deadline_ms)

    def record_solution(self, request: int, allocation: Allocation | None) -> None:
        """Record the answer of the exact solver for the next round; None: the greedy allocation is final."""
        if request == self.solving:
            self.solving = 0
        if request == self.problem and not self.settled:
            self.settled, self.solution = True, allocation

    def headroom(self, fleet: Fleet, name: str, ledger: GpuLedger, now: int) -> SupplyHeadroom:
        """Return the headroom of a model in limited supplies at ``now`` (ms)."""
        takes = ledger.supplies.takes.get(name)
        if takes is None:
            return UNLIMITED_HEADROOM
        taken = sorted({supply for one in takes.values() for supply in one})
        # A model whose changed demand is not allocated yet has no GPUs to grow into.
        free_gpus, priority = self._free(ledger), ledger.supplies.priorities[name]
        free = {supply: 0 if name in self.changed_demands else free_gpus(priority, supply) for supply in taken}
        granted = self.grant_of(name)
        if granted is None:
            return SupplyHeadroom(takes, free)
        reasons = tuple(self._reasons(name, granted, ledger.supplies))
        limits = {reason.pool: granted[reason.pool] for reason in reasons if reason.code in _SHORTAGE_CODES}
        gives_way = frozenset(reason.pool for reason in reasons if reason.code is ReasonCode.GIVES_WAY)
        capacity = CapacityLimits(limits, gives_way, self.settled)
        pools, waiting, first_choice = fleet.models[name].pools, self.waiting.get(name), self.demands[name].counts
        other_pools = [reason.pool for reason in reasons if reason.code not in _SHORTAGE_CODES]
        if self.settled:
            exchanged = {pool: granted[pool] for pool in other_pools}
        else:  # The greedy mix may not be optimal: until the exact one arrives, no pool shrinks or grows for it.
            current = {pool: max(granted[pool], pools[pool].effective_target(now)) for pool in other_pools}
            exchanged = {
                pool: min(first_choice[pool], count)
                for pool, count in current.items()
                if granted[pool] < first_choice[pool]
            }
        waits_ms = 0 if waiting is None else now - waiting.since_ms
        minimums = {
            pool: count
            for need in self.demands[name].needs
            for pool, count in replacement_minimums(pools, need, granted, now).items()
            # Without a deadline, two models that must exchange GPUs would wait for each other forever.
            if waits_ms < pools[pool].knobs.start_deadline_ms
        }
        return SupplyHeadroom(takes, free, capacity, exchanged, reasons, minimums)

    def record_wait(self, name: str, waits: dict[str, int], headroom: SupplyHeadroom, now: int) -> None:
        """Record the GPUs that a model waits for, by supply."""
        before = self.waiting.pop(name, None)
        if waits:
            self.waiting[name] = GpuWait(now if before is None else before.since_ms, waits, headroom.free)

    def models_to_wake(self, ledger: GpuLedger) -> Iterator[str]:
        """Yield the models for which more GPUs are free than when they were last planned."""
        priorities, free = ledger.supplies.priorities, self._free(ledger)
        found: dict[tuple[int, str], int] = {}
        for name, waiting in self.waiting.items():
            if name in ledger.pending or name in self.changed_demands:
                continue
            for supply in waiting.gpus:
                key = priorities[name], supply
                if key not in found:
                    found[key] = free(*key)
                if found[key] > waiting.free[supply]:
                    yield name
                    break

    def status(self, fleet: Fleet, ledger: GpuLedger | None, now: int) -> tuple[SupplyStatus, ...]:
        """Return the status of each limited supply, by name."""
        if ledger is None:
            return ()
        supplies = ledger.supplies
        waiting: dict[str, dict[str, int]] = {supply: {} for supply in sorted(supplies.limits)}
        for name, demand in sorted(self.demands.items()):
            pools, pending = fleet.models[name].pools, ledger.pending.get(name, {})
            granted = self.grant_of(name) or demand.counts
            met = demand.met_by(granted)
            missing = {
                pool: max(0, max(0 if pool in met else count, granted[pool]) - planned_of(pools[pool], pending, now))
                for pool, count in demand.counts.items()
            }
            for supply, gpus in supplies.taken(name, missing).items():
                if gpus:
                    waiting[supply][name] = gpus
        return tuple(
            SupplyStatus(supply, supplies.limits[supply], supplies.limits[supply] - ledger.free(supply), names)
            for supply, names in waiting.items()
        )

    def _grant(self, allocation: Allocation | None, supplies: Supplies) -> list[str]:
        """Apply an allocation, or all first choices if it is None; return the models whose grant has changed."""
        before, self.granted = self.granted, {}
        if allocation is not None:
            found = {name: counts_of(allocation, name, demand) for name, demand in sorted(self.demands.items())}
            self.granted = {name: counts for name, counts in found.items() if counts != self.demands[name].counts}
        self.left = left_of(self.demands, self.granted, supplies)
        self._grant_first_choices(supplies)
        return [name for name in sorted(before | self.granted) if before.get(name) != self.granted.get(name)]

    def _grant_first_choices(self, supplies: Supplies) -> None:
        """Grant first choices that fit into the remaining GPUs, so that none stays unused while a model lacks it."""
        for name in sorted(self.granted, key=lambda one: (supplies.priorities[one], one)):
            takes_granted = supplies.taken(name, self.granted[name])
            takes_all = supplies.taken(name, self.demands[name].counts)
            missing = {supply: takes_all[supply] - gpus for supply, gpus in takes_granted.items()}
            if all(gpus <= max(0, self.left[supply]) for supply, gpus in missing.items()):
                del self.granted[name]
                for supply, gpus in missing.items():
                    self.left[supply] -= gpus

    def _free(self, ledger: GpuLedger) -> Callable[[int, str], int]:
        """Return a function of priority and supply: GPUs that are free and not reserved for a higher priority."""
        reserved: dict[str, dict[int, int]] = {}
        for name, waiting in self.waiting.items():
            rank = ledger.supplies.priorities[name]
            for supply, gpus in waiting.gpus.items():
                of_supply = reserved.setdefault(supply, {})
                of_supply[rank] = of_supply.get(rank, 0) + gpus

        def free(priority: int, supply: str) -> int:
            higher = sum(gpus for rank, gpus in reserved.get(supply, {}).items() if rank < priority)
            return max(0, ledger.free(supply) - higher)

        return free

    def _reasons(self, name: str, granted: Mapping[str, int], supplies: Supplies) -> Iterator[Reason]:
        """Yield the reasons why pools of a model are not granted their first choice."""
        demand, priorities = self.demands[name], supplies.priorities
        met, needed = demand.met_by(granted), supplies.taken(name, demand.counts)
        for pool, wanted in demand.counts.items():
            allowed = granted[pool]
            if allowed == wanted:
                continue
            others = [
                other for need in demand.needs if pool in need.capacities for other in need.capacities if other != pool
            ]
            other_pools = [
                other for other in others if (granted[other] - demand.counts[other]) * (wanted - allowed) > 0
            ]
            taken = supplies.takes[name].get(pool, {})
            if others and all(self.left[supply] >= gpus for supply, gpus in taken.items()):
                other_pools = others  # its GPUs are free, so it is other pools that serve the demand
            elif pool in met and wanted - allowed > demand.unneeded.get(pool, 0):
                other_pools = [other for other in others if granted[other]]
            rising = [other for supply in taken for other in self.rising.get(supply, ())]
            rivals = list(dict.fromkeys(other for other in rising if priorities[other] < priorities[name]))
            numbers = {"wanted": float(wanted), "allowed": float(allowed)}
            if allowed > wanted:
                yield Reason(ReasonCode.SERVES_FOR_ANOTHER_POOL, pool, numbers, ", ".join(other_pools))
            elif other_pools:
                yield Reason(ReasonCode.SERVED_BY_ANOTHER_POOL, pool, numbers, ", ".join(other_pools))
            elif rivals:
                yield Reason(ReasonCode.GIVES_WAY, pool, numbers, ", ".join(rivals[:_NAMED_MAX]))
            elif wanted - allowed <= demand.unneeded.get(pool, 0):
                takers = dict.fromkeys(rising)
                yield Reason(ReasonCode.UNNEEDED_GIVES_WAY, pool, numbers, ", ".join([*takers][:_NAMED_MAX]))
            else:
                # Prefer a limit that the demand of this model exceeds alone.
                supply = min(taken, key=lambda one: (needed[one] <= supplies.limits[one], self.left[one], one))
                code = ReasonCode.QUOTA_LIMITED if supply in supplies.quotas else ReasonCode.CAPACITY_LIMITED
                yield Reason(code, pool, numbers | {"limit": float(supplies.limits[supply])}, supply)

    def _rising(self, fleet: Fleet, supplies: Supplies, now: int) -> dict[str, list[str]]:
        """Return the models that are granted more than they have, by supply, highest priority first."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.demands, key=lambda one: (supplies.priorities[one], one)):
            counts, pools = self.granted.get(name, self.demands[name].counts), fleet.models[name].pools
            grows = [
                takes
                for pool, takes in supplies.takes[name].items()
                if counts[pool] > pools[pool].effective_target(now)
            ]
            for supply in {supply: None for takes in grows for supply in takes}:
                found.setdefault(supply, []).append(name)
        return found
