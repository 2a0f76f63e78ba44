"""Handlers of solutions of the exact solver. A solution for demands that have changed since is ignored."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.events import AllocationFailed, AllocationSolved


def allocation_solved(turn: Turn, event: AllocationSolved) -> None:
    """Apply a solution of the allocation problem from this turn on."""
    turn.state.allocation.record_solution(event.request, event.allocation)


def allocation_failed(turn: Turn, event: AllocationFailed) -> None:
    """Keep the greedy allocation after the exact solver failed."""
    turn.state.allocation.record_solution(event.request, None)
    turn.state.count("allocations_failed")
