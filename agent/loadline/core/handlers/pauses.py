"""Handlers of pauses. A request writes the pause to the store; what the store has written is in force."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.effects import Effect, WritePause
from loadline.core.vocabulary.events import PauseChanged, PauseRequested, PausesRead


def pause_requested(turn: Turn, event: PauseRequested) -> list[Effect]:
    """Write the requested pause to the store, if this agent leads the model."""
    state, leadership = turn.state, turn.state.leadership
    if event.model not in state.fleet.models or not state.leading:
        return []
    return [WritePause(event.model, event.paused, event.by, event.request, leadership.scope, leadership.lease_id)]


def pauses_read(turn: Turn, event: PausesRead) -> None:
    """Replace the known pauses by those of the store, except for later ones: a write is confirmed before it is read."""
    state = turn.state
    if event.went_back:
        state.pause_revisions.clear()  # a store that was restored has lower revisions
    state.pause_revisions = {name: known for name, known in state.pause_revisions.items() if known > event.revision}
    later = {name: by for name, by in state.paused.items() if name in state.pause_revisions}
    read = {name: by for name, by in event.paused.items() if name not in state.pause_revisions}
    state.paused = dict(sorted((read | later).items()))
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
