"""How many workers a demand needs: Dynamo's throughput planner, all generations.

Latencies in ms, lengths in tokens, throughput in tokens a second and GPU. Corrections are observed latency by the
profile's latency for what was observed.
"""

from math import ceil, isfinite, isnan
from typing import Final

REPLICAS_MAX: Final = 1_000_000
"""What no fleet has. Counts stay below it, so that a capacity that is next to nothing gives a number all the same."""


def replicas_for(demand: float, capacity: float, least: int) -> int:
    """Workers whose joint capacity reaches the demand, both in the same unit; at least ``least``.

    No demand, or a capacity of 0, gives ``least``: what cannot be computed is no reason to grow.
    """
    if not (demand > 0.0 and capacity > 0.0):
        return least
    needed = demand / capacity
    if isnan(needed):  # infinite by infinite
        return least
    return max(least, REPLICAS_MAX if needed >= REPLICAS_MAX else ceil(needed))


def corrected_itl_ms(objective_ms: float, correction: float) -> float:
    """The ITL that the profile must show for the real one to meet the objective; a correction of 0 says nothing."""
    return objective_ms / correction if correction > 0.0 and isfinite(correction) else objective_ms


def correction(observed_ms: float, profiled_ms: float) -> float:
    """Observed by profiled latency; 1 where one of them says nothing."""
    if not (observed_ms > 0.0 and profiled_ms > 0.0 and isfinite(observed_ms) and isfinite(profiled_ms)):
        return 1.0
    return observed_ms / profiled_ms


def concurrency(requests: float, replicas: int, request_ms: float, interval_ms: float) -> float:
    """Requests that a decode worker holds at a time: Little's law over an interval."""
    return requests / max(replicas, 1) * request_ms / interval_ms if interval_ms > 0.0 else 0.0
