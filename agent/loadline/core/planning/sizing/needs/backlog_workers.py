"""Workers that shorten the time in which requests wait behind a backlog.

Routers that go in turn keep sending requests to the workers that have the backlog, and these are late until it is
served. More workers take a larger share of the arrivals, so the backlog shrinks faster and fewer requests join it.
"""

from math import ceil
from typing import Final

from msgspec import Struct

_DURATION_MAX_S: Final = 600.0
_STEP: Final = 16
"""Counts above this are tried in steps of a sixteenth: a maximum of 1,000,000 takes 180 steps."""
_ADDED_S: Final = 60.0
"""Least time that an added worker is paid for: its start-up and the hold after it."""


class QueuedRequests(Struct, frozen=True):
    """Requests that wait, and the workers that they wait for."""

    longest: float
    """Requests at the worker that has most."""
    workers: int
    """Workers with about as many."""


def workers_for_backlog(
    queued: QueuedRequests,
    requests_per_s: float,
    served_per_s: float,
    *,
    needed: float,
    current: int,
    workers_max: int,
    cost_of_late: float,
) -> int:
    """Return the count at which late requests and additional workers cost least.

    Args:
        queued: The backlog.
        requests_per_s: Arrivals.
        served_per_s: Requests that a worker with a backlog serves per second.
        needed: Workers that serve the arrivals.
        current: Present target.
        workers_max: Largest count.
        cost_of_late: Cost of a late request in worker-seconds.
    """
    workers_min = ceil(needed)
    best, best_cost = workers_min, float("inf")
    count = max(workers_min, queued.workers, 1)
    while count <= workers_max:
        excess = served_per_s - requests_per_s / count
        duration_s = min(_DURATION_MAX_S, queued.longest / excess) if excess > 0.0 else _DURATION_MAX_S
        late = requests_per_s * queued.workers / count * duration_s
        cost = late * cost_of_late + (count - workers_min) * duration_s + max(0, count - current) * _ADDED_S
        if cost < best_cost:
            best, best_cost = count, cost
        count += max(1, count // _STEP)
    return best
