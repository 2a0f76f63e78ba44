"""What a planner that looks at intervals says of a pool: it stands until the planner looks again."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from loadline.core.belief.fleet import Model
from loadline.core.belief.pool import Pool
from loadline.core.belief.window import RollingSamples
from loadline.core.report import Code, Opinion, Reason

WAKE_MS: Final = 1_000
"""Most ms between two wakes: whether workers are fresh is judged when a planner wakes, and they go stale in seconds."""


class Recommendation(Struct, frozen=True):
    """A count for a pool, or None to let stand what stands; and why."""

    replicas: int | None
    reasons: tuple[Reason, ...]


class Sized(Struct, frozen=True):
    """What a pool was sized to, and why."""

    replicas: int
    reason: Reason


NOTHING_YET: Final = Recommendation(None, ())


def held(code: Code, pool: Pool, **numbers: float) -> Recommendation:
    """No change, for this reason."""
    return Recommendation(None, (Reason.of(code, pool.name, **numbers),))


def recommended(replicas: int, reasons: tuple[Reason, ...], pool: Pool, now: int) -> Recommendation:
    """A count; what stands at ``now`` (ms) is no wish to keep it, should others change it before the next look."""
    return Recommendation(None if replicas == pool.target_now(now) else replicas, reasons)


def without_data(pool: Pool, known: int) -> Recommendation | None:
    """The hold for a pool of which ``known`` workers say what it is judged by; None where that is at least one."""
    if pool.ready == 0:
        return held(Code.NO_WORKERS, pool)
    if known == 0:
        return held(Code.NO_DATA, pool, fresh=pool.fresh, ready=pool.ready, known=0)
    return None


def shrink_later(model: Model, pool: Pool, start_up_ms: int, now: int) -> Iterator[Reason]:
    """Why a pool whose workers take so long to come is not to shrink yet, by the traffic; nothing where it may."""
    if not model.traffic.complete(now):
        yield Reason(Code.TRAFFIC_INCOMPLETE, pool.name)
    age_ms = now - pool.grown_at_ms
    if pool.grown_at_ms >= 0 and age_ms < start_up_ms:
        # Given up before it has come, a worker was asked for in vain; what called for it may come back.
        yield Reason.of(Code.ADJUSTMENT_INTERVAL, pool.name, age_ms=age_ms, interval_ms=start_up_ms)


def samples_within(window_ms: int) -> RollingSamples:
    """A window of the samples that are younger than it is long: what is exactly ``window_ms`` old has left."""
    return RollingSamples(window_ms - 1)


def opinion(planner: str, model: Model, said: dict[str, Recommendation], inputs: dict[str, float], now: int) -> Opinion:
    """All recommendations as one opinion: targets for the pools that should change, their reasons first."""
    targets = {
        name: one.replicas
        for name, one in said.items()
        if one.replicas is not None and one.replicas != model.pools[name].target_now(now)
    }
    reasons = [reason for one in said.values() for reason in one.reasons]
    reasons.sort(key=lambda reason: reason.pool not in targets)
    return Opinion(planner, targets, tuple(reasons), inputs)
