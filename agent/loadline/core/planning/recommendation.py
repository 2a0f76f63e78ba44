"""What a planner that looks at intervals says of a pool: it stands until the planner looks again."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingSamples
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation

WAKE_MS: Final = 1_000
"""Most ms between two wakes: whether workers are fresh is judged when a planner wakes, and they go stale in seconds."""


class PoolRecommendation(Struct, frozen=True):
    """A count for a pool, or None to let stand what stands; and why."""

    replicas: int | None
    reasons: tuple[Reason, ...]


class PoolSize(Struct, frozen=True):
    """What a pool was sized to, and why."""

    replicas: int
    reason: Reason


NO_RECOMMENDATION: Final = PoolRecommendation(None, ())


def hold(code: ReasonCode, pool: Pool, **numbers: float) -> PoolRecommendation:
    """No change, for this reason."""
    return PoolRecommendation(None, (Reason.of(code, pool.name, **numbers),))


def scale_to(replicas: int, reasons: tuple[Reason, ...], pool: Pool, now: int) -> PoolRecommendation:
    """A count; what stands at ``now`` (ms) is no wish to keep it, should others change it before the next look."""
    return PoolRecommendation(None if replicas == pool.effective_target(now) else replicas, reasons)


def hold_without_data(pool: Pool, known: int) -> PoolRecommendation | None:
    """The hold for a pool of which ``known`` workers say what it is judged by; None where that is at least one."""
    if pool.ready == 0:
        return hold(ReasonCode.NO_WORKERS, pool)
    if known == 0:
        return hold(ReasonCode.NO_DATA, pool, fresh=pool.fresh, ready=pool.ready, known=0)
    return None


def scale_down_delays(model: Model, pool: Pool, start_up_ms: int, now: int) -> Iterator[Reason]:
    """Why a pool whose workers take so long to come is not to shrink yet, by the traffic; nothing where it may."""
    if not model.traffic.is_complete(now):
        yield Reason(ReasonCode.TRAFFIC_INCOMPLETE, pool.name)
    age_ms = now - pool.scaled_up_at_ms
    if pool.scaled_up_at_ms >= 0 and age_ms < start_up_ms:
        # Given up before it has come, a worker was asked for in vain; what called for it may come back.
        yield Reason.of(ReasonCode.ADJUSTMENT_INTERVAL, pool.name, age_ms=age_ms, interval_ms=start_up_ms)


def recommend_size(size: PoolSize, model: Model, pool: Pool, start_up_ms: int, now: int) -> PoolRecommendation:
    """Recommend the size of a pool; a scale-down waits for its delays."""
    current = pool.effective_target(now)
    if size.replicas < current:
        delays = tuple(scale_down_delays(model, pool, start_up_ms, now))
        if delays:
            return PoolRecommendation(None, (size.reason, *delays))
    return PoolRecommendation(None if size.replicas == current else size.replicas, (size.reason,))


def hold_after_peak(size: PoolSize, pool: Pool, window_ms: int, now: int) -> PoolRecommendation:
    """Hold a pool that is sized for a peak which is over."""
    numbers = {"wanted": size.replicas, "allowed": pool.effective_target(now), "window_ms": window_ms}
    return PoolRecommendation(None, (size.reason, Reason.of(ReasonCode.PEAK_OVER, pool.name, **numbers)))


def samples_within(window_ms: int) -> RollingSamples:
    """A window of the samples that are younger than it is long: what is exactly ``window_ms`` old has left."""
    return RollingSamples(window_ms - 1)


def recommend(
    planner: str, model: Model, said: dict[str, PoolRecommendation], inputs: dict[str, float], now: int
) -> Recommendation:
    """All recommendations as one opinion: targets for the pools that should change, their reasons first."""
    targets = {
        name: one.replicas
        for name, one in said.items()
        if one.replicas is not None and one.replicas != model.pools[name].effective_target(now)
    }
    reasons = [reason for one in said.values() for reason in one.reasons]
    reasons.sort(key=lambda reason: reason.pool not in targets)
    return Recommendation(planner, targets, tuple(reasons), inputs)
