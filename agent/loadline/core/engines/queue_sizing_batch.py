"""Sizing of many engines at once: the formulas of ``queueing`` in array operations.

Rates considered in sizing are below saturation, so the closed forms need none of the special cases of ``queueing``.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadline.core.engines.arrays import FloatArray
from loadline.core.engines.queue_sizing import (
    PRECISION,
    RATIO_MIN,
    ROUNDING,
    MaxRate,
    Targets,
    combine_rates,
    largest_rate,
    latency_limits,
)
from loadline.core.engines.queueing import QUEUE_LENGTH_IGNORED, EngineQueue
from loadline.core.engines.roots import last_below_many


def max_rates(queues: Sequence[EngineQueue], targets: Sequence[Targets]) -> list[MaxRate]:
    """Return ``queue_sizing.max_rate`` of each engine and its targets, in order."""
    if not queues:
        return []
    rates = _QueueArrays(queues, targets).largest_rates().T.tolist()
    return [combine_rates(*one) for one in zip(queues, targets, rates, strict=True)]


class _QueueArrays:
    """Arrays with a column per engine and a row per limit, of TTFT and ITL."""

    def __init__(self, queues: Sequence[EngineQueue], targets: Sequence[Targets]) -> None:
        self.queues = queues
        self.limits = [latency_limits(queue, target) for queue, target in zip(queues, targets, strict=True)]
        self.attainment = np.array([target.attainment for target in targets])
        self.attained = self.attainment > 0.0
        self.batch, self.room = np.array([[float(queue.batch_max), float(queue.queue_max)] for queue in queues]).T
        self.unit_ms, self.each_ms, self.top, self.least, self.most = np.array(
            [
                [queue.fixed_ms + queue.each_ms, queue.each_ms, queue.rate_max, *queue.rate_range_per_s]
                for queue in queues
            ]
        ).T
        described = [
            [
                (
                    limit.target_ms,
                    limit.fixed_ms,
                    limit.each_ms,
                    limit.largest_batch(queue.batch_max),
                    limit.wait_budget_ms(queue.batch_max),
                )
                for limit in limits
            ]
            for queue, limits in zip(queues, self.limits, strict=True)
        ]
        target_ms, self.limit_fixed_ms, self.limit_each_ms, self.batch_within, self.wait_ms = np.ascontiguousarray(
            np.array(described).T
        )
        self.allowed = np.where(self.attained, 1.0 - self.attainment, target_ms)
        self.rates_rising = self._rates_rising()
        self.starts = self._starts()

    def largest_rates(self) -> FloatArray:
        """Return the maximum rates in requests per second, a row per limit; 0 if unreachable."""
        shape = (len(self.limits[0]), len(self.queues))
        least, most = np.broadcast_to(self.least, shape), np.broadcast_to(self.most, shape)
        at_least, at_most = self._excess(least), self._excess(most)
        found = np.where(at_most <= ROUNDING, most, np.where(at_least <= ROUNDING, least, 0.0))
        inside = (at_least <= 0.0) & (at_most > ROUNDING)
        low = least, np.where(inside, at_least, -1.0)
        high = np.where(inside, most, least), np.where(inside, at_most, 1.0)
        found = np.where(inside, last_below_many(self._excess, low, high, PRECISION), found)
        for column in self._short(found[0]):
            found[0, column] = largest_rate(self.queues[column], self.limits[column][0], float(self.attainment[column]))
        return found

    def _excess(self, requests_per_s: FloatArray) -> FloatArray:
        """Return the log ratio of actual to allowed at each rate, as ``queue_sizing`` and ``EngineQueue`` do."""
        rate = requests_per_s / 1_000.0
        full, below = self._batches(rate)
        r = rate / self.top
        last = r**self.room
        total = r * (1.0 - last) / (1.0 - r)
        moment = (total - self.room * last * r) / (1.0 - r)
        accepted = 1.0 + full * (total - last)
        mean = rate * (self.unit_ms * (1.0 - full) - self.each_ms * self.batch * full) / (1.0 - self.each_ms * rate)
        batch = (mean + 1.0 - full * (self.batch + 1.0) + full * self.batch * (1.0 + total - last)) / accepted
        missed = self.limit_fixed_ms + self.limit_each_ms * batch
        missed[0] += (full * moment / (rate * accepted))[0]
        if self.attained.any():
            waits = full / (accepted * (1.0 - r)) * np.exp((rate - self.top) * self.wait_ms)
            late = np.where(self.batch_within < self.batch, 1.0 - below / accepted, waits)
            missed = np.where(self.attained, late, missed)
        excess: FloatArray = np.log(np.maximum(missed / self.allowed, RATIO_MIN))
        return excess

    def _batches(self, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the probabilities of a full batch, and of one below ``batch_within``, without a queue.

        Erlang's recursion over the states: the probability of state n in an engine that accepts at most n requests, and
        the remaining probability of the states below it.
        """
        full, below, by_share = np.ones_like(rate), np.zeros_like(rate), bool(self.attained.any())
        for leaving, starts in zip(self.rates_rising, self.starts, strict=True):
            full *= rate
            full /= leaving + full
            if by_share:
                below.reshape(-1)[starts] = 1.0
                below *= 1.0 - full
        return full, below

    def _starts(self) -> list[NDArray[np.intp]]:
        """Return, for each batch, the flat indexes of the limits for which it is the smallest one beyond."""
        first = len(self.rates_rising) - self.batch + self.batch_within - 1.0
        order = np.argsort(first, axis=None, kind="stable")
        return np.split(order, np.searchsorted(first.reshape(-1)[order], np.arange(len(self.rates_rising))))[1:]

    def _rates_rising(self) -> FloatArray:
        """Return the departures per ms, a row per batch up to the full one; 0 for batches that an engine lacks."""
        largest = int(self.batch.max())
        batches = np.maximum(np.arange(1.0 - largest, 1.0)[:, None] + self.batch, 0.0)
        rates: FloatArray = batches / (self.unit_ms + self.each_ms * np.maximum(batches - 1.0, 0.0))
        return rates

    def _short(self, requests_per_s: FloatArray) -> list[int]:
        """Return the columns whose TTFT depends on the length of the queue.

        The array formulas assume an infinite queue. In these columns, late requests are overestimated and the rate is
        too low.
        """
        rate = np.maximum(requests_per_s, self.least) / 1_000.0
        span = self.room * np.log(rate / self.top) + (self.top - rate) * self.wait_ms[0]
        doubtful = self.attained & (self.batch_within[0] == self.batch) & (span >= QUEUE_LENGTH_IGNORED)
        columns: list[int] = np.flatnonzero(doubtful & (requests_per_s < self.most)).tolist()
        return columns
