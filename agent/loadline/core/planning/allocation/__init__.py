"""Allocation of limited GPUs to models and pools."""

from loadline.core.planning.allocation.covers import cover
from loadline.core.planning.allocation.regret import greedy

__all__ = ["cover", "greedy"]
