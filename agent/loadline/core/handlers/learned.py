"""Handlers of stored learned state: startup times of pools, and parameters that planners fit."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.events import LearnedChanged, LearnedRead


def learned_read(turn: Turn, event: LearnedRead) -> None:
    """Replace the stored learned state of all models."""
    models = turn.state.fleet.models
    turn.state.stored = dict(sorted(event.learned.items()))
    turn.learned.update(dict.fromkeys(name for name in turn.state.stored if name in models))


def learned_changed(turn: Turn, event: LearnedChanged) -> None:
    """Replace or remove the stored learned state of one model."""
    turn.state.stored.pop(event.model, None)
    turn.learned.pop(event.model, None)
    if event.learned is not None:
        turn.state.stored[event.model] = event.learned
        if event.model in turn.state.fleet.models:
            turn.learned[event.model] = None
