"""Forecasts and allocations that fail: what an agent gets of a child process that hangs, dies or answers garbage."""

from typing import Literal

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery
from loadline.forecast import last_value
from loadline.sim.world.fitter import InlineFitter
from loadline.sim.world.tasks import sleep
from loadline.sim.world.timeline import Timeline

FitFault = Literal["none", "late", "garbled"]


class FaultyFitter(InlineFitter):
    """``Fitter`` with the answers of the adapter for a child that fails: late ones at the deadline, others at once.

    Args:
        timeline: Virtual time.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.fault: FitFault = "none"
        self._timeline = timeline

    async def fit(self, query: ForecastQuery, deadline_s: float) -> Forecast | None:
        """Return the forecast, or the last value."""
        if self.fault == "none":
            return await super().fit(query, deadline_s)
        if self.fault == "garbled":
            return last_value(query, "failed", "the answer is no forecast")
        await sleep(self._timeline, 1_000.0 * deadline_s)
        return last_value(query, "late", "no answer in time")

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
        """Return the allocation, or None."""
        if self.fault == "none":
            return await super().solve(problem, time_limit_s)
        if self.fault == "late":
            await sleep(self._timeline, 1_000.0 * time_limit_s)
        return None
