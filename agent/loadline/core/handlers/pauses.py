"""Handlers of pauses. A request writes the pause to the store; the change of the key puts it into force."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.effects import Effect, WritePause
from loadline.core.vocabulary.events import PauseChanged, PauseRequested, PausesRead


def pause_requested(turn: Turn, event: PauseRequested) -> list[Effect]:
    """Write the requested pause to the store."""
    return [WritePause(event.model, event.paused, event.by)] if event.model in turn.state.fleet.models else []


def pauses_read(turn: Turn, event: PausesRead) -> None:
    """Replace all known pauses by those of the store."""
    turn.state.paused = dict(sorted(event.paused.items()))
    turn.mark_all_changed()


def pause_changed(turn: Turn, event: PauseChanged) -> None:
    """Record that a model was paused or resumed."""
    turn.state.paused.pop(event.model, None)
    if event.paused:
        turn.state.paused[event.model] = event.by
    if event.model in turn.state.fleet.models:
        turn.mark_changed(event.model)
