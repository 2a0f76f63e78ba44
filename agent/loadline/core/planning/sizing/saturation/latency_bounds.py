"""Counts of the pools of a role within the bounds of their measured latency."""

from collections.abc import Sequence
from math import inf

from loadline.core.planning.sizing.headroom import Candidate, PoolCapacity, RoleCounts, resize
from loadline.core.planning.sizing.saturation.holds import RoleOccupancy
from loadline.core.planning.sizing.saturation.latency_guard import WINDOW_MS, LatencyGuard
from loadline.core.vocabulary.reasons import Reason, ReasonCode


def guarded(  # noqa: PLR0917 - one argument for each input
    by_load: RoleCounts,
    pools: Sequence[PoolCapacity],
    occupancy: RoleOccupancy,
    guard: LatencyGuard,
    up: float,
    down: float,
    now: int,
) -> RoleCounts:
    """Return the counts by load, raised to those that the latency needs.

    The workers that the latency needs count as a load that fills them to the thresholds, so that the pools of the role
    share them as they share any load.

    Args:
        by_load: Counts by load.
        pools: Pools of the role.
        occupancy: Load of the pools.
        guard: Measured latency of the role.
        up: Utilisation (0..1) above which capacity is missing.
        down: Utilisation (0..1) below which there is headroom.
        now: Unix time in ms.
    """
    count = sum(pool.candidate.current for pool in pools)
    needed, kept = guard.needed(count), guard.kept(count, now)
    if needed <= count and not kept:
        return by_load
    each = by_load.expected / max(count, 1)
    up_load = max(occupancy.scale_up_load, needed * each * up if needed > count else 0.0)
    return resize(pools, up_load, max(occupancy.scale_down_load, kept * each * down), up, down)


def latency_reason(candidate: Candidate, by_load: RoleCounts, found: RoleCounts, guard: LatencyGuard) -> Reason | None:
    """Return the reason for a count of a pool that the latency determines; None for other counts.

    Args:
        candidate: The pool.
        by_load: Counts of its role by load.
        found: Counts of its role within the bounds of the latency.
        guard: Measured latency of the role.
    """
    name, point = candidate.name, guard.now
    load_count, count = by_load.counts[name], found.counts[name]
    if count > load_count and count > candidate.current and point is not None:
        numbers = guard.numbers(point) | {"window_ms": float(WINDOW_MS), "wanted": float(count)}
        return Reason(ReasonCode.LATENCY_HIGH, name, numbers, point.metric)
    if count > load_count and guard.limit < inf:
        return Reason.of(ReasonCode.LATENCY_LIMIT, name, wanted=load_count, allowed=count, limit=guard.limit)
    if count == candidate.current and point is not None and point.ratio > 1.0 and guard.is_flat:
        return Reason(ReasonCode.LATENCY_UNAFFECTED, name, guard.numbers(point), point.metric)
    return None
