"""The best allocation of what is short, where it was asked for. One of wishes that have changed since is none."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.events import AllocationFailed, AllocationSolved


def allocation_solved(turn: Turn, event: AllocationSolved) -> None:
    """Let it hold from this turn on."""
    turn.state.allocation.record_solution(event.request, event.allocation)


def allocation_failed(turn: Turn, event: AllocationFailed) -> None:
    """Let the greedy one hold on."""
    turn.state.allocation.record_solution(event.request, None)
    turn.state.count("allocations_failed")
