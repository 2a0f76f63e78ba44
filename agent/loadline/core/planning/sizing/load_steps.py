"""Up, down or stay, from what each worker of a pool has to do: the load planner of Dynamo, and its second thoughts.

Loads are in the unit of the regression that they are held against. Decisions are 1, -1 and 0.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Literal

from loadline.core.engines.regression import Line

Step = Literal[-1, 0, 1]

SENSITIVITY: Final = 0.8
"""How far below the load that one worker less would give loads must be: less oscillation for more workers."""


def load_step(loads: Sequence[float], target: float, sensitivity: float = SENSITIVITY) -> Step:
    """Against the load at which a worker meets its objective.

    Up if *all* workers are above it; down if all are below what it leaves for one worker less, scaled by the
    sensitivity. A target of 0 or less is one that no load meets: more workers do not help, so it is no reason to grow.
    """
    count = len(loads)
    if count == 0 or not target > 0.0:
        return 0
    if min(loads) > target:
        return 1
    if count > 1 and max(loads) < target * (count - 1) / count * sensitivity:
        return -1
    return 0


def either_up_both_down(*steps: int) -> int:
    """Of workers that do one job or both: either may need more, both must need less."""
    return max(steps)


def can_consolidate(
    loads: Sequence[float],
    latency_ms: Callable[[float], float],
    sla_ms: float,
    sensitivity: float = SENSITIVITY,
    load_max: float | None = None,
) -> bool:
    """Whether one worker less would still meet the objective: asked before every step down.

    Each survivor gets ``n/(n-1)`` of its load. What an idle worker takes anyway cannot be saved, so only the time on
    top of it is held against what the objective leaves, scaled by the sensitivity.

    Args:
        loads: Of all workers.
        latency_ms: Latency that a load gives.
        sla_ms: The objective.
        sensitivity: Share of the room below the objective that may be used.
        load_max: What a worker can hold at most; None: no bound.
    """
    count = len(loads)
    if count < 2:  # noqa: PLR2004 - the last worker stays
        return False
    own = latency_ms(0.0)
    after = [load * count / (count - 1) for load in loads]
    if load_max is not None and any(load >= load_max for load in after):
        return False
    return all(latency_ms(load) - own < (sla_ms - own) * sensitivity for load in after)


def load_of_less(load: float, count: int, line: Line) -> float:
    """Load of each of the others where one of ``count`` (2 or more) equally loaded workers leaves.

    What is held is held as long as it takes (Little's law), and that grows with the load: the same requests a second
    are more at a time. Infinite where the others could never keep up.

    Args:
        load: Of each worker, proportional to the requests that it holds.
        count: Workers before.
        line: Latency against load.
    """
    more = count / (count - 1)
    if line.slope <= 0.0 or line.at(load) <= 0.0:
        return load * more
    pace = load / line.at(load) * more
    return line.intercept_ms * pace / (1.0 - line.slope * pace) if line.slope * pace < 1.0 else inf
