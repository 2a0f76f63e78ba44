"""Queueing model of an engine: Poisson arrivals, a batch with state-dependent service rates, and a finite queue.

The model is the state-dependent M/M/1/K queue of llm-d's Workload Variant Autoscaler (0.4.1). A request in a batch of
``n`` takes ``prefill + steps * iteration = fixed + each * n`` ms, so ``n`` requests leave at a rate of
``n / (fixed + each * n)``. With a full batch, the rate is constant, so the states of the queue have geometric weights,
which are summed in closed form: a queue of 2,560 costs as much as one of 8. Beyond upstream, overload and constant
service times are supported, and waiting times have a distribution.

The batch that a request joins, itself included, has the distribution that Poisson arrivals see (PASTA). Its mean, the
effective concurrency upstream, gives the mean times. A request that finds the batch full with ``j`` requests waiting
waits for ``j + 1`` departures, a sum of exponential times. Percentiles follow from both distributions.
"""

from functools import cached_property
from itertools import accumulate
from math import exp, lgamma, log, log1p, sqrt
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import FloatArray
from loadline.core.engines.geometric import geometric_sum, queue_weights
from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.roots import last_below

BATCH_MAX: Final = 16_384
"""Largest supported batch, in requests; each one is a state of the model."""
QUEUE_MAX: Final = 1_000_000
"""Largest supported queue, in requests."""
_RATE_MARGIN: Final = 0.001
_SLACK_MIN: Final = 0.001
"""Slack below which the recursion of the means amplifies rounding errors."""
_RATE_MAX: Final = 1e9
_MS_MAX: Final = 1e12
_BATCH_BOUND_IGNORED: Final = -40.0
"""Log of a fraction that is lost in a 64-bit sum; the largest batch is then treated as infinite."""
QUEUE_LENGTH_IGNORED: Final = -18.0
"""Log of the relative error of the waiting-time tail when a long queue is treated as infinite: 1e-8."""
_WAIT_MIN_MS: Final = 1e-9
_PRECISION: Final = 1e-6
_TINY: Final = 1e-300
"""Smallest argument of a logarithm."""
_DEVIATIONS: Final = 7.0
"""Standard deviations around the mean that contain a Poisson count, but for 1e-11."""


class SteadyState(Struct, frozen=True):
    """Steady state of an engine at a rate of arrivals; means over the accepted requests."""

    refused: float
    """Fraction (0..1) of arrivals that find the queue full."""
    batch_requests: float
    """Mean batch that a request joins, itself included: the effective concurrency."""
    waiting_ms: float


class EngineQueue:
    """Queueing model of one engine with requests of given mean lengths.

    Args:
        times: Linear latency parameters of the engine.
        isl_tokens: Mean prompt length; 0: another engine computes prompts, and there is no prefill.
        osl_tokens: Mean output length. The first token comes from prefill, or from a decode iteration without it.
        max_batch_requests: Largest batch.
        max_queue_requests: Longest queue; further requests are refused.

    Raises:
        ValueError: An argument is out of bounds, or the time of a request is 0 or too long.
    """

    def __init__(
        self,
        times: LinearTimes,
        isl_tokens: float,
        osl_tokens: float,
        max_batch_requests: int,
        max_queue_requests: int,
    ) -> None:
        _check("isl_tokens", isl_tokens, 0.0, 1e9, "tokens")
        _check("osl_tokens", osl_tokens, 1.0, 1e9, "tokens")
        _check("max_batch_requests", max_batch_requests, 1, BATCH_MAX, "requests")
        _check("max_queue_requests", max_queue_requests, 0, QUEUE_MAX, "requests")
        self.times = times
        self.batch_max, self.queue_max = int(max_batch_requests), int(max_queue_requests)
        """Largest batch and longest queue, in requests."""
        self.prefill_fixed_ms, self.prefill_each_ms = (
            (times.gamma, times.delta * isl_tokens) if isl_tokens else (0.0, 0.0)
        )
        steps = osl_tokens - 1.0 if isl_tokens or osl_tokens > 1.0 else 1.0
        self.fixed_ms = self.prefill_fixed_ms + steps * times.alpha
        self.each_ms = self.prefill_each_ms + steps * times.beta
        longest = self.fixed_ms + self.each_ms * self.batch_max
        if not 1.0 / _MS_MAX < self.fixed_ms + self.each_ms <= longest < _MS_MAX:
            raise ValueError(f"a request would take {longest:g} ms: correct the latency parameters or the lengths")
        self.rate_max = self.batch_max / longest
        """Departures per ms with a full batch."""

    @property
    def rate_range_per_s(self) -> tuple[float, float]:
        """Lowest and highest rate considered in sizing, as upstream.

        0.1 % of the departures with a batch of one, and 0.1 % below the saturation rate.
        """
        return _RATE_MARGIN * 1_000.0 / (self.fixed_ms + self.each_ms), (1.0 - _RATE_MARGIN) * 1_000.0 * self.rate_max

    def steady_state(self, requests_per_s: float) -> SteadyState:
        """Return the steady state at a rate of arrivals, which may exceed the capacity.

        Raises:
            ValueError: The rate is not above 0, or above 1e9.
        """
        rate = _per_ms(requests_per_s)
        full_log, batch, (lead, last, total, moment) = self._joined(rate)
        full = exp(full_log)
        refused = full * last / (lead + full * total)
        return SteadyState(refused, batch, full * moment / (rate * (lead + full * (total - last))))

    def share_above(self, requests_per_s: float, batch_requests: float) -> float:
        """Return the fraction (0..1) of accepted requests in a batch above ``batch_requests`` when they join it."""
        rate, count = _per_ms(requests_per_s), int(min(max(batch_requests, 0.0), self.batch_max))
        if count in {0, self.batch_max}:
            return 1.0 if count == 0 else 0.0
        norm_log = self._unbounded_log(rate, self.batch_max)
        if norm_log is not None:
            return 1.0 - min(1.0, exp(self._log_weight(count - 1, rate) - norm_log - self._full_log(rate, count - 1)))
        falling = self._weights_descending(rate, self.batch_max)
        above = 1.0 + float(np.add.reduce(falling[: self.batch_max - count]))
        below = float(np.add.reduce(falling[self.batch_max - count :]))
        lead, last, total, _ = queue_weights(log(rate / self.rate_max), self.queue_max)
        waiting = total - last
        return (lead * above + waiting) / (lead * (above + below) + waiting)

    def share_waiting_over(self, requests_per_s: float, wait_ms: float) -> float:
        """Return the fraction (0..1) of accepted requests that wait longer than ``wait_ms``.

        ``j + 1`` exponential times exceed ``t`` if at most ``j`` requests leave within ``t``, a Poisson count. With an
        infinite queue, the sum is ``exp(-(rate_max - rate) t)`` times the fraction of requests that wait.

        Raises:
            ValueError: The rate or the time is invalid.
        """
        if not wait_ms >= 0.0:
            raise ValueError(f"wait_ms is {wait_ms}: write a number of ms, at least 0")
        rate = _per_ms(requests_per_s)
        step = log(rate / self.rate_max)
        full = exp(self._full_log(rate, self.batch_max))
        lead, last, total, _ = queue_weights(step, self.queue_max)
        waits = full / (lead + full * (total - last))
        wait_ms = min(wait_ms, _MS_MAX)
        slack = (self.rate_max - rate) * wait_ms
        if step < 0.0 and self.queue_max * step + slack < QUEUE_LENGTH_IGNORED:
            return waits / (1.0 - rate / self.rate_max) * exp(-slack)
        return min(1.0, waits * _waiting_weight(self.rate_max * wait_ms, step, self.queue_max))

    def batch_quantile(self, requests_per_s: float, share: float) -> int:
        """Return the quantile ``share`` (0..1) of the batch that accepted requests join.

        Raises:
            ValueError: The share is not below 1.
        """
        _check_share(share)
        low, high = 1, self.batch_max
        while low < high:
            middle = (low + high) // 2
            if self.share_above(requests_per_s, middle) <= 1.0 - share:
                high = middle
            else:
                low = middle + 1
        return low

    def wait_quantile_ms(self, requests_per_s: float, share: float) -> float:
        """Return the quantile ``share`` (0..1) of the waiting time, to a relative precision of 1e-6.

        Raises:
            ValueError: The share is not below 1.
        """
        _check_share(share)
        late = 1.0 - share

        def excess(wait_ms: float) -> float:
            """Return the log of allowed to actual late requests, at most 0 below the quantile."""
            return log(late / max(_TINY, self.share_waiting_over(requests_per_s, wait_ms)))

        at_low = excess(_WAIT_MIN_MS)
        if at_low >= 0.0:
            return 0.0
        high = 1.0 / self.rate_max
        while (at_high := excess(high)) <= 0.0:
            high *= 2.0
        return last_below(excess, (_WAIT_MIN_MS, at_low), (high, at_high), _PRECISION) * (1.0 + _PRECISION)

    def ttft_quantile_ms(self, requests_per_s: float, share: float) -> float:
        """Return the quantile ``share`` (0..1) of the TTFT."""
        wait_ms = self.wait_quantile_ms(requests_per_s, share)
        batch = self.batch_max if wait_ms else self.batch_quantile(requests_per_s, share)
        return wait_ms + self.prefill_fixed_ms + self.prefill_each_ms * batch

    def itl_quantile_ms(self, requests_per_s: float, share: float) -> float:
        """Return the quantile ``share`` (0..1) of the inter-token latency at the start of requests."""
        return self.times.alpha + self.times.beta * self.batch_quantile(requests_per_s, share)

    def _joined(self, rate: float) -> tuple[float, float, tuple[float, float, float, float]]:
        """Return the log probability of a full batch without a queue, the mean batch joined, and the queue weights."""
        full_log, mean = self._batches(rate)
        full = exp(full_log)
        lead, last, total, moment = queue_weights(log(rate / self.rate_max), self.queue_max)
        # An arrival joins a batch one larger than it finds, or waits for a full one.
        below = lead * (mean + 1.0 - full * (self.batch_max + 1.0))
        joined = below + full * self.batch_max * (lead + total - last)
        batch = joined / (lead + full * (total - last))
        return full_log, min(max(batch, 1.0), float(self.batch_max)), (lead, last, total, moment)

    def _batches(self, rate: float) -> tuple[float, float]:
        """Return the log probability of a full batch, and the mean batch, of the engine without a queue."""
        slack = 1.0 - self.each_ms * rate
        if rate < self.rate_max and slack > _SLACK_MIN:
            full_log = self._full_log(rate, self.batch_max)
            full, unit = exp(full_log), self.fixed_ms + self.each_ms
            # Sum of n p(n) = rate (fixed + each n) p(n-1) over n.
            return full_log, rate * (unit * (1.0 - full) - self.each_ms * self.batch_max * full) / slack
        falling = self._weights_descending(rate, self.batch_max)
        norm = 1.0 + float(np.add.reduce(falling))
        below = float(np.add.reduce(falling * np.arange(1.0, self.batch_max + 1.0)))
        return -log(norm), self.batch_max - below / norm

    def _full_log(self, rate: float, batch: int) -> float:
        """Return the log probability of a full batch of ``batch`` requests, without a queue."""
        norm_log = self._unbounded_log(rate, batch)
        if norm_log is not None:
            return self._log_weight(batch, rate) - norm_log
        return -log(1.0 + float(np.add.reduce(self._weights_descending(rate, batch))))

    def _unbounded_log(self, rate: float, batch: int) -> float | None:
        """Return the log of the sum of all weights, relative to the empty state, if ``batch`` is effectively infinite.

        Without a bound on the batch, the weights are a negative binomial series. None if the bound matters.
        """
        if rate * (self.fixed_ms + self.each_ms * batch) >= batch:
            return None
        mass = rate * self.each_ms
        norm_log = rate * (self.fixed_ms + self.each_ms) * (-log1p(-mass) / mass if mass > 0.0 else 1.0)
        return norm_log if self._log_weight(batch, rate) - norm_log < _BATCH_BOUND_IGNORED else None

    def _weights_descending(self, rate: float, batch: int) -> FloatArray:
        """Return the weights of the states ``batch - 1`` to 0 relative to ``batch``, rounded alike on any CPU."""
        return np.multiply.accumulate(self._rates_falling[self.batch_max - batch :] / rate)

    def _log_weight(self, batch: int, rate: float) -> float:
        """Return the log weight of a state relative to the empty one."""
        return batch * log(rate) - self._log_rates[batch]

    @cached_property
    def _rates_falling(self) -> FloatArray:
        """Departures per ms, from the full batch down to a batch of 1."""
        batches = np.arange(float(self.batch_max), 0.0, -1.0)
        return batches / (self.fixed_ms + self.each_ms * batches)

    @cached_property
    def _log_rates(self) -> list[float]:
        """Cumulative logs of the departure rates of batches 1 to n, for n from 0."""
        return list(accumulate(map(log, self._rates_falling[::-1].tolist()), initial=0.0))


def _waiting_weight(departures: float, step: float, queue_max: int) -> float:
    """Sum the weights of the queue states, each times the probability of at most that many departures.

    Departures are a Poisson count with the mean ``departures``. Weights are ``exp(step * place)``, relative to the
    state after the last one if ``step`` > 0.
    """
    width = _DEVIATIONS * sqrt(departures) + 20.0
    first, beyond = max(0, int(departures - width)), min(queue_max, int(departures + width) + 1)
    if first >= queue_max:
        return 0.0
    anchor = max(0.0, step * queue_max)
    probability = exp(first * log(departures) - departures - lgamma(first + 1.0)) if departures else 1.0
    cumulative, found = 0.0, 0.0
    for place in range(first, beyond):
        cumulative += probability
        found += exp(step * place - anchor) * min(cumulative, 1.0)
        probability *= departures / (place + 1)
    start = step * beyond if step <= 0.0 else 0.0
    return found + exp(start) * geometric_sum(step, queue_max - beyond)


def _check(name: str, value: float, minimum: float, maximum: float, unit: str) -> None:
    if not minimum <= value <= maximum:
        raise ValueError(f"{name} is {value}: write {minimum:g} to {maximum:g} {unit}")


def _check_share(share: float) -> None:
    if not 0.0 <= share < 1.0:
        raise ValueError(f"the share is {share}: write a number of at least 0 and below 1")


def _per_ms(requests_per_s: float) -> float:
    if not 0.0 < requests_per_s <= _RATE_MAX:
        raise ValueError(
            f"the rate is {requests_per_s}: write a number of requests per second above 0, at most {_RATE_MAX:g}"
        )
    return requests_per_s / 1_000.0
