"""Handlers of pauses. A request writes the pause to the store; what the store has written is in force."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.effects import Effect, WritePause
from loadline.core.vocabulary.events import PauseChanged, PauseRequested, PausesRead


def pause_requested(turn: Turn, event: PauseRequested) -> list[Effect]:
    """Write the requested pause to the store; one that leads writes under its lease."""
    state, leadership = turn.state, turn.state.leadership
    if event.model not in state.fleet.models:
        return []
    lease_id = leadership.lease_id if state.leading else 0
    return [WritePause(event.model, event.paused, event.by, event.request, leadership.scope, lease_id)]


def pauses_read(turn: Turn, event: PausesRead) -> None:
    """Replace all known pauses by those of the store."""
    turn.state.paused = dict(sorted(event.paused.items()))
    turn.state.pause_revisions.clear()  # a store that was restored has lower ones
    turn.mark_all_changed()


def pause_changed(turn: Turn, event: PauseChanged) -> None:
    """Record that a model was paused or resumed, unless a later change is known."""
    state, model = turn.state, event.model
    state.pauses_written = max(state.pauses_written, event.request)
    if event.revision < state.pause_revisions.get(model, 0):  # the answer to a write may come before earlier changes
        return
    state.paused.pop(model, None)
    if event.paused:
        state.paused[model] = event.by
    if model in state.fleet.models:
        state.pause_revisions[model] = event.revision
        turn.mark_changed(model)
