"""Guardrails of a whole model: GPU budgets of the model and of all models, limited supplies of GPUs, and removals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from loadline.core.fleet.pool import Pool
from loadline.core.planning.guardrails.constraints import UNBOUNDED, BudgetHeadroom, SupplyHeadroom, minimum_of
from loadline.core.planning.guardrails.gpu_band import GpuBand, ceil_div
from loadline.core.planning.guardrails.pool_changes import PoolChange, fit_changes, fit_direction
from loadline.core.planning.guardrails.proposal import ModelProposal, Proposal
from loadline.core.planning.guardrails.removal_guardrails import drain_limit, moved_workers, unnumbered_workers
from loadline.core.vocabulary.reasons import ReasonCode

ModelGuardrail = Callable[[ModelProposal], None]
_NO_BAND: Final = GpuBand()


def gives_way(model: ModelProposal) -> None:
    """Shrink pools to release GPUs that another model claims under the budget over all models."""
    for name, replicas in model.constraints.budget.releases.items():
        pool, targets = model.model.pools[name], model.proposal.targets
        allowed = replicas
        if name in model.constraints.budget.unneeded:
            # The offer is of an earlier turn: by now, the load may need the workers.
            allowed = min(targets[name], max(replicas, model.proposal.needed.get(name, targets[name])))
            if allowed == targets[name]:
                continue
        if targets[name] <= pool.effective_target(model.now) and pool.has_quorum(model.hard.quorum_ratio):
            model.proposal.limit(ReasonCode.GPU_BUDGET_GIVES_WAY, name, allowed)


def gpu_budgets(model: ModelProposal) -> None:
    """Fit the targets into the GPU budget of the model, then into its headroom in the budget over all models."""
    hard, proposal, budget, now = model.hard, model.proposal, model.constraints.budget, model.now
    own = GpuBand(hard.gpu_budget_min or None, hard.gpu_budget_max)
    if own == _NO_BAND and budget == UNBOUNDED:
        proposal.wanted = dict(proposal.targets)
        return  # saves 30 us of a turn for each of 100 models, most of which have no budget
    pools = model.model.pools
    changes = {name: _change(pool, proposal.targets[name], now) for name, pool in pools.items()}
    occupied = sum(pool.occupied_workers(now) * pool.knobs.gpus_per_worker for pool in pools.values())
    free = None if own.ceiling is None else own.ceiling - occupied
    if own != _NO_BAND:
        draining = sum(pool.draining_workers() * pool.knobs.gpus_per_worker for pool in pools.values())
        released = _without_unneeded(changes, proposal.needed, own)
        _fit_model_budget(proposal, released, own, free, draining)
    proposal.wanted = dict(proposal.targets)
    if budget != UNBOUNDED:
        released = _without_unneeded(changes, proposal.needed, budget.within(own))
        _fit_fleet_budget(proposal, released, budget, own, minimum_of(free, budget.free))


def free_supply(model: ModelProposal) -> None:
    """Limit growth to free GPUs; a physical limit, so the strongest. Minimum replicas are exempt."""
    supply = model.constraints.supply
    for name, free in sorted(supply.free.items()):
        _limit_growth(model, supply, name, free)


MODEL_GUARDRAILS: Final[tuple[ModelGuardrail, ...]] = (
    gives_way,
    gpu_budgets,
    free_supply,
    drain_limit,
    unnumbered_workers,
    moved_workers,
)
"""Guardrails of a model, weakest first; they apply after those of all pools."""


def _limit_growth(model: ModelProposal, supply: SupplyHeadroom, name: str, free: int) -> None:
    """Limit the growth of all pools that take GPUs from the supply ``name``, which has ``free`` ones."""
    proposal, pools = model.proposal, model.model.pools
    changes: dict[str, PoolChange] = {}
    for pool, takes in supply.takes.items():
        if name in takes:
            current = max(pools[pool].effective_target(model.now), pools[pool].knobs.replicas_min)
            if proposal.targets[pool] > current:
                changes[pool] = PoolChange(current, proposal.targets[pool], takes[name], 0)
    in_use = sum(change.current * change.gpus for change in changes.values())
    counts = fit_direction(list(changes.values()), GpuBand(ceiling=in_use + free))
    for (pool, change), count in zip(changes.items(), counts, strict=True):
        if count < change.proposed:
            proposal.limit(ReasonCode.GPUS_OCCUPIED, pool, count, detail=name, free=free)
            proposal.wanted[pool] = min(proposal.wanted.get(pool, count), count)
            proposal.waits[name] = proposal.waits.get(name, 0) + (change.proposed - count) * change.gpus


def _without_unneeded(
    changes: Mapping[str, PoolChange], needed: Mapping[str, int], band: GpuBand
) -> dict[str, PoolChange]:
    """Propose to remove as many unneeded workers as growth beyond the ceiling needs GPUs, and can use."""
    excess = 0 if band.ceiling is None else sum(one.proposed * one.gpus for one in changes.values()) - band.ceiling
    if excess <= 0 or not needed:
        return dict(changes)
    # Nobody gains from 5 narrow workers that leave for one of 8 GPUs, which then does not fit.
    proposed = list(_with_removals(changes, needed, excess).values())
    fitted = zip(proposed, fit_changes(proposed, band).counts, strict=True)
    grown = sum(max(0, count - one.current) * one.gpus for one, count in fitted)
    growth = sum(max(0, one.proposed - one.current) * one.gpus for one in changes.values())
    return _with_removals(changes, needed, excess - (growth - grown))


def _with_removals(changes: Mapping[str, PoolChange], needed: Mapping[str, int], excess: int) -> dict[str, PoolChange]:
    """Propose to remove unneeded workers of ``excess`` GPUs, at first those by which pools would grow."""
    found = dict(changes)
    for name, workers in sorted(needed.items(), key=lambda one: changes[one[0]].step <= 0):
        change = changes[name]
        count = min(change.proposed - workers, ceil_div(excess, change.gpus))
        if count > 0:
            found[name] = replace(change, proposed=change.proposed - count)
            excess -= count * change.gpus
    return found


def _fit_model_budget(
    proposal: Proposal, changes: dict[str, PoolChange], band: GpuBand, free: int | None, draining: int
) -> None:
    counts, code = _bounded(list(changes.values()), band, free)
    current = sum(change.current * change.gpus for change in changes.values())
    proposed = sum(change.proposed * change.gpus for change in changes.values())
    for name, count in zip(changes, counts, strict=True):
        if code is not None and count != proposal.targets[name]:
            proposal.limit(code, name, count, gpus=current)
        elif count < proposal.targets[name]:
            gpus, budget = proposed + draining, band.ceiling or 0
            proposal.limit(ReasonCode.GPU_BUDGET_MAX, name, count, gpus=gpus, budget=budget)
        elif count > proposal.targets[name]:
            proposal.limit(ReasonCode.GPU_BUDGET_MIN, name, count, gpus=proposed, budget=band.floor or 0)


def _fit_fleet_budget(
    proposal: Proposal, changes: dict[str, PoolChange], budget: BudgetHeadroom, own: GpuBand, free: int | None
) -> None:
    pools = list(changes.values())
    counts, code = _bounded(pools, budget.within(own), free)
    growth_limited = any(
        change.step > 0 and count < proposal.targets[name]
        for (name, change), count in zip(changes.items(), counts, strict=True)
    )
    if growth_limited and own.floor is not None and code is None:
        # Apply the model's own floor again, without tolerance: the shrinks were to feed a growth that is delayed now.
        counts = _keep_floor(pools, counts, own.floor)
    for name, count in zip(changes, counts, strict=True):
        if count < proposal.targets[name]:
            proposal.limit(ReasonCode.FLEET_GPU_BUDGET_MAX, name, count, gpus=budget.occupied, budget=budget.gpus_max)
        elif count > proposal.targets[name]:
            proposal.limit(ReasonCode.FLEET_GPU_BUDGET_MIN, name, count, gpus=budget.occupied, budget=budget.gpus_min)


def _change(pool: Pool, proposed: int, now: int) -> PoolChange:
    knobs, current = pool.knobs, pool.effective_target(now)
    replicas_max = max(knobs.replicas_max, proposed)  # above its maximum, a pool is shrinking stepwise
    return PoolChange(current, proposed, knobs.gpus_per_worker, knobs.replicas_min, replicas_max)


def _bounded(changes: Sequence[PoolChange], band: GpuBand, free: int | None) -> tuple[list[int], ReasonCode | None]:
    """Fit changes into a band of which ``free`` GPUs are free now; return the counts and the reason.

    Draining workers occupy their GPUs until they have left: growth waits for them. Minimum replicas do not wait.
    """
    fitted = fit_changes(changes, band)
    counts = list(fitted.counts)
    growing = [at for at, change in enumerate(changes) if counts[at] > max(change.current, change.replicas_min)]
    if free is None or not growing:
        return counts, fitted.code
    growths = [
        PoolChange(max(changes[at].current, changes[at].replicas_min), counts[at], changes[at].gpus, 0)
        for at in growing
    ]
    ceiling = sum(growth.current * growth.gpus for growth in growths) + max(0, free)
    for at, count in zip(growing, fit_direction(growths, GpuBand(ceiling=ceiling)), strict=True):
        counts[at] = count
    if band.floor is not None and fitted.code is None:
        counts = _keep_floor(changes, counts, band.floor - band.tolerance(*(change.gpus for change in changes)))
    return counts, fitted.code


def _keep_floor(changes: Sequence[PoolChange], counts: Sequence[int], floor: int) -> list[int]:
    """Limit shrinks so that the model keeps its floor of GPUs while the growth that they feed is delayed."""
    shrinks = [
        PoolChange(change.current, min(change.current, count), change.gpus, 0)
        for change, count in zip(changes, counts, strict=True)
    ]
    grown = sum(max(0, count - change.current) * change.gpus for change, count in zip(changes, counts, strict=True))
    minimums = fit_direction(shrinks, GpuBand(floor=floor - grown))
    return [max(count, minimum) for count, minimum in zip(counts, minimums, strict=True)]
