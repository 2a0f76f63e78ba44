"""Recommendations for single pools, and their combination to the recommendation for a model."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingSamples
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.scalars import COUNT_MAX

WAKE_MS: Final = 1_000
"""Longest time between two wakes: a planner detects stale workers only when it wakes, and they go stale in seconds."""


class PoolRecommendation(Struct, frozen=True):
    """Recommended count of a pool, or None to keep its current target; with the reasons."""

    replicas: int | None
    reasons: tuple[Reason, ...]
    unneeded: int = 0
    """Workers of this count that the load does not need; see ``Recommendation.unneeded``."""
    lasting: int | None = None
    """Workers that the arrivals need; None: unknown. See ``Recommendation.lasting``."""


class PoolSize(Struct, frozen=True):
    """Computed size of a pool, with the reason."""

    replicas: int
    reason: Reason
    limit: ReasonCode | None = None
    """Rule by which the count differs from the one that the load needs; None: it does not."""

    def reasons(self, next_sizing_ms: int, now: int) -> tuple[Reason, ...]:
        """Return the reason, and that of the limit, which holds until the next sizing."""
        if self.limit is None:
            return (self.reason,)
        numbers = {"wanted": self.reason.numbers["wanted"], "allowed": self.replicas}
        left_ms = max(0, next_sizing_ms - now)
        return self.reason, Reason.of(self.limit, self.reason.pool, **numbers, left_ms=left_ms)


NO_RECOMMENDATION: Final = PoolRecommendation(None, ())


def hold(code: ReasonCode, pool: Pool, **numbers: float) -> PoolRecommendation:
    """Recommend to keep the current target of a pool, for this reason."""
    return PoolRecommendation(None, (Reason.of(code, pool.name, **numbers),))


def scale_to(replicas: int, reasons: tuple[Reason, ...], pool: Pool, now: int) -> PoolRecommendation:
    """Recommend a count; one that equals the current target at ``now`` (ms) becomes None.

    The planner repeats its recommendation until the next evaluation: None does not undo what others change meanwhile.
    """
    return PoolRecommendation(None if replicas == pool.effective_target(now) else replicas, reasons)


def hold_without_data(pool: Pool, known: int) -> PoolRecommendation | None:
    """Return the hold of a pool without ready workers, or whose metrics no worker reports; None for other pools.

    Args:
        pool: The pool.
        known: Number of workers that report at least one of its metrics.
    """
    if pool.ready == 0:
        return hold(ReasonCode.NO_WORKERS, pool)
    if known == 0:
        return hold(ReasonCode.NO_DATA, pool, fresh=pool.fresh, ready=pool.ready, known=0)
    return None


def hold_between_changes(pool: Pool, age_ms: int, interval_ms: int) -> Reason:
    """Return the reason of a pool that changed ``age_ms`` ago and must not change within ``interval_ms``."""
    numbers = {"age_ms": age_ms, "interval_ms": interval_ms, "left_ms": interval_ms - age_ms}
    return Reason.of(ReasonCode.ADJUSTMENT_INTERVAL, pool.name, **numbers)


def scale_down_delays(model: Model, pool: Pool, start_up_ms: int, now: int) -> Iterator[Reason]:
    """Yield the reasons that delay a scale-down: incomplete traffic, or workers added less than a start-up ago."""
    if not model.traffic.is_complete(now):
        yield Reason(ReasonCode.TRAFFIC_INCOMPLETE, pool.name)
    age_ms = now - pool.scaled_up_at_ms
    if pool.scaled_up_at_ms >= 0 and age_ms < start_up_ms:
        # A worker cancelled before it is ready was started in vain, and the load that required it may return.
        numbers = {"age_ms": age_ms, "grace_ms": start_up_ms, "left_ms": start_up_ms - age_ms}
        yield Reason.of(ReasonCode.NEW_WORKER_GRACE, pool.name, **numbers)


def recommend_size(  # noqa: PLR0917 - one argument for each input
    size: PoolSize, model: Model, pool: Pool, start_up_ms: int, next_sizing_ms: int, now: int
) -> PoolRecommendation:
    """Recommend the size of a pool; a scale-down waits for its delays."""
    current, reasons = pool.effective_target(now), size.reasons(next_sizing_ms, now)
    if size.replicas < current:
        delays = tuple(scale_down_delays(model, pool, start_up_ms, now))
        if delays:
            return PoolRecommendation(None, (*reasons, *delays))
    return PoolRecommendation(None if size.replicas == current else size.replicas, reasons)


def hold_after_peak(size: PoolSize, pool: Pool, window_ms: int, next_sizing_ms: int, now: int) -> PoolRecommendation:
    """Keep the current target of a pool whose size is for a load peak that has passed, until the next sizing."""
    numbers = {
        "wanted": size.replicas,
        "allowed": pool.effective_target(now),
        "window_ms": window_ms,
        "left_ms": max(0, next_sizing_ms - now),
    }
    return PoolRecommendation(None, (size.reason, Reason.of(ReasonCode.PEAK_OVER, pool.name, **numbers)))


def samples_within(window_ms: int) -> RollingSamples:
    """Return an empty window of samples younger than ``window_ms``; one of exactly that age has left it."""
    return RollingSamples(window_ms - 1)


def recommend(
    planner: str, model: Model, pools: dict[str, PoolRecommendation], inputs: dict[str, float], now: int
) -> Recommendation:
    """Combine the recommendations of all pools: targets for the pools that should change, their reasons first."""
    targets = {
        name: min(one.replicas, COUNT_MAX)  # a quotient by almost nothing; guardrails limit it further
        for name, one in pools.items()
        if one.replicas is not None and one.replicas != model.pools[name].effective_target(now)
    }
    reasons = [reason for one in pools.values() for reason in one.reasons]
    reasons.sort(key=lambda reason: reason.pool not in targets)
    unneeded = {name: one.unneeded for name, one in pools.items() if one.unneeded}
    lasting = {name: one.lasting for name, one in pools.items() if one.lasting is not None}
    return Recommendation(planner, targets, tuple(reasons), inputs, unneeded=unneeded, lasting=lasting)
