"""Forecasts and allocations of a simulation, computed in the caller in zero virtual time: results are reproducible."""

from typing import Final

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery
from loadline.forecast import forecast
from loadline.solver import solve

_TIME_LIMIT_S: Final = 3_600.0
"""Limit that no allocation of a simulation reaches, so that results do not depend on the speed of the machine."""


class InlineFitter:
    """``Fitter`` without a child process and without deadlines."""

    async def fit(self, query: ForecastQuery, deadline_s: float) -> Forecast | None:
        """Return the forecast; it takes no virtual time."""
        del deadline_s
        return forecast(query)

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
        """Return the allocation; it takes no virtual time."""
        del time_limit_s
        return solve(problem, _TIME_LIMIT_S)

    async def close(self) -> None:
        """Do nothing: there is no process to stop."""
