"""Guardrails of one pool: functions that may limit its target, with the reason."""

from collections.abc import Callable
from typing import Final

from loadline.core.planning.guardrails.proposal import PoolProposal
from loadline.core.vocabulary.reasons import ReasonCode

PoolGuardrail = Callable[[PoolProposal], None]


def cooldown(pool: PoolProposal) -> None:
    """Keep the current target for a while after a change."""
    if pool.target == pool.current:
        return
    grows = pool.target > pool.current
    cooldown_ms = pool.knobs.cooldown_up_ms if grows else pool.knobs.cooldown_down_ms
    changed_at_ms = max(pool.pool.scaled_up_at_ms, pool.pool.scaled_down_at_ms)
    age_ms = pool.now - changed_at_ms
    if changed_at_ms >= 0 and age_ms < cooldown_ms:  # simulators may count time from 0
        left_ms = cooldown_ms - age_ms
        pool.limit(ReasonCode.COOLDOWN, pool.current, age_ms=age_ms, cooldown_ms=cooldown_ms, left_ms=left_ms)


def stabilisation(pool: PoolProposal) -> None:
    """Shrink no further than the highest recommendation of the window.

    A pool that releases GPUs to models of a higher priority does not wait for the window. Under a final allocation of
    short GPUs, the highest grant replaces the highest recommendation.
    """
    name, limits = pool.pool.name, pool.constraints.supply.limits
    limited = limits.settled and name in limits.counts
    if limited and name in limits.gives_way:
        return
    recent = pool.history.grants if limited else pool.history.proposals
    highest = recent.max(pool.now)
    if highest is not None and pool.target < min(highest, pool.current):
        allowed, window_ms = min(highest, pool.current), pool.knobs.stabilisation_ms
        left_ms = recent.falls_below_ms(allowed, pool.now) - pool.now
        pool.limit(ReasonCode.STABILISATION, allowed, window_ms=window_ms, left_ms=left_ms)


def warm_up(pool: PoolProposal) -> None:
    """Do not shrink until data has been complete for a while."""
    if pool.target >= pool.current:
        return
    warm_ms = pool.now - max(pool.constraints.acting_since_ms, pool.history.quorate_since_ms)
    if warm_ms < pool.knobs.warm_up_ms:
        needed_ms = pool.knobs.warm_up_ms
        numbers = {"age_ms": warm_ms, "needed_ms": needed_ms, "left_ms": needed_ms - warm_ms}
        pool.limit(ReasonCode.WARM_UP, pool.current, **numbers)


def step_down(pool: PoolProposal) -> None:
    """Shrink by a few workers at a time.

    The step is measured from the existing workers if they are fewer than the target, so that overdue workers are
    cancelled at once.
    """
    if pool.target >= pool.current:
        return
    lowest = min(pool.current, pool.pool.scaling_base(pool.now)) - pool.knobs.step_down_max
    if pool.target < lowest:
        pool.limit(ReasonCode.STEP_DOWN, lowest)


def step_up(pool: PoolProposal) -> None:
    """Grow by a few workers at a time."""
    highest = pool.current + pool.knobs.step_up_max
    if pool.target > highest:
        pool.limit(ReasonCode.STEP_UP, highest)


def temporary_maximum(pool: PoolProposal) -> None:
    """Keep to a temporary maximum, such as zero workers for an idle model."""
    bound = pool.constraints.bounds.get(pool.pool.name)
    if bound is not None and pool.target > bound.maximum:
        pool.limit(bound.code, bound.maximum, **bound.numbers)


def no_data_no_shrink(pool: PoolProposal) -> None:
    """Do not shrink while too few workers report."""
    if pool.target < pool.current and not pool.quorate:
        pool.limit(ReasonCode.NO_DATA_NO_SHRINK, pool.current, fresh=pool.pool.fresh, ready=pool.pool.ready)


def unaccepted(pool: PoolProposal) -> None:
    """Do not shrink further until a scaler has accepted the last scale-down.

    The victims of that one still serve, so the load of the others is no measure of what the pool could do without.
    """
    if pool.target < pool.current and pool.pool.name in pool.constraints.unaccepted:
        pool.limit(ReasonCode.UNACCEPTED, pool.current)


def temporary_minimum(pool: PoolProposal) -> None:
    """Keep to a temporary minimum, such as the last worker of a role."""
    bound = pool.constraints.bounds.get(pool.pool.name)
    if bound is not None and pool.target < bound.minimum:
        pool.limit(bound.code, bound.minimum, **bound.numbers)


def replacements(pool: PoolProposal) -> None:
    """Keep workers until those of other pools that replace them are ready."""
    minimum = pool.constraints.supply.replacement_minimums.get(pool.pool.name)
    if minimum is not None and pool.target < minimum:
        pool.limit(ReasonCode.REPLACEMENT_NOT_READY, minimum)


def schedule_minimum(pool: PoolProposal) -> None:
    """Keep to the minimum of a schedule in its window."""
    minimum = pool.pool.schedule_minimum
    if pool.target < minimum.replicas:
        pool.limit(ReasonCode.SCHEDULE_MINIMUM, minimum.replicas, left_ms=minimum.ends_at_ms - pool.now)


def replica_bounds(pool: PoolProposal) -> None:
    """Keep to the configured replica bounds.

    No pool grows above its maximum. A higher count that was decided before the maximum was lowered falls as in any
    other shrink: with data and stepwise.
    """
    knobs = pool.pool.knobs
    if pool.target < knobs.replicas_min:
        pool.limit(ReasonCode.REPLICAS_MIN, knobs.replicas_min)
    elif pool.target > knobs.replicas_max:
        pool.limit(ReasonCode.REPLICAS_MAX, knobs.replicas_max)
        if pool.target < pool.current:
            for guardrail in (cooldown, warm_up, step_down, no_data_no_shrink, unaccepted):
                guardrail(pool)
            # What is above the existing workers was requested and is cancelled at once.
            highest = max(knobs.replicas_max, pool.pool.ready + pool.pool.starting)
            if pool.target > highest:
                pool.limit(ReasonCode.REPLICAS_MAX, highest)


POOL_GUARDRAILS: Final[tuple[PoolGuardrail, ...]] = (
    cooldown,
    stabilisation,
    warm_up,
    step_down,
    step_up,
    temporary_maximum,
    warm_up,  # again: an idle model may be emptied only on complete data
    no_data_no_shrink,
    unaccepted,
    temporary_minimum,
    replacements,
    schedule_minimum,
    replica_bounds,
)
"""Guardrails of a pool, weakest first: a later one overrides an earlier one."""
