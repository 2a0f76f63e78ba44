"""Requests that prefill workers pass on to decode workers while some of them work off a backlog."""

from collections.abc import Mapping, Sequence
from typing import Final

from loadline.core.planning.sizing.needs.pool_needs import PoolLoad

PASSED_ON_MS: Final = 10_000
"""Time for which such a rate counts: what was passed on is still in the batches, and queues vary about a backlog."""


def passed_on(loads: Sequence[PoolLoad], backlogged: Mapping[str, Sequence[str]]) -> float:
    """Return the requests/s that prefill workers pass on while some of them have a backlog; 0 if none has.

    Those with a backlog pass on all that they serve, the others their share of the arrivals.

    Args:
        loads: Prefill pools whose load is known.
        backlogged: Workers of each pool with a backlog.
    """
    found, arriving_per_s, on_time, ready = 0.0, 0.0, 0, 0
    for load in loads:
        behind, work = len(backlogged[load.pool.name]), load.lengths.work("prefill")
        found += behind * load.serves_at_most(work) if behind else 0.0
        arriving_per_s += load.growing_per_s
        ready += load.pool.ready
        on_time += max(0, load.pool.ready - behind)
    return found + arriving_per_s * on_time / ready if found else 0.0
