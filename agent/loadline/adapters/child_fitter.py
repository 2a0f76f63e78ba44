"""Forecasts and allocations in one child process each, so that a slow one delays neither the agent nor the other."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from loadline.adapters.forecast_child import UNLIMITED
from loadline.adapters.process_child import ChildUnanswered, ProcessChild, module_command
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery
from loadline.forecast import last_value

_GRACE_S: Final = 1.0
"""Time beyond the solver's limit, to encode and decode a problem of 1,000 models."""

_forecasts = msgspec.json.Decoder(Forecast | None)
_allocations = msgspec.json.Decoder(Allocation | None)


class ChildFitter:
    """A ``Fitter`` that starts its children when they are first needed.

    Args:
        scoring_limited: Score slow candidates of the predictor ``auto`` over time; or at once, within the deadline.
        command: Another forecast child with the same protocol.
        solver: Another solver child.
        on_unstarted: Called with a sentence when a child cannot start, and again only after it has started.
    """

    def __init__(
        self,
        *,
        scoring_limited: bool = True,
        command: Sequence[str] = (),
        solver: Sequence[str] = (),
        on_unstarted: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._fits = ProcessChild(
            command or module_command("loadline.adapters.forecast_child", () if scoring_limited else (UNLIMITED,)),
            lambda reason: on_unstarted(f"the forecasting process cannot start: {reason}"),
        )
        self._solver = ProcessChild(
            solver or module_command("loadline.adapters.solver_child"),
            lambda reason: on_unstarted(f"the process of the exact solver cannot start: {reason}"),
        )

    @property
    def pid(self) -> int:
        """Process id of the forecast child; 0 while there is none."""
        return self._fits.pid

    async def fit(self, query: ForecastQuery, deadline_s: float) -> Forecast | None:
        """Return the forecast, or the last value if the child is late, dead or invalid; see ``Fitter``."""

        def parse(frame: bytes) -> Forecast | None:
            answer: Forecast | None = _forecasts.decode(frame)
            if answer is None:
                return None
            if not len(answer.mean) == len(answer.upper) == query.horizon:
                raise ValueError("the horizon differs from that of the query")
            if not all(0.0 <= mean <= upper for mean, upper in zip(answer.mean, answer.upper, strict=True)):
                raise ValueError("a mean is negative or above its upper value")
            return answer

        try:
            return await self._fits.ask(msgspec.json.encode(query), parse, deadline_s)
        except ChildUnanswered as error:
            return last_value(query, error.why, error.detail)

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
        """Return the allocation, or None if there is none; see ``Fitter``."""
        frame = msgspec.json.encode({"problem": problem, "time_limit_s": time_limit_s})
        try:
            return await self._solver.ask(frame, _allocations.decode, time_limit_s + _GRACE_S)
        except ChildUnanswered:
            return None

    async def close(self) -> None:
        """Kill the children and wait until they have ended."""
        await self._fits.close()
        await self._solver.close()
