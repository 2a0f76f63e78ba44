"""Forecasts and allocations in virtual time: made at once where they are asked for, so a seed has one digest."""

from typing import Final

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery
from loadline.forecast import forecast
from loadline.solver import solve

_TIME_LIMIT_S: Final = 3_600.0
"""No problem of a simulation takes so long: who is fast and who is slow must not make a difference."""


class InlineFitter:
    """A ``Fitter`` without a child process and without deadlines."""

    async def fit(self, query: ForecastQuery, deadline_s: float) -> Forecast | None:
        """The forecast; it takes no virtual time."""
        del deadline_s
        return forecast(query)

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
        """The allocation; it takes no virtual time."""
        del time_limit_s
        return solve(problem, _TIME_LIMIT_S)

    async def close(self) -> None:
        """There is nothing to stop."""
