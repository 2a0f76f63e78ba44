"""Fits and allocations, in a child process each: one that is slow holds up neither the agent nor the other."""

from collections.abc import Sequence
from typing import Final

import msgspec

from loadline.adapters.process_child import ChildUnanswered, ProcessChild, module_command
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery
from loadline.forecast import last_value

_GRACE_S: Final = 1.0
"""Beside the time that a solver may take: to write down a problem of 1,000 models, and to read it."""

_forecasts = msgspec.json.Decoder(Forecast | None)
_allocations = msgspec.json.Decoder(Allocation | None)


class ChildFitter:
    """A ``Fitter`` whose children are started when they are first needed.

    Args:
        imports: Modules that the child that fits imports as it starts, so that no fit has to wait for them.
        command: Another child that fits, which speaks the same protocol.
        solver: Another child that allocates.
    """

    def __init__(self, imports: Sequence[str] = (), command: Sequence[str] = (), solver: Sequence[str] = ()) -> None:
        self._fits = ProcessChild(
            (*command, *imports) if command else module_command("loadline.adapters.forecast_child", imports)
        )
        self._solver = ProcessChild(solver or module_command("loadline.adapters.solver_child"))

    @property
    def pid(self) -> int:
        """Of the child that fits; 0 while there is none."""
        return self._fits.pid

    async def fit(self, query: ForecastQuery, deadline_s: float) -> Forecast | None:
        """The forecast, or the last value where the child was late, died or talked nonsense; see ``Fitter``."""

        def understood(frame: bytes) -> Forecast | None:
            answer: Forecast | None = _forecasts.decode(frame)
            if answer is not None and not len(answer.mean) == len(answer.upper) == query.horizon:
                raise ValueError("another horizon than was asked for")
            return answer

        try:
            return await self._fits.ask(msgspec.json.encode(query), understood, deadline_s)
        except ChildUnanswered as error:
            return last_value(query, error.why, error.detail)

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
        """The allocation, or None where there is none; see ``Fitter``."""
        question = msgspec.json.encode({"problem": problem, "time_limit_s": time_limit_s})
        try:
            return await self._solver.ask(question, _allocations.decode, time_limit_s + _GRACE_S)
        except ChildUnanswered:
            return None

    async def close(self) -> None:
        """Kill the children and wait for their end."""
        await self._fits.close()
        await self._solver.close()
