"""Handlers of forecasts. Planners ignore forecasts that they do not wait for."""

from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import failed


def forecast_fitted(turn: Turn, event: ForecastFitted) -> None:
    """Pass a forecast to the planner of its model, which runs in this turn, and count it if a fit of it failed."""
    turn.add_forecast(event)
    if failed(event.forecasts):
        turn.state.count("forecasts_failed")


def forecast_failed(turn: Turn, event: ForecastFailed) -> None:
    """Report a failed forecast to the planner of its model, which runs in this turn."""
    turn.add_forecast(event)
    turn.state.count("forecasts_failed")
