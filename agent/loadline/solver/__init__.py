"""Exact allocation of limited GPUs: ``solve(problem, time_limit_s)`` runs in the calling process.

The agent runs it in a child process. SciPy is an extra for this package only, and takes half a second to import.
"""

from importlib.util import find_spec

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem


def available() -> bool:
    """Return whether SciPy is installed, without importing it."""
    return find_spec("scipy") is not None


def solve(problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
    """Allocate within the time limit, see ``exact``; return None on a timeout or if SciPy is not installed."""
    if not available():
        return None
    from loadline.solver import exact  # noqa: PLC0415 - needs the extra that available() checks

    return exact.solve(problem, time_limit_s)
