"""Allocation of workers over models and pools: pure functions of an ``AllocationProblem``."""

from loadline.core.planning.allocation.covers import cover
from loadline.core.planning.allocation.regret import greedy

__all__ = ["cover", "greedy"]
