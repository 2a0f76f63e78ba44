"""Forecasts and allocations that do not arrive: what an agent gets of a child process that hangs or dies."""

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery
from loadline.forecast import last_value
from loadline.sim.world.fitter import InlineFitter
from loadline.sim.world.tasks import sleep
from loadline.sim.world.timeline import Timeline


class FaultyFitter(InlineFitter):
    """``Fitter`` that answers only at the deadline, without an answer, while it fails.

    Args:
        timeline: Virtual time.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.fails = False
        self._timeline = timeline

    async def fit(self, query: ForecastQuery, deadline_s: float) -> Forecast | None:
        """Return the forecast, or the last value."""
        if not self.fails:
            return await super().fit(query, deadline_s)
        await sleep(self._timeline, 1_000.0 * deadline_s)
        return last_value(query, "late", "no answer in time")

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
        """Return the allocation, or None."""
        if not self.fails:
            return await super().solve(problem, time_limit_s)
        await sleep(self._timeline, 1_000.0 * time_limit_s)
        return None
