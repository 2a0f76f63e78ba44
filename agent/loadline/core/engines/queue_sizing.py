"""The largest rate of requests that an engine serves within its targets."""

from collections.abc import Callable, Sequence
from math import inf, log
from typing import Final, Literal

from msgspec import Struct

from loadline.core.engines.queueing import EngineQueue
from loadline.core.engines.roots import last_below

Bound = Literal["ttft", "itl", "tokens", "saturation"]

PRECISION: Final = 1e-6
"""Of a rate, relative. A thousandth below saturation, waits are a thousand times as sensitive."""
ROUNDING: Final = 1e-6
"""What a latency may miss its target by, relative: targets are often written as a measured latency, rounded."""
TOKENS_SHARE: Final = 0.9
"""Share of the highest rate that is used of an engine with a target of tokens, as in the original."""
FARTHEST: Final = 1e-6
"""Of what is allowed: below it all is as good, and logarithms of next to nothing would lead the search astray."""


class Targets(Struct, frozen=True):
    """What the requests of an engine are to meet.

    Raises:
        ValueError: A target is no positive number, or the attainment is not below 1.
    """

    ttft_ms: float = inf
    itl_ms: float = inf
    tokens_per_s: float = 0.0
    """Above 0: the fleet is sized for so many tokens, whatever their latency, and a tenth of it stays free."""
    attainment: float = 0.0
    """Share (0..1) of the requests that are to meet the latencies; 0: their means are to."""

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "itl_ms"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"target {name} is {getattr(self, name)}: write a number of ms above 0")
        if not 0.0 <= self.tokens_per_s < inf:
            raise ValueError(
                f"target tokens_per_s is {self.tokens_per_s}: write a number of tokens a second, at least 0"
            )
        if not 0.0 <= self.attainment < 1.0:
            raise ValueError(f"attainment is {self.attainment}: write 0 for means, or a share below 1")


class MaxRate(Struct, frozen=True):
    """The largest rate, and what it is bound by."""

    requests_per_s: float
    """0: not even the least rate that is sized for meets the target that ``bound`` names."""
    bound: Bound
    lowest_ms: float = 0.0
    """Of a target that cannot be met: the least that its latency can be."""


class LatencyLimit(Struct, frozen=True):
    """One latency of a request that joins a batch of n: ``fixed_ms + each_ms * n``, after a wait or without one."""

    bound: Literal["ttft", "itl"]
    target_ms: float
    fixed_ms: float
    each_ms: float
    includes_wait: bool

    def largest_batch(self, batch_requests: int) -> int:
        """The largest batch whose latency without a wait is within the target; 0: not even that of one request."""
        spare_ms = self.target_ms * (1.0 + ROUNDING) - self.fixed_ms
        if spare_ms < self.each_ms:
            return 0
        return int(min(batch_requests, spare_ms / self.each_ms)) if self.each_ms else batch_requests

    def wait_budget_ms(self, batch_requests: int) -> float:
        """What the target leaves for a wait to a request that joins a full batch; endless where waits do not count."""
        return max(0.0, self.target_ms - self.fixed_ms - self.each_ms * batch_requests) if self.includes_wait else inf


def latency_limits(queue: EngineQueue, targets: Targets) -> tuple[LatencyLimit, LatencyLimit]:
    """The limits of TTFT and ITL."""
    times = queue.times
    return (
        LatencyLimit("ttft", targets.ttft_ms, queue.prefill_fixed_ms, queue.prefill_each_ms, includes_wait=True),
        LatencyLimit("itl", targets.itl_ms, times.alpha, times.beta, includes_wait=False),
    )


def max_rate(queue: EngineQueue, targets: Targets) -> MaxRate:
    """The largest rate at which an engine meets all targets; at most ``PRECISION`` too low, and never too high."""
    limits = latency_limits(queue, targets)
    return combine_rates(queue, targets, [largest_rate(queue, limit, targets.attainment) for limit in limits])


def combine_rates(queue: EngineQueue, targets: Targets, rates: Sequence[float]) -> MaxRate:
    """What follows from the largest rates by the limits of TTFT and ITL; 0: there is none."""
    share = TOKENS_SHARE if targets.tokens_per_s else 1.0
    found = MaxRate(share * queue.rate_range_per_s[1], "tokens" if targets.tokens_per_s else "saturation")
    for limit, rate in zip(latency_limits(queue, targets), rates, strict=True):
        if rate <= 0.0:
            return MaxRate(0.0, limit.bound, _least_ms(queue, limit, targets.attainment))
        if rate < found.requests_per_s:
            found = MaxRate(rate, limit.bound)
    return found


def largest_rate(queue: EngineQueue, limit: LatencyLimit, attainment: float) -> float:
    """The largest rate within one limit; 0 where there is none."""
    least, most = queue.rate_range_per_s
    if limit.target_ms == inf:
        return most
    excess = _excess(queue, limit, attainment)
    at_most = excess(most)
    if at_most <= ROUNDING:
        return most
    at_least = excess(least)
    if at_least > 0.0:
        return least if at_least <= ROUNDING else 0.0
    return last_below(excess, (least, at_least), (most, at_most), PRECISION)


def _excess(queue: EngineQueue, limit: LatencyLimit, attainment: float) -> Callable[[float], float]:
    """Log of what is missed at a rate, by the target: the mean latency, or the share of requests that are late."""
    if not attainment:
        return lambda rate: log(max(FARTHEST, _mean_ms(queue, limit, rate) / limit.target_ms))
    late, batch = 1.0 - attainment, limit.largest_batch(queue.batch_max)
    if batch < queue.batch_max:
        return lambda rate: log(max(FARTHEST, queue.share_above(rate, batch) / late))
    if not limit.includes_wait:
        return lambda _: -inf
    wait_ms = limit.wait_budget_ms(queue.batch_max)
    return lambda rate: log(max(FARTHEST, queue.share_waiting_over(rate, wait_ms) / late))


def _mean_ms(queue: EngineQueue, limit: LatencyLimit, rate: float) -> float:
    batch, waiting_ms = queue.means(rate)
    return limit.fixed_ms + limit.each_ms * batch + (waiting_ms if limit.includes_wait else 0.0)


def _least_ms(queue: EngineQueue, limit: LatencyLimit, attainment: float) -> float:
    rate = queue.rate_range_per_s[0]
    if not attainment:
        return _mean_ms(queue, limit, rate)
    return queue.ttft_quantile_ms(rate, attainment) if limit.includes_wait else queue.itl_quantile_ms(rate, attainment)
