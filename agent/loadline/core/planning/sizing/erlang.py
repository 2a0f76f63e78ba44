"""Workers for a bounded wait, by the delay formula of Erlang (1917): Poisson arrivals and one queue for all workers.

A request goes to the worker with the least work and waits there. If all workers are busy, it waits at least for the
rest of the current service, which is uniform over its length, and at least as long as in one queue for all workers. In
that queue waits are exponential. For other service times they are scaled by ``(1 + cv^2) / 2``, as by Allen and Cunneen
(1978); for one worker the mean is then exact.
"""

from collections.abc import Sequence
from math import ceil, exp
from typing import Final

from loadline.core.planning.sizing.replicas import REPLICAS_MAX

_EXACT_MAX: Final = 2_000.0
"""Busy workers up to which the sum is computed: beyond, a few workers make no difference, and the sum takes ms."""


def workers_within(
    busy: float,
    service_ms: float,
    waits: Sequence[tuple[float, float]],
    attainment: float,
    variability: float = 0.5,
) -> int | None:
    """Return ``ServiceWaits.workers`` for one mean number of busy workers."""
    return ServiceWaits(service_ms, waits, attainment, variability).workers(busy)


class ServiceWaits:
    """Longest permitted waits of requests with one mean service time, for any number of busy workers.

    Args:
        service_ms: Mean service time.
        waits: Longest permitted wait in ms, and the fraction of requests that it applies to; fractions sum to 1. The
            shortest should come first, as the sum ends once too many requests are late.
        attainment: Fraction (0..1) of requests that must not wait too long; 0: as many workers as are busy, at any
            wait.
        variability: ``(1 + cv^2) / 2`` of the service time: 1 if it is exponential, 0.5 if it is constant.
        always_busy: True if every request waits for the current service, because workers are never idle.
    """

    def __init__(
        self,
        service_ms: float,
        waits: Sequence[tuple[float, float]],
        attainment: float,
        variability: float = 0.5,
        *,
        always_busy: bool = False,
    ) -> None:
        self._any = attainment <= 0.0 or service_ms <= 0.0
        self._late_share = _late_share_always_busy if always_busy else _late_share
        self._late_max = 1.0 - attainment
        self._waits: list[tuple[float, float, float]] = []
        self._rate, self._feasible = 0.0, True
        if not self._any:
            services, self._rate = 1.0 / service_ms, 1.0 / (service_ms * max(variability, 0.5))
            self._waits = [(wait_ms, wait_ms * services, part) for wait_ms, part in waits]
            self._feasible = self._is_enough(0.0, 1.0 / self._rate)

    def workers(self, busy: float, workers_max: int = REPLICAS_MAX) -> int | None:
        """Return the number of workers with which the fraction of the requests does not wait too long.

        Args:
            busy: Mean number of busy workers: arrivals per second divided by the service rate of a worker.
            workers_max: Result if fewer workers are too few.

        Returns:
            None if no number of workers is sufficient.
        """
        if busy <= 0.0 or self._any:
            return min(workers_max, ceil(max(busy, 0.0)))
        if not self._feasible:
            return None
        if busy >= _EXACT_MAX:
            return min(workers_max, ceil(busy))
        if busy >= workers_max - 1:
            return workers_max
        # Erlang's recursion over the number of workers, until the wait is short enough.
        blocked = 1.0
        for workers in range(1, workers_max):
            blocked = busy * blocked / (workers + busy * blocked)
            if workers > busy and self._is_enough(blocked / (1.0 - busy / workers * (1.0 - blocked)), workers - busy):
                return workers
        return workers_max

    def _is_enough(self, queueing: float, idle: float) -> bool:
        """Check a probability to find all workers busy, with ``idle`` workers on average."""
        queue_rate, late, late_share = self._rate * idle, 0.0, self._late_share
        for wait_ms, services, part in self._waits:
            late += part * late_share(queueing, services, wait_ms * queue_rate)
            if late > self._late_max:
                return False
        return True


def _late_share(queueing: float, services: float, mean_waits: float) -> float:
    """Return the probability of a wait above a limit, given in service times and in mean waits of queued requests."""
    return 1.0 if services < 0.0 else queueing * max(1.0 - services, exp(-mean_waits))


def _late_share_always_busy(queueing: float, services: float, mean_waits: float) -> float:
    """Return the same if every request waits for the rest of a service, uniformly distributed, and some also queue."""
    if services <= 0.0:
        return 1.0
    queue = services / mean_waits  # mean wait in the queue, in service times
    residual = max(0.0, 1.0 - services)
    return residual + queueing * queue * (exp(-max(0.0, services - 1.0) / queue) - exp(-mean_waits))
