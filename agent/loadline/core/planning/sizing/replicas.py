"""Formulas of all versions of Dynamo's throughput planner: replicas, correction factors and concurrency.

Latencies are in ms, lengths in tokens, and throughput in tokens per second and GPU. A correction factor is the observed
latency divided by the profiled one.
"""

from math import ceil, isfinite, isnan
from typing import Final

REPLICAS_MAX: Final = 1_000_000
"""Upper limit of counts, beyond any fleet, so that a tiny capacity still gives a number."""


def replicas_for(demand: float, capacity: float, replicas_min: int) -> int:
    """Return the number of workers whose capacity reaches the demand, in the same unit; at least ``replicas_min``.

    Without a demand or a capacity the result is ``replicas_min``: an unknown quantity is no reason to scale up.
    """
    if not (demand > 0.0 and capacity > 0.0):
        return replicas_min
    needed = demand / capacity
    if isnan(needed):  # infinite divided by infinite
        return replicas_min
    return max(replicas_min, REPLICAS_MAX if needed >= REPLICAS_MAX else ceil(needed))


def corrected_itl_ms(objective_ms: float, factor: float) -> float:
    """Return the profiled ITL at which the actual one meets the objective; an invalid factor counts as 1."""
    return objective_ms / factor if factor > 0.0 and isfinite(factor) else objective_ms


def correction_factor(observed_ms: float, profiled_ms: float) -> float:
    """Return the observed latency divided by the profiled one; 1 if either is invalid."""
    if not (observed_ms > 0.0 and profiled_ms > 0.0 and isfinite(observed_ms) and isfinite(profiled_ms)):
        return 1.0
    return observed_ms / profiled_ms


def concurrency(requests: float, replicas: int, request_ms: float, interval_ms: float) -> float:
    """Return the mean number of requests in a decode worker over an interval, by Little's law."""
    return requests / max(replicas, 1) * request_ms / interval_ms if interval_ms > 0.0 else 0.0
