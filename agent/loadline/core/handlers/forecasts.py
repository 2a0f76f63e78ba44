"""Forecasts that planners asked for. One that nobody waits for any more changes nothing."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted


def forecast_fitted(turn: Turn, event: ForecastFitted) -> None:
    """Hand it to the model's planner, which plans in this turn."""
    turn.answer(event)


def forecast_failed(turn: Turn, event: ForecastFailed) -> None:
    """Tell the model's planner, which plans in this turn."""
    turn.answer(event)
    turn.state.count("forecasts_failed")
