"""Models that operators have paused. The store says which; a request only has that written."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.effects import Effect, WritePause
from loadline.core.vocabulary.events import PauseChanged, PauseRequested, PausesRead


def pause_requested(turn: Turn, event: PauseRequested) -> list[Effect]:
    """Have it written."""
    return [WritePause(event.model, event.paused, event.by)] if event.model in turn.state.fleet.models else []


def pauses_read(turn: Turn, event: PausesRead) -> None:
    """Know all that are paused."""
    turn.state.paused = dict(sorted(event.paused.items()))
    turn.change_all()


def pause_changed(turn: Turn, event: PauseChanged) -> None:
    """One was paused or resumed."""
    turn.state.paused.pop(event.model, None)
    if event.paused:
        turn.state.paused[event.model] = event.by
    if event.model in turn.state.fleet.models:
        turn.change(event.model)
