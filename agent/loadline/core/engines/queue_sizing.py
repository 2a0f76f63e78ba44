"""Maximum request rate of an engine within its latency targets."""

from collections.abc import Callable
from math import inf, log
from typing import Final, Literal

from msgspec import Struct

from loadline.core.engines.queueing import EngineQueue
from loadline.core.engines.roots import last_below

Bound = Literal["ttft", "itl", "tokens", "saturation"]

_PRECISION: Final = 1e-6
"""Relative precision of rates; 0.1 % below saturation, waits are a thousand times as sensitive."""
ROUNDING: Final = 1e-6
"""Relative tolerance of targets, which are often measured latencies, rounded."""
TOKENS_SHARE: Final = 0.9
"""Fraction of the highest rate used with a target of tokens per second, as upstream."""
_RATIO_MIN: Final = 1e-6
"""Ratio of actual to allowed latency below which the search does not distinguish values."""


class Targets(Struct, frozen=True):
    """Latency and throughput targets of the requests of an engine.

    Raises:
        ValueError: A target is not a positive number, or the attainment is not below 1.
    """

    ttft_ms: float = inf
    itl_ms: float = inf
    tokens_per_s: float = 0.0
    """Above 0: tokens per second to provide, with 10 % headroom."""
    attainment: float = 0.0
    """Fraction (0..1) of requests that must meet the latencies; 0: only their mean latencies must."""

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "itl_ms"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"target {name} is {getattr(self, name)}: write a number of ms above 0")
        if not 0.0 <= self.tokens_per_s < inf:
            raise ValueError(
                f"target tokens_per_s is {self.tokens_per_s}: write a number of tokens per second, at least 0"
            )
        if not 0.0 <= self.attainment < 1.0:
            raise ValueError(f"attainment is {self.attainment}: write 0 for means, or a fraction below 1")


class MaxRate(Struct, frozen=True):
    """A maximum rate and the target that limits it."""

    requests_per_s: float
    """Maximum rate; 0: even the lowest rate misses the target ``bound``."""
    bound: Bound
    lowest_ms: float = 0.0
    """Lowest possible latency of a target that cannot be met."""


class _LatencyLimit(Struct, frozen=True):
    """Target of one latency: ``fixed_ms + each_ms * n`` in a batch of n, plus the wait if ``includes_wait``."""

    bound: Literal["ttft", "itl"]
    target_ms: float
    fixed_ms: float
    each_ms: float
    includes_wait: bool

    def largest_batch(self, batch_requests: int) -> int:
        """Return the largest batch within the target without a wait; 0 if one request exceeds it."""
        budget_ms = self.target_ms * (1.0 + ROUNDING) - self.fixed_ms
        if budget_ms < self.each_ms:
            return 0
        return int(min(batch_requests, budget_ms / self.each_ms)) if self.each_ms else batch_requests

    def wait_budget_ms(self, batch_requests: int) -> float:
        """Return the wait that the target leaves in a full batch; infinite if waits do not count."""
        return max(0.0, self.target_ms - self.fixed_ms - self.each_ms * batch_requests) if self.includes_wait else inf


def max_rate(queue: EngineQueue, targets: Targets) -> MaxRate:
    """Return the maximum rate within all targets: at most ``_PRECISION`` too low, never too high."""
    share = TOKENS_SHARE if targets.tokens_per_s else 1.0
    found = MaxRate(share * queue.rate_range_per_s[1], "tokens" if targets.tokens_per_s else "saturation")
    for limit in _latency_limits(queue, targets):
        rate = _largest_rate(queue, limit, targets.attainment)
        if rate <= 0.0:
            return MaxRate(0.0, limit.bound, _lowest_ms(queue, limit, targets.attainment))
        if rate < found.requests_per_s:
            found = MaxRate(rate, limit.bound)
    return found


def _latency_limits(queue: EngineQueue, targets: Targets) -> tuple[_LatencyLimit, _LatencyLimit]:
    """Return the limits of TTFT and ITL."""
    times = queue.times
    return (
        _LatencyLimit("ttft", targets.ttft_ms, queue.prefill_fixed_ms, queue.prefill_each_ms, includes_wait=True),
        _LatencyLimit("itl", targets.itl_ms, times.alpha, times.beta, includes_wait=False),
    )


def _largest_rate(queue: EngineQueue, limit: _LatencyLimit, attainment: float) -> float:
    """Return the maximum rate within one limit; 0 if unreachable."""
    lowest, highest = queue.rate_range_per_s
    if limit.target_ms == inf:
        return highest
    excess = _excess(queue, limit, attainment)
    at_highest = excess(highest)
    if at_highest <= ROUNDING:
        return highest
    at_lowest = excess(lowest)
    if at_lowest > 0.0:
        return lowest if at_lowest <= ROUNDING else 0.0
    return last_below(excess, (lowest, at_lowest), (highest, at_highest), _PRECISION)


def _excess(queue: EngineQueue, limit: _LatencyLimit, attainment: float) -> Callable[[float], float]:
    """Return the log ratio of actual to allowed at a rate: of the mean latency, or of the fraction of late requests."""
    if not attainment:
        return lambda rate: log(max(_RATIO_MIN, _mean_ms(queue, limit, rate) / limit.target_ms))
    late, batch = 1.0 - attainment, limit.largest_batch(queue.batch_max)
    if batch < queue.batch_max:
        return lambda rate: log(max(_RATIO_MIN, queue.share_above(rate, batch) / late))
    if not limit.includes_wait:
        return lambda _: -inf
    wait_ms = limit.wait_budget_ms(queue.batch_max)
    return lambda rate: log(max(_RATIO_MIN, queue.share_waiting_over(rate, wait_ms) / late))


def _mean_ms(queue: EngineQueue, limit: _LatencyLimit, rate: float) -> float:
    state = queue.steady_state(rate)
    return limit.fixed_ms + limit.each_ms * state.batch_requests + (state.waiting_ms if limit.includes_wait else 0.0)


def _lowest_ms(queue: EngineQueue, limit: _LatencyLimit, attainment: float) -> float:
    rate = queue.rate_range_per_s[0]
    if not attainment:
        return _mean_ms(queue, limit, rate)
    return queue.ttft_quantile_ms(rate, attainment) if limit.includes_wait else queue.itl_quantile_ms(rate, attainment)
