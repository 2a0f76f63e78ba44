"""Limits of a shrink: when it waits, and how far it goes at once."""

from math import ceil
from typing import Final

from msgspec.structs import replace

from loadline.core.planning.recommendation import PoolRecommendation
from loadline.core.planning.sizing.need import whole
from loadline.core.planning.sizing.needs.pool_needs import LIGHT, SAMPLES, UNPROVEN_BY_ONE, PoolLoad, PoolNeeds
from loadline.core.vocabulary.reasons import Reason, ReasonCode

_WARM_UP_MS: Final = 30_000
_WARM_UP_START_UPS: Final = 3
"""Time from the first estimate of the capacity to the first shrink, absolute and in start-up times: a first minute
tells little of the next one."""
_UNPROVEN_RATIO: Final = 1.15
"""Ratio to a load that was seen to be good up to which a shrink of any number of workers is safe."""
_TRIED_MAX: Final = 0.65
"""Part of what a worker serves up to which a load is tried. At 0.7, chance let one of two workers grow again within 10
min in 7 of 20 trials, at 0.65 in 1 of 23."""
_TRIED_PREFILL_MAX: Final = 0.8
"""The same for prefill, where what a worker serves is a lower bound: it rises with the rates that are seen."""


def shrink(load: PoolLoad, needs: PoolNeeds, reason: Reason) -> PoolRecommendation:
    """Recommend the smallest count that every limit allows.

    Args:
        load: Pool with the arrivals that it has to serve.
        needs: Its needs, which fewer workers meet.
        reason: Reason of these needs, which comes first in the recommendation.
    """
    current, allowed = load.pool.effective_target(load.now), max(needs.keep, needs.wanted)
    delay = _delay(load, allowed)
    if delay is not None:
        load.state.unproven_shrink.forget()
        return PoolRecommendation(None, (reason, delay))
    reasons = [reason]
    for code, limit in _LIMITS.items():
        replicas_min, numbers = limit(load, needs, allowed)
        if replicas_min > allowed:
            reasons.append(Reason.of(code, load.pool.name, wanted=allowed, allowed=replicas_min, **numbers))
            allowed = replicas_min
    if allowed < current:
        load.state.reversed_shrink.record_shrink(load.now)
    return PoolRecommendation(None if allowed == current else allowed, tuple(reasons))


def with_lasting(load: PoolLoad, needs: PoolNeeds, found: PoolRecommendation, lull_ms: int) -> PoolRecommendation:
    """Add what the load needed lately, and the workers that others may have while GPUs are short, if the load is known.

    ``lull_ms`` is the length of the last lull if it was short, else 0.
    """
    unneeded, now = load.state.unneeded, load.now
    if not (load.serves and load.model.traffic.is_complete(now)):
        return found
    current = load.pool.effective_target(now)
    kept = max(whole(needs.lasting), needs.rising, _reversed(load, needs, 0)[0])
    needed = max(kept, needs.wanted, _passed_on(load, needs, 0)[0])
    unneeded.update(needed, kept, current, lull_ms, now)
    workers = unneeded.among(current if found.replicas is None else found.replicas, now)
    # Growth counts while it is expected: beside its highest forecast, what a pool has would seem little for minutes.
    return replace(found, unneeded=workers, lasting=max(unneeded.lasting.max(now) or 0, needs.without_backlog))


def _delay(load: PoolLoad, wanted: int) -> Reason | None:
    """Return why the pool does not shrink at all yet; None if it may."""
    pool, state, now = load.pool, load.state, load.now
    warm_ms = now - state.known_since_ms
    start_ups = 1 if state.is_inherited else _WARM_UP_START_UPS
    needed_ms = max(_WARM_UP_MS, start_ups * load.start_up_ms)
    if warm_ms < needed_ms:
        counts = {"wanted": wanted, "allowed": pool.effective_target(now), "age_ms": warm_ms}
        return Reason.of(ReasonCode.WARM_UP, pool.name, **counts, needed_ms=needed_ms, left_ms=needed_ms - warm_ms)
    if not load.model.traffic.is_complete(now):
        return Reason(ReasonCode.TRAFFIC_INCOMPLETE, pool.name)
    pending = pool.expected_workers(now) - pool.ready
    return Reason.of(ReasonCode.WORKERS_PENDING, pool.name, pending=pending) if pending else None


def _rising(load: PoolLoad, needs: PoolNeeds, _allowed: int) -> tuple[int, dict[str, float]]:
    """Return the count for the arrivals after a start-up if they go on to rise."""
    return needs.rising, {"growth": load.likely_growth}


def _held(load: PoolLoad, _needs: PoolNeeds, _allowed: int) -> tuple[int, dict[str, float]]:
    """Return the highest count that was needed within the hold, and the time that it lasts."""
    hold, current, now = load.state.hold, load.pool.effective_target(load.now), load.now
    replicas_min = min(current, hold.held(load.capacity, now))
    return replicas_min, {"window_ms": hold.needed.window_ms, "left_ms": hold.left_ms(replicas_min, load.capacity, now)}


def _reversed(load: PoolLoad, needs: PoolNeeds, _allowed: int) -> tuple[int, dict[str, float]]:
    """Return the smallest count to which a shrink was not reversed."""
    before, now = load.state.reversed_shrink, load.now
    kept = before.replicas_min(needs.requests_per_s, load.arrivals.error(SAMPLES[1]), now)
    replicas_min = min(load.pool.effective_target(now), kept)
    return replicas_min, {"per_worker": before.per_worker, "left_ms": before.left_ms(now)}


def _unproven(load: PoolLoad, needs: PoolNeeds, allowed: int) -> tuple[int, dict[str, float]]:
    """Return the smallest count that leaves no worker far beyond a load that was seen to be good, or one to try."""
    replicas_min = _unproven_min(load, needs)
    if _may_try(load, needs):
        replicas_min = min(replicas_min, load.pool.effective_target(load.now) - 1)
    return replicas_min, {"rate": needs.requests_per_s / max(1, allowed), "proven": load.proven_per_s}


def _unproven_min(load: PoolLoad, needs: PoolNeeds) -> int:
    current, rate, proven = load.pool.effective_target(load.now), needs.requests_per_s, load.proven_per_s
    promised = load.promised_per_s
    replicas_min = ceil(max(needs.lasting, rate / promised) / LIGHT) if needs.lasting else 0
    if proven:
        by_one = max(current - 1, ceil(rate / (UNPROVEN_BY_ONE * proven)))
        seen = min(by_one, ceil(rate / (_UNPROVEN_RATIO * proven)))
        replicas_min = min(replicas_min, max(seen, ceil(rate / promised)))
    return min(current, replicas_min)


def _may_try(load: PoolLoad, needs: PoolNeeds) -> bool:
    """Return True if one worker fewer may serve a load that was not seen, as far as the loads within SLO promise."""
    fewer = load.pool.effective_target(load.now) - 1
    tried_max = _TRIED_PREFILL_MAX if load.pool.knobs.role == "prefill" else _TRIED_MAX
    per_worker_max = min(load.promised_per_s, tried_max * load.serves)
    return fewer > 0 < load.proven_per_s and needs.requests_per_s < fewer * per_worker_max


def _untried(load: PoolLoad, needs: PoolNeeds, allowed: int) -> tuple[int, dict[str, float]]:
    """Return the present count until an unproven shrink by one worker is worth a try, and record that."""
    current, rate, trial = load.pool.effective_target(load.now), needs.requests_per_s, load.state.unproven_shrink
    if allowed != current - 1 or _unproven_min(load, needs) < current:
        trial.forget()
        return 0, {}
    failure_worker_s = rate * load.start_up_ms / 1_000.0 * load.cost_of_miss / load.serves
    left_ms = trial.left_ms(current, failure_worker_s, load.now)
    if not left_ms:
        trial.record_trial(current, load.now)
    rates = {"rate": rate / allowed, "proven": load.proven_per_s}
    return current if left_ms else 0, rates | {"left_ms": left_ms}


def _passed_on(load: PoolLoad, needs: PoolNeeds, _allowed: int) -> tuple[int, dict[str, float]]:
    """Return the count that serves what prefill workers pass on; 0 if others do, or none of them has a backlog."""
    replicas_min = whole(load.passed_on_per_s / load.serves) if needs.keep and load.passed_on_per_s else 0
    return min(load.pool.effective_target(load.now), replicas_min), {"passed_on_per_s": load.passed_on_per_s}


_LIMITS: Final = {
    ReasonCode.ARRIVALS_RISING: _rising,
    ReasonCode.HIGHEST_RECOMMENDATION: _held,
    ReasonCode.SHRINK_REVERSED: _reversed,
    ReasonCode.UNPROVEN_LOAD: _unproven,
    ReasonCode.BACKLOG_PASSED_ON: _passed_on,
    ReasonCode.TRIAL_PENDING: _untried,  # last: a shrink is tried only if nothing else holds it
}
