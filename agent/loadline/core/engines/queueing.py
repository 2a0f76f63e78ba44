"""An engine as a queue: Poisson arrivals, one batch whose speed depends on how full it is, a queue of finite length.

It is the state-dependent M/M/1/K queue of llm-d's Workload Variant Autoscaler (0.4.1). A request in a batch of ``n``
takes ``prefill + steps * iteration = fixed + each * n`` ms, so ``n`` of them leave at a rate of
``n / (fixed + each * n)``. Beyond the largest batch the rate stays what it is, so the queue in front of it is a
geometric series, which is summed in closed form: a queue of 2,560 costs as much as one of 8. What is new here: overload
and flat curves have answers, and waits have a distribution, not only a mean.

The batch that a request joins, itself included, has the distribution that Poisson arrivals see. Its mean is what the
original calls effective concurrency, and gives the mean times. A request that finds the batch full waits until
``j + 1`` requests have left, if ``j`` wait before it: a sum of exponential times. Percentiles come from these two.
"""

from functools import cached_property
from itertools import accumulate
from math import exp, lgamma, log, log1p, sqrt
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.geometric import geometric_sum, queue_weights
from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.roots import last_below

BATCH_MAX: Final = 16_384
"""Most requests that run together: each is a state, and no engine has so many."""
QUEUE_MAX: Final = 1_000_000
_MARGIN: Final = 0.001
_SLACK_MIN: Final = 0.001
"""Nearer to it the recursion of the means divides rounding by next to nothing."""
_RATE_MAX: Final = 1e9
_MS_MAX: Final = 1e12
_NEVER_FULL: Final = -40.0
"""Log of a share that a 64-bit sum does not see: the largest batch is then as good as infinite."""
NEVER_SHORT: Final = -18.0
"""Log of the relative error of the tail of waits when a long queue is taken for an infinite one: 1e-8."""
_SHORTEST_MS: Final = 1e-9
_PRECISION: Final = 1e-6
_NOTHING: Final = 1e-300
"""In the place of 0 in a logarithm."""
_DEVIATIONS: Final = 7.0
"""Standard deviations around the mean beyond which a Poisson count is not found: 1e-11."""


class QueueAnalysis(Struct, frozen=True):
    """What a rate of arrivals makes of an engine, on average over the requests that it accepts."""

    offered_requests_per_s: float
    throughput_requests_per_s: float
    refused: float
    """Share (0..1) of the arrivals that find the queue full."""
    waiting_ms: float
    service_ms: float
    prefill_ms: float
    itl_ms: float
    batch_requests: float
    """Requests in the batch that a request joins, itself included: the effective concurrency."""
    running_requests: float
    waiting_requests: float
    busy: float
    """Share (0..1) of the time in which anything runs."""
    utilisation: float
    """Running requests by the most that can run."""

    @property
    def ttft_ms(self) -> float:
        """Time to the first token."""
        return self.waiting_ms + self.prefill_ms

    @property
    def response_ms(self) -> float:
        """Time from the arrival to the last token."""
        return self.waiting_ms + self.service_ms


class EngineQueue:
    """An engine and the requests that it gets.

    Args:
        times: What iterations and prefills take.
        isl_tokens: Mean prompt; 0: prompts are computed elsewhere, and there is no prefill.
        osl_tokens: Mean output. The first token comes from the prefill, or, without one, from a decode iteration.
        max_batch_requests: Most requests that run together.
        max_queue_requests: Most requests that wait; who comes then is refused.

    Raises:
        ValueError: An argument is out of its bounds, or a request would take no time, or for ever.
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
        """Most requests that run, and most that wait."""
        self.prefill_fixed_ms, self.prefill_each_ms = (
            (times.gamma, times.delta * isl_tokens) if isl_tokens else (0.0, 0.0)
        )
        steps = osl_tokens - 1.0 if isl_tokens or osl_tokens > 1.0 else 1.0
        self.fixed_ms = self.prefill_fixed_ms + steps * times.alpha
        self.each_ms = self.prefill_each_ms + steps * times.beta
        longest = self.fixed_ms + self.each_ms * self.batch_max
        if not 1.0 / _MS_MAX < self.fixed_ms + self.each_ms <= longest < _MS_MAX:
            raise ValueError(f"a request would take {longest:g} ms: correct the engine's times or the lengths")
        self.rate_max = self.batch_max / longest
        """Requests that leave in a ms when the batch is full."""

    @property
    def rate_range_per_s(self) -> tuple[float, float]:
        """The least and the highest rate that is sized for, as the original has them.

        A thousandth of what leaves if one request runs at a time, and a thousandth below what saturates the engine.
        """
        return _MARGIN * 1_000.0 / (self.fixed_ms + self.each_ms), (1.0 - _MARGIN) * 1_000.0 * self.rate_max

    def analyse(self, requests_per_s: float) -> QueueAnalysis:
        """What a rate of arrivals comes to; it may be more than the engine can serve.

        Raises:
            ValueError: The rate is not above 0, or beyond all bounds.
        """
        rate = _per_ms(requests_per_s)
        full_log, batch, (lead, last, total, moment) = self._joined(rate)
        full = exp(full_log)
        whole = lead + full * total
        accepted = (lead + full * (total - last)) / whole
        service_ms = self.fixed_ms + self.each_ms * batch
        running = rate * accepted * service_ms
        waiting = full * moment / whole
        return QueueAnalysis(
            offered_requests_per_s=requests_per_s,
            throughput_requests_per_s=requests_per_s * accepted,
            refused=full * last / whole,
            waiting_ms=waiting / (rate * accepted),
            service_ms=service_ms,
            prefill_ms=self.prefill_fixed_ms + self.prefill_each_ms * batch,
            itl_ms=self.times.alpha + self.times.beta * batch,
            batch_requests=batch,
            running_requests=running,
            waiting_requests=waiting,
            busy=1.0 - exp(full_log - self._log_weight(self.batch_max, rate)) * lead / whole,
            utilisation=running / self.batch_max,
        )

    def means(self, requests_per_s: float) -> tuple[float, float]:
        """``batch_requests`` and ``waiting_ms`` of the analysis, in less time."""
        rate = _per_ms(requests_per_s)
        full_log, batch, (lead, last, total, moment) = self._joined(rate)
        full = exp(full_log)
        return batch, full * moment / (rate * (lead + full * (total - last)))

    def share_above(self, requests_per_s: float, batch_requests: float) -> float:
        """Share (0..1) of the accepted requests that join a batch of more than so many, themselves included."""
        rate, count = _per_ms(requests_per_s), int(min(max(batch_requests, 0.0), self.batch_max))
        if count in {0, self.batch_max}:
            return 1.0 if count == 0 else 0.0
        whole_log = self._endless_log(rate, self.batch_max)
        if whole_log is not None:
            return 1.0 - min(1.0, exp(self._log_weight(count - 1, rate) - whole_log - self._full_log(rate, count - 1)))
        falling = self._falling(rate, self.batch_max)
        above = 1.0 + float(np.add.reduce(falling[: self.batch_max - count]))
        below = float(np.add.reduce(falling[self.batch_max - count :]))
        lead, last, total, _ = queue_weights(log(rate / self.rate_max), self.queue_max)
        waiting = total - last
        return (lead * above + waiting) / (lead * (above + below) + waiting)

    def share_waiting_over(self, requests_per_s: float, wait_ms: float) -> float:
        """Share (0..1) of the accepted requests that wait longer than so many ms.

        ``j + 1`` exponential times take longer than ``t`` if at most ``j`` requests leave in ``t``, a Poisson count. In
        an endless queue that sums up to ``exp(-(top - rate) t)``, times the share of those that wait at all.

        Raises:
            ValueError: The rate or the time is none.
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
        if step < 0.0 and self.queue_max * step + slack < NEVER_SHORT:
            return waits / (1.0 - rate / self.rate_max) * exp(-slack)
        return min(1.0, waits * _survivors(self.rate_max * wait_ms, step, self.queue_max))

    def batch_quantile(self, requests_per_s: float, share: float) -> int:
        """The least batch that at least a ``share`` (0..1) of the accepted requests join no more than.

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
        """The time that a ``share`` (0..1) of the accepted requests wait at most, to a millionth.

        Raises:
            ValueError: The share is not below 1.
        """
        _check_share(share)
        late = 1.0 - share

        def hurry(wait_ms: float) -> float:
            """At most 0 as long as more requests are late than may be."""
            return log(late / max(_NOTHING, self.share_waiting_over(requests_per_s, wait_ms)))

        at_low = hurry(_SHORTEST_MS)
        if at_low >= 0.0:
            return 0.0
        high = 1.0 / self.rate_max
        while (at_high := hurry(high)) <= 0.0:
            high *= 2.0
        return last_below(hurry, (_SHORTEST_MS, at_low), (high, at_high), _PRECISION) * (1.0 + _PRECISION)

    def ttft_quantile_ms(self, requests_per_s: float, share: float) -> float:
        """The time to the first token that a ``share`` (0..1) of the accepted requests keep."""
        wait_ms = self.wait_quantile_ms(requests_per_s, share)
        batch = self.batch_max if wait_ms else self.batch_quantile(requests_per_s, share)
        return wait_ms + self.prefill_fixed_ms + self.prefill_each_ms * batch

    def itl_quantile_ms(self, requests_per_s: float, share: float) -> float:
        """The inter-token latency that a ``share`` (0..1) of the accepted requests keep when they begin."""
        return self.times.alpha + self.times.beta * self.batch_quantile(requests_per_s, share)

    def _joined(self, rate: float) -> tuple[float, float, tuple[float, float, float, float]]:
        """Return the log share of a full batch without a queue, the mean batch joined, and the queue weights."""
        full_log, mean = self._batches(rate)
        full = exp(full_log)
        lead, last, total, moment = queue_weights(log(rate / self.rate_max), self.queue_max)
        # Who comes joins a batch that is one larger than what it finds, or waits for one that is full.
        below = lead * (mean + 1.0 - full * (self.batch_max + 1.0))
        joined = below + full * self.batch_max * (lead + total - last)
        batch = joined / (lead + full * (total - last))
        return full_log, min(max(batch, 1.0), float(self.batch_max)), (lead, last, total, moment)

    def _batches(self, rate: float) -> tuple[float, float]:
        """Log of the share of time with a full batch, and the mean batch, of an engine whose queue has no room."""
        slack = 1.0 - self.each_ms * rate
        if rate < self.rate_max and slack > _SLACK_MIN:
            full_log = self._full_log(rate, self.batch_max)
            full, unit = exp(full_log), self.fixed_ms + self.each_ms
            # n p(n) = rate (fixed + each n) p(n-1), summed over n.
            return full_log, rate * (unit * (1.0 - full) - self.each_ms * self.batch_max * full) / slack
        falling = self._falling(rate, self.batch_max)
        whole = 1.0 + float(np.add.reduce(falling))
        below = float(np.add.reduce(falling * np.arange(1.0, self.batch_max + 1.0)))
        return -log(whole), self.batch_max - below / whole

    def _full_log(self, rate: float, batch: int) -> float:
        """Log of the share of time with ``batch`` requests, of an engine that accepts no more."""
        whole_log = self._endless_log(rate, batch)
        if whole_log is not None:
            return self._log_weight(batch, rate) - whole_log
        return -log(1.0 + float(np.add.reduce(self._falling(rate, batch))))

    def _endless_log(self, rate: float, batch: int) -> float | None:
        """Log of the sum of all weights by that of the empty state, where ``batch`` is as good as endless; else None.

        Without a bound on the batch the weights are a negative binomial series.
        """
        if rate * (self.fixed_ms + self.each_ms * batch) >= batch:
            return None
        mass = rate * self.each_ms
        whole_log = rate * (self.fixed_ms + self.each_ms) * (-log1p(-mass) / mass if mass > 0.0 else 1.0)
        return whole_log if self._log_weight(batch, rate) - whole_log < _NEVER_FULL else None

    def _falling(self, rate: float, batch: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Weights of the states ``batch - 1`` down to 0 by that of ``batch``; products in the same order on any CPU."""
        return np.multiply.accumulate(self._rates_falling[self.batch_max - batch :] / rate)

    def _log_weight(self, batch: int, rate: float) -> float:
        """Log of the weight of a state by that of the empty one."""
        return batch * log(rate) - self._log_rates[batch]

    @cached_property
    def _rates_falling(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Requests that leave in a ms, of the full batch down to a batch of 1."""
        batches = np.arange(float(self.batch_max), 0.0, -1.0)
        return batches / (self.fixed_ms + self.each_ms * batches)

    @cached_property
    def _log_rates(self) -> list[float]:
        """Sums of the logs of the rates of the batches of 1 to n, for n from 0."""
        return list(accumulate(map(log, self._rates_falling[::-1].tolist()), initial=0.0))


def _survivors(left: float, step: float, room: int) -> float:
    """Sum over the places of a queue: their weight, times the chance that no more leave, when ``left`` do on average.

    Weights are ``exp(step * place)``; where they rise, by that of the place after the last one.
    """
    width = _DEVIATIONS * sqrt(left) + 20.0
    first, beyond = max(0, int(left - width)), min(room, int(left + width) + 1)
    if first >= room:
        return 0.0
    anchor = max(0.0, step * room)
    chance = exp(first * log(left) - left - lgamma(first + 1.0)) if left else 1.0
    reached, found = 0.0, 0.0
    for place in range(first, beyond):
        reached += chance
        found += exp(step * place - anchor) * min(reached, 1.0)
        chance *= left / (place + 1)
    start = step * beyond if step <= 0.0 else 0.0
    return found + exp(start) * geometric_sum(step, room - beyond)


def _check(name: str, value: float, least: float, most: float, unit: str) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}: write {least:g} to {most:g} {unit}")


def _check_share(share: float) -> None:
    if not 0.0 <= share < 1.0:
        raise ValueError(f"the share is {share}: write at least 0 and below 1")


def _per_ms(requests_per_s: float) -> float:
    if not 0.0 < requests_per_s <= _RATE_MAX:
        raise ValueError(
            f"the rate is {requests_per_s}: write a number of requests a second above 0, at most {_RATE_MAX:g}"
        )
    return requests_per_s / 1_000.0
