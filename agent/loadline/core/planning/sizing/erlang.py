"""How long requests wait for a worker, and how many workers keep that short: Erlang's formula for many servers.

Poisson arrivals; a request goes to the worker with the least to do, and waits there. So who finds all workers busy
waits at least for what is left of the work under way, anything up to all of it, and as long as in one queue for all.
There, waits are exponential; where service times are not, in proportion to ``(1 + cv^2) / 2`` of theirs, which is exact
for one worker on average.
"""

from collections.abc import Sequence
from math import ceil, exp
from typing import Final

from loadline.core.planning.sizing.replicas import REPLICAS_MAX

_EXACT_MAX: Final = 2_000.0
"""Beyond so many busy workers a few more or less make no difference, and the sum takes ms."""


def workers_within(
    busy: float,
    service_ms: float,
    waits: Sequence[tuple[float, float]],
    share: float,
    spread: float = 0.5,
    *,
    full: bool = False,
    most: int = REPLICAS_MAX,
) -> int | None:
    """Workers with which a ``share`` (0..1) of the requests wait no longer than is fine; None: no number is enough.

    Args:
        busy: How many are busy on average: arrivals a second by what one can serve a second.
        service_ms: Mean time that a request takes a worker.
        waits: Longest wait (ms) that is fine, and the part of the requests that it is for; the parts sum to 1. The
            shortest should come first: the sum ends where too many are late.
        share: Of the requests; 0: as many workers as are busy, whatever the wait.
        spread: ``(1 + cv^2) / 2`` of the service time: 1 for an exponential one, 0.5 for one that is always the same.
        full: Whether all of them wait for what is under way, as they do where workers are always busy.
        most: The answer where fewer are not enough.
    """
    if busy <= 0.0 or share <= 0.0 or service_ms <= 0.0:
        return min(most, ceil(max(busy, 0.0)))
    chance, services, rate = _late_full if full else _late, 1.0 / service_ms, 1.0 / (service_ms * max(spread, 0.5))

    def enough(waiting: float, spare: float) -> bool:
        queues, late = rate * spare, 0.0
        for ms, part in waits:
            late += part * chance(waiting, ms * services, ms * queues)
            if late > 1.0 - share:
                return False
        return True

    if not enough(0.0, 1.0 / rate):
        return None
    if busy >= _EXACT_MAX:
        return min(most, ceil(busy))
    # Erlang's recursion over the servers, continued until the wait is short enough.
    blocked = 1.0
    for workers in range(1, most):
        blocked = busy * blocked / (workers + busy * blocked)
        if workers > busy and enough(blocked / (1.0 - busy / workers * (1.0 - blocked)), workers - busy):
            return workers
    return most


def _late(waiting: float, services: float, queues: float) -> float:
    """Chance to wait longer than so many service times, which are as many mean waits of those that wait."""
    return 1.0 if services < 0.0 else waiting * max(1.0 - services, exp(-queues))


def _late_full(waiting: float, services: float, queues: float) -> float:
    """The same where everybody waits for what is under way, evenly spread, and some in a queue besides."""
    if services <= 0.0:
        return 1.0
    queue = services / queues  # mean wait in a queue, in service times
    under_way = max(0.0, 1.0 - services)
    return under_way + waiting * queue * (exp(-max(0.0, services - 1.0) / queue) - exp(-queues))
