"""Guardrails of a whole model: GPU budgets of the model and of all models, and limited supplies of GPUs."""

from collections.abc import Callable, Sequence
from typing import Final

from loadline.core.fleet.pool import Pool
from loadline.core.planning.guardrails.constraints import UNBOUNDED, BudgetHeadroom, SupplyHeadroom, least_of
from loadline.core.planning.guardrails.direction import PoolChange, fit_direction, settle
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.planning.guardrails.proposal import ModelProposal, Proposal
from loadline.core.vocabulary.reasons import ReasonCode

ModelGuardrail = Callable[[ModelProposal], None]
_NO_BAND: Final = GpuBand()


def gives_way(model: ModelProposal) -> None:
    """Shrink pools whose GPUs another model waits for under the budget over all models."""
    for name, replicas in model.constraints.budget.gives.items():
        pool, targets = model.model.pools[name], model.proposal.targets
        if targets[name] <= pool.effective_target(model.now) and pool.has_quorum(model.hard.quorum_ratio):
            model.proposal.limit(ReasonCode.GPU_BUDGET_GIVES_WAY, name, replicas)


def gpu_budgets(model: ModelProposal) -> None:
    """Fit the targets into the budget of the model, then into what the budget over all models leaves to it."""
    hard, proposal, budget, now = model.hard, model.proposal, model.constraints.budget, model.now
    own = GpuBand(hard.gpu_budget_min or None, hard.gpu_budget_max)
    if own == _NO_BAND and budget == UNBOUNDED:
        proposal.wanted = dict(proposal.targets)
        return  # most models: finding that no budget applies takes 30 us of a turn, and there are 100 of them
    pools = model.model.pools
    changes = {name: _change(pool, proposal.targets[name], now) for name, pool in pools.items()}
    occupied = sum(pool.occupied_workers(now) * pool.knobs.gpus_per_worker for pool in pools.values())
    free = None if own.ceiling is None else own.ceiling - occupied
    if own != _NO_BAND:
        draining = sum(pool.draining_workers() * pool.knobs.gpus_per_worker for pool in pools.values())
        _fit_model_budget(proposal, changes, own, free, draining)
    proposal.wanted = dict(proposal.targets)
    if budget != UNBOUNDED:
        _fit_fleet_budget(proposal, changes, budget, own, least_of(free, budget.free))


def free_supply(model: ModelProposal) -> None:
    """Grow only into GPUs that are free: a physical limit, so the strongest. Minimum counts are exempt."""
    supply = model.constraints.supply
    if supply.takes:
        for name, free in sorted(supply.free.items()):
            _limit_growth(model, supply, name, free)


MODEL_GUARDRAILS: Final[tuple[ModelGuardrail, ...]] = (gives_way, gpu_budgets, free_supply)
"""In order of strength, weakest first; they run after the guardrails of all pools."""


def _limit_growth(model: ModelProposal, supply: SupplyHeadroom, name: str, free: int) -> None:
    proposal, pools = model.proposal, model.model.pools
    changes: dict[str, PoolChange] = {}
    for pool, takes in supply.takes.items():
        if name in takes:
            current = max(pools[pool].effective_target(model.now), pools[pool].knobs.replicas_min)
            if proposal.targets[pool] > current:
                changes[pool] = PoolChange(current, proposal.targets[pool], takes[name], 0)
    if not changes:
        return
    in_use = sum(change.current * change.gpus for change in changes.values())
    counts = fit_direction(list(changes.values()), GpuBand(ceiling=in_use + free))
    for (pool, change), count in zip(changes.items(), counts, strict=True):
        if count < change.proposed:
            proposal.limit(ReasonCode.GPUS_OCCUPIED, pool, count, detail=name, free=free)
            proposal.wanted[pool] = min(proposal.wanted.get(pool, count), count)
            proposal.waits[name] = proposal.waits.get(name, 0) + (change.proposed - count) * change.gpus


def _fit_model_budget(
    proposal: Proposal, changes: dict[str, PoolChange], band: GpuBand, free: int | None, draining: int
) -> None:
    counts, why = _bounded(list(changes.values()), band, free)
    current = sum(change.current * change.gpus for change in changes.values())
    proposed = sum(change.proposed * change.gpus for change in changes.values())
    for (name, change), count in zip(changes.items(), counts, strict=True):
        if why is not None and count != change.proposed:
            proposal.limit(why, name, count, gpus=current)
        elif count < change.proposed:
            gpus, budget = proposed + draining, band.ceiling or 0
            proposal.limit(ReasonCode.GPU_BUDGET_MAX, name, count, gpus=gpus, budget=budget)
        elif count > change.proposed:
            proposal.limit(ReasonCode.GPU_BUDGET_MIN, name, count, gpus=proposed, budget=band.floor or 0)


def _fit_fleet_budget(
    proposal: Proposal, changes: dict[str, PoolChange], budget: BudgetHeadroom, own: GpuBand, free: int | None
) -> None:
    pools = list(changes.values())
    counts, why = _bounded(pools, budget.within(own), free)
    cut = any(
        change.step > 0 and count < proposal.targets[name]
        for (name, change), count in zip(changes.items(), counts, strict=True)
    )
    if cut and own.floor is not None and why is None:
        # The model's own floor again, and in full: it was waived for a growth that now waits for other models.
        counts = _keeping(pools, counts, own.floor)
    for name, count in zip(changes, counts, strict=True):
        if count < proposal.targets[name]:
            proposal.limit(ReasonCode.FLEET_GPU_BUDGET_MAX, name, count, gpus=budget.gpus, budget=budget.most)
        elif count > proposal.targets[name]:
            proposal.limit(ReasonCode.FLEET_GPU_BUDGET_MIN, name, count, gpus=budget.gpus, budget=budget.least)


def _change(pool: Pool, proposed: int, now: int) -> PoolChange:
    knobs, current = pool.knobs, pool.effective_target(now)
    return PoolChange(current, proposed, knobs.gpus_per_worker, knobs.replicas_min, knobs.replicas_max)


def _bounded(changes: Sequence[PoolChange], band: GpuBand, free: int | None) -> tuple[list[int], ReasonCode | None]:
    """Return the counts that a proposal may reach within a band, of which ``free`` GPUs are free now, and the reason.

    Draining workers occupy their GPUs until they have left: growth waits for them rather than exceed the ceiling.
    Minimum counts do not wait: bounds always hold.
    """
    settled = settle(changes, band)
    counts = list(settled.counts)
    growing = [at for at, change in enumerate(changes) if counts[at] > max(change.current, change.least)]
    if free is None or not growing:
        return counts, settled.why
    steps = [PoolChange(max(changes[at].current, changes[at].least), counts[at], changes[at].gpus, 0) for at in growing]
    ceiling = sum(step.current * step.gpus for step in steps) + max(0, free)
    for at, count in zip(growing, fit_direction(steps, GpuBand(ceiling=ceiling)), strict=True):
        counts[at] = count
    if band.floor is not None and settled.why is None:
        counts = _keeping(changes, counts, band.floor - band.tolerance(*(change.gpus for change in changes)))
    return counts, settled.why


def _keeping(changes: Sequence[PoolChange], counts: Sequence[int], floor: int) -> list[int]:
    """Raise shrinking pools so that GPUs given for a growth that still waits do not take the model below its floor."""
    giving = [
        PoolChange(change.current, min(change.current, count), change.gpus, 0)
        for change, count in zip(changes, counts, strict=True)
    ]
    grown = sum(max(0, count - change.current) * change.gpus for change, count in zip(changes, counts, strict=True))
    given = fit_direction(giving, GpuBand(floor=floor - grown))
    return [max(count, kept) for count, kept in zip(counts, given, strict=True)]
