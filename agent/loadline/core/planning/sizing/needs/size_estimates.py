"""Estimates of each estimator of the planner auto: workers that are needed, and how far its data supports that.

The confidence is 1 minus the half-width of the 95 % interval of the estimate, relative to it: ``1 - 2 * error`` for a
relative standard error, at least 0. Errors of a demand and of the capacity that divides it add up in squares.
"""

from collections.abc import Iterator
from math import hypot, inf, sqrt
from typing import Final

from loadline.core.planning.demand.forecast_record import ForecastRecord
from loadline.core.planning.sizing.evidence.latency import KV_FULL
from loadline.core.planning.sizing.needs.pool_needs import SAMPLES, PoolLoad
from loadline.core.vocabulary.reasons import Estimator, SizeEstimate

_DEVIATION: Final = 1.25
"""Ratio of a standard deviation to a mean absolute deviation, for normal errors."""
_UNCHECKED: Final = 0.25
"""Relative error of a profile that no observation confirms: a confidence of one half."""


def confidence(error: float) -> float:
    """Return the confidence (0..1) of an estimate with a relative standard error."""
    return max(0.0, 1.0 - 2.0 * error)


def size_estimates(load: PoolLoad, profiled: float, learned: float, record: ForecastRecord) -> Iterator[SizeEstimate]:
    """Yield an estimate for each estimator, also for those that have none, with the cause.

    Args:
        load: The pool.
        profiled: Requests/s that a worker serves by the profile of its engine; 0: it has none.
        learned: Requests/s that a worker serves by the curves that were learned; 0: unknown.
        record: Forecasts next to the arrivals that came.
    """
    fitted_error = _fitted_error(load, learned)
    yield from _demand(load, _profile_error(profiled, learned) if profiled else fitted_error, record)
    yield _backlog(load)
    yield _profile(load, profiled, learned)
    yield _fitted(load, learned, fitted_error)
    yield _saturated(load)
    yield _latency(load)
    yield _occupancy(load)


def _demand(load: PoolLoad, capacity_error: float, record: ForecastRecord) -> Iterator[SizeEstimate]:
    """Yield the estimates by the lasting arrivals and by a recent change."""
    name, arrivals, serves = load.pool.name, load.arrivals, load.serves
    if not arrivals.unchanged or not serves:
        missing = "the arrivals are" if not arrivals.unchanged else "the capacity of a worker is"
        yield SizeEstimate(name, "forecast", basis=f"{missing} not known yet")
        yield SizeEstimate(name, "surge", basis=f"{missing} not known yet")
        return
    error = arrivals.error(SAMPLES[1])
    if record.observed_requests:
        error = max(error, _DEVIATION * record.error_requests / record.observed_requests)
    seconds = min(SAMPLES[1], arrivals.unchanged)
    sources = f"{seconds} s of arrivals" + (" and the requests in the batches" if load.staying else "")
    basis = f"{load.lasting_per_s:.2f} requests/s are forecast from {sources}; a worker serves {serves:.2f}"
    yield _estimate(load, "forecast", load.lasting_per_s / serves, hypot(error, capacity_error), basis)
    if arrivals.rise is not None:
        age_s, ended = (load.now - arrivals.rise.began_ms) / 1_000.0, len(arrivals.bursts.ended)
        basis = f"the rise {age_s:.0f} s ago is not counted yet: most of the last {ended} were over within a start-up"
        yield SizeEstimate(name, "surge", basis=basis)
        return
    if arrivals.unchanged >= SAMPLES[0]:
        basis = f"the arrivals have not changed beyond chance in the last {SAMPLES[0]} s"
        yield SizeEstimate(name, "surge", basis=basis)
        return
    basis = (
        f"{load.growing_per_s:.2f} requests/s since a change {arrivals.unchanged} s ago; a worker serves {serves:.2f}"
    )
    error = hypot(arrivals.error(SAMPLES[0]), capacity_error)
    yield _estimate(load, "surge", load.growing_per_s / serves, error, basis)


def _backlog(load: PoolLoad) -> SizeEstimate:
    queues, needs = load.state.evidence.queues, load.needs_by_backlog()
    if needs is None:
        known = f"at most {queues.longest_queue} requests wait at a worker" if load.serves else "no capacity is known"
        return SizeEstimate(load.pool.name, "backlog", basis=f"there is no backlog to size for: {known}")
    reporting = load.pool.load.queue_reporting / load.pool.ready
    error = hypot((1.0 - reporting) / 2.0, _fitted_error(load, load.serves))
    basis = f"up to {queues.longest_queue} requests wait at each of {queues.behind} workers"
    return _estimate(load, "backlog", needs, error, basis)


def _profile(load: PoolLoad, profiled: float, learned: float) -> SizeEstimate:
    if not profiled:
        return SizeEstimate(load.pool.name, "profile", basis="the pool has no usable profile, or no lengths are known")
    checked = f"{learned:.2f} were learned" if learned else "none was observed yet"
    basis = f"a worker serves {profiled:.2f} requests/s by the profile; {checked}"
    return _estimate(load, "profile", load.growing_per_s / profiled, _profile_error(profiled, learned), basis)


def _profile_error(profiled: float, learned: float) -> float:
    """Return the error that makes the interval around a profile reach what was learned."""
    return abs(profiled - learned) / (2.0 * max(profiled, learned)) if learned else _UNCHECKED


def _fitted(load: PoolLoad, learned: float, error: float) -> SizeEstimate:
    curve = load.state.evidence.curve(load.pool.knobs.role)
    points = sum(one.points for one in curve.bins.values())
    if not learned:
        return SizeEstimate(load.pool.name, "fitted", basis=f"{points} windows of a settled fleet are too few")
    basis = f"a worker serves {learned:.2f} requests/s by {points} windows at {len(curve.bins)} rates"
    if load.state.is_by_prompts:
        prompt_ms = 1_000.0 * load.state.evidence.speed.ms_per_token
        basis = f"a worker serves {learned:.2f} requests/s, as prompts take {prompt_ms:.0f} ms per 1,000 tokens"
    return _estimate(load, "fitted", load.growing_per_s / learned, error, basis)


def _fitted_error(load: PoolLoad, learned: float) -> float:
    """Return the error of a learned capacity: the spread of its points, and the part that is extrapolated."""
    if load.state.is_by_prompts:
        return load.state.evidence.speed.error
    role, work = load.pool.knobs.role, load.lengths.expected_work(load.pool.knobs.role)
    return load.state.evidence.curve(role).error(learned * work) if work else inf


def _saturated(load: PoolLoad) -> SizeEstimate:
    need, span = load.saturated_need(), load.state.evidence.queues.queued
    if need is None:
        return SizeEstimate(load.pool.name, "saturated", basis="not all workers have had a queue for 3 s")
    served = need.reason.numbers["served"]
    counted = served * span.span_ms(load.now) / 1_000.0
    basis = f"{load.pool.ready} full workers serve {served:.2f} requests/s"
    return _estimate(load, "saturated", need.workers, 1.0 / sqrt(counted) if counted else inf, basis)


def _latency(load: PoolLoad) -> SizeEstimate:
    """Return the estimate by the latest latencies: the load that the curve gives at the objective."""
    pool, evidence, objectives = load.pool, load.state.evidence, load.model.objectives
    role, prefill = pool.knobs.role, pool.knobs.role == "prefill"
    curve = evidence.curve(role)
    limit_ms = evidence.ttft_limit_ms(objectives) if prefill else evidence.itl_limit_ms(role, objectives)
    if not curve.latest_rate:
        return SizeEstimate(pool.name, "latency", basis="no latency of a settled fleet has been measured yet")
    within = curve.rate_within(limit_ms, rate_max=10.0 * curve.latest_rate)
    if load.state.is_by_prompts or not 0.0 < within < inf:
        return SizeEstimate(pool.name, "latency", basis="the latency does not rise with the load")
    basis = f"mean {'TTFT' if prefill else 'ITL'} {curve.latest_ms:.1f} ms of the {limit_ms:.1f} ms to keep to"
    workers = pool.ready * curve.latest_rate / within
    return _estimate(load, "latency", workers, curve.error(within), basis)


def _occupancy(load: PoolLoad) -> SizeEstimate:
    pool = load.pool
    if pool.knobs.role == "prefill":
        return SizeEstimate(pool.name, "occupancy", basis="prompts are counted by the demand, not by caches")
    full, reporting = load.state.evidence.kv_workers(pool), pool.load.kv_reporting / pool.ready
    basis = f"KV caches of {full:.2f} workers are in use, {KV_FULL:.0%} of a cache may be; {reporting:.0%} report"
    return _estimate(load, "occupancy", full / KV_FULL, (1.0 - reporting) / 2.0, basis)


def _estimate(load: PoolLoad, estimator: Estimator, workers: float, error: float, basis: str) -> SizeEstimate:
    return SizeEstimate(load.pool.name, estimator, round(workers, 3), round(confidence(error), 3), basis)
