"""How long requests wait for a free worker, and how many workers keep that short: Erlang's formula for many servers.

Poisson arrivals, one queue, workers that take one request at a time. Where service times are not exponential, waits are
taken in proportion to ``(1 + cv^2) / 2`` of theirs, which is exact for one worker on average.
"""

from collections.abc import Sequence
from math import ceil, exp, fsum
from typing import Final

from loadline.core.models.replicas import REPLICAS_MAX

_EXACT_MAX: Final = 2_000.0
"""Beyond so many busy workers a few more or less make no difference, and the sum takes ms."""


def share_waiting(workers: int, busy: float) -> float:
    """Share of requests that find no free worker; 1 where there are not enough of them.

    Args:
        workers: How many there are.
        busy: How many of them are busy on average: arrivals a second by what one can serve a second.
    """
    if busy >= workers:
        return 1.0
    blocked = 1.0
    for count in range(1, workers + 1):
        blocked = busy * blocked / (count + busy * blocked)
    return blocked / (1.0 - busy / workers * (1.0 - blocked))


def workers_within(
    busy: float, service_ms: float, waits: Sequence[tuple[float, float]], share: float, spread: float = 0.5
) -> int:
    """Workers with which a ``share`` (0..1) of the requests wait no longer than is fine.

    Args:
        busy: See ``share_waiting``.
        service_ms: Mean time that a request takes a worker.
        waits: Longest wait (ms) that is fine, and the part of the requests that it is for; the parts sum to 1.
        share: Of the requests; 0: as many workers as are busy, whatever the wait.
        spread: ``(1 + cv^2) / 2`` of the service time: 1 for an exponential one, 0.5 for one that is always the same.
    """
    if not 0.0 < busy < _EXACT_MAX or share <= 0.0 or service_ms <= 0.0:
        return min(REPLICAS_MAX, ceil(max(busy, 0.0)))
    # Erlang's recursion over the servers, continued until the wait is short enough.
    blocked, workers, pace_ms = 1.0, 0, service_ms * max(spread, 0.5)
    while True:
        workers += 1
        blocked = busy * blocked / (workers + busy * blocked)
        if workers <= busy:
            continue
        waiting = blocked / (1.0 - busy / workers * (1.0 - blocked))
        late = fsum(part * exp(-(workers - busy) * max(0.0, wait_ms) / pace_ms) for wait_ms, part in waits)
        if waiting * late <= 1.0 - share:
            return workers
