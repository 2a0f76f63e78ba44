"""Forecasts in virtual time: made at once, where they are asked for, so that the same seed gives the same digest."""

from loadline.core.forecasts import Forecast, Question
from loadline.forecast import forecast


class InlineFitter:
    """A ``Fitter`` without a child process and without deadlines."""

    async def fit(self, question: Question, deadline_s: float) -> Forecast | None:
        """The forecast; it takes no virtual time."""
        del deadline_s
        return forecast(question)

    async def close(self) -> None:
        """There is nothing to stop."""
