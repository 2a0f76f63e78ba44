"""Steps of the load planner: one worker more, one less or no change, by the load of each worker.

The rules are those of Dynamo's load-based planner, with a stricter check of every removal. Loads have the unit of the
regression that they are compared with. Steps are 1, -1 and 0.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Literal

from loadline.core.engines.regression import Line

Step = Literal[-1, 0, 1]

SENSITIVITY: Final = 0.8
"""Fraction of the load limit with one worker fewer that loads must stay below: less oscillation for more workers."""


def load_step(loads: Sequence[float], target: float, sensitivity: float = SENSITIVITY) -> Step:
    """Return the step by the load ``target`` at which a worker meets its objective.

    1 if *all* loads are above the target; -1 if all are below ``target * (n - 1) / n * sensitivity``. No load meets a
    target of 0 or less, so more workers would not help, and the step is 0.
    """
    count = len(loads)
    if count == 0 or not target > 0.0:
        return 0
    if min(loads) > target:
        return 1
    if count > 1 and max(loads) < target * (count - 1) / count * sensitivity:
        return -1
    return 0


def combine_steps(*steps: int) -> int:
    """Combine the steps of prefill and decode on the same workers: up for either, down for both."""
    return max(steps)


def can_consolidate(
    loads: Sequence[float],
    latency_ms: Callable[[float], float],
    objective_ms: float,
    sensitivity: float = SENSITIVITY,
    load_max: float | None = None,
) -> bool:
    """Return True if the objective is met with one worker fewer, where each load grows by ``n / (n - 1)``.

    The latency of an idle worker cannot be reduced, so only the latency above it is compared with what the objective
    leaves, times the sensitivity.

    Args:
        loads: Load of each worker.
        latency_ms: Latency at a load.
        objective_ms: The objective.
        sensitivity: Fraction (0..1) of the latency budget that may be used.
        load_max: Largest load of a worker; None: unlimited.
    """
    count = len(loads)
    if count < 2:  # noqa: PLR2004 - the last worker is never removed
        return False
    idle_ms = latency_ms(0.0)
    after = [load * count / (count - 1) for load in loads]
    if load_max is not None and any(load >= load_max for load in after):
        return False
    return all(latency_ms(load) - idle_ms < (objective_ms - idle_ms) * sensitivity for load in after)


def load_after_removal(load: float, count: int, line: Line) -> float:
    """Return the load of each remaining worker after one of ``count`` (2 or more) equally loaded workers is removed.

    A request is held as long as it takes (Little's law), and that time grows with the load: the same request rate means
    more requests at a time. Infinite if the remaining workers cannot keep up.

    Args:
        load: Load of each worker, proportional to its number of requests.
        count: Number of workers before.
        line: Latency against load.
    """
    factor = count / (count - 1)
    if line.slope <= 0.0 or line.at(load) <= 0.0:
        return load * factor
    rate = load / line.at(load) * factor
    return line.intercept_ms * rate / (1.0 - line.slope * rate) if line.slope * rate < 1.0 else inf
