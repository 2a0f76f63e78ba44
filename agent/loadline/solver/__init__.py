"""Problems of allocation in, allocations out: ``solve(problem, time_limit_s)``, in this very process.

Whoever may not wait asks a child process. Nothing else needs SciPy: it is an extra, and takes half a second to import.
"""

from importlib.util import find_spec

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem


def available() -> bool:
    """Whether SciPy is installed. Imports nothing."""
    return find_spec("scipy") is not None


def solve(problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
    """Allocate in so many seconds, see ``exact``; None if there was no time for that, or SciPy is not installed."""
    if not available():
        return None
    from loadline.solver import exact  # noqa: PLC0415 - an extra, as above

    return exact.solve(problem, time_limit_s)
