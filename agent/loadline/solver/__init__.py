"""Exact allocation of limited GPUs: ``solve(problem, time_limit_s)`` runs in the calling process.

The agent runs it in a child process. SciPy takes half a second to import.
"""

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem


def solve(problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
    """Allocate within the time limit, see ``exact``; return None on a timeout."""
    from loadline.solver import exact  # noqa: PLC0415 - imports SciPy

    return exact.solve(problem, time_limit_s)
