"""Who gets how many workers of which pool: pure functions of a problem (``loadline.core.allocations``)."""

from loadline.core.planning.allocation.covers import cover
from loadline.core.planning.allocation.regret import greedy

__all__ = ["cover", "greedy"]
