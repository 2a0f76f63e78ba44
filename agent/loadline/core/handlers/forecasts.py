"""Handlers of forecasts. A forecast that no planner waits for is ignored."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted


def forecast_fitted(turn: Turn, event: ForecastFitted) -> None:
    """Pass the forecast to the model's planner, which runs in this turn."""
    turn.answer(event)


def forecast_failed(turn: Turn, event: ForecastFailed) -> None:
    """Report the failure to the model's planner, which runs in this turn."""
    turn.answer(event)
    turn.state.count("forecasts_failed")
