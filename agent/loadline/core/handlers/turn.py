"""Context of the handlers of one turn."""

from collections.abc import Collection
from math import ceil
from typing import Final

from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted

PLANNED_MAX: Final = 10
"""Largest number of models planned in one turn. Planning takes 0.25 ms per model, 0.5 ms if pools are sized, and no
event is received and no effect executed meanwhile."""
PLANNED_MIN: Final = 4
"""Number of models planned in a turn in which no change waits: a report that arrives meanwhile, the commit of a
decision and its announcement each wait for the end of such a turn."""
EVENTS_PER_PLAN: Final = 100
"""Events that take about as long as three plans: a turn of many events plans one model less for each hundred of them,
but at least ``PLANNED_MIN``."""
TURN_MS: Final = 3
"""Time that a turn with ``PLANNED_MIN`` plans takes, with the pause after it."""
WAIT_MS: Final = 200
"""Time for which models that are due, or whose frontends have reported, give way to models whose workers have changed.
Planners with the same interval are due together, and frontends report together: 250 models take 63 turns, about 140 ms,
for which a change would wait."""


class Turn:
    """One turn of the controller: the state, the time, and the models to plan in it.

    Args:
        state: The state.
        now: Unix time in ms.
        events: Number of events that it handles.
    """

    __slots__ = ("_all", "_deadlines", "_planned_max", "learned", "now", "state")

    def __init__(self, state: AgentState, now: int, events: int = 0) -> None:
        self.state = state
        self.now = now
        """Unix time in ms."""
        self._deadlines: dict[str, int] = {}
        self._planned_max = max(PLANNED_MIN, PLANNED_MAX - events // EVENTS_PER_PLAN)
        self._all = False
        self.learned: dict[str, None] = {}
        """Models whose learned state was read from the store in this turn."""

    def mark_changed(self, model: str) -> None:
        """Mark a model as changed; it is planned at the end of this turn or in one of the next."""
        self._deadlines[model] = self.now

    def mark_due(self, model: str) -> None:
        """Mark a model as due: it gives way to changed ones, but not for long."""
        self._deadlines.setdefault(model, self.now + WAIT_MS)

    def add_forecast(self, event: ForecastFitted | ForecastFailed) -> None:
        """Store a forecast for the planner of its model, and plan the model."""
        model = self.state.fleet.models.get(event.model)
        if model is not None:
            model.forecasts.append(event)
            self.mark_due(event.model)

    def mark_all_changed(self) -> None:
        """Mark all models as changed; they are planned in one turn, since models that share supplies compete."""
        self._all = True

    def to_plan(self) -> list[str]:
        """Return the models to plan in this turn, by name: those with the earliest deadlines.

        The deadline of a change is now, that of a model that is due ``WAIT_MS`` later. Models whose deadline is later
        than now are added up to ``PLANNED_MIN``, or as many as let all be planned in time: later than their deadlines
        they would delay changes. The others are planned in the next turns and keep their deadlines.
        """
        models = self.state.fleet.models
        if self._all:
            return sorted(models)
        deadlines = {name: model.plan_at_ms + WAIT_MS for name, model in models.items() if model.plan_at_ms <= self.now}
        for name, deadline_ms in self._deadlines.items():
            deadlines[name] = min(deadlines.get(name, deadline_ms), deadline_ms)
        first = sorted(deadlines, key=lambda name: (deadlines[name], name))
        count = min(self._count(deadlines.values()), self._planned_max)
        for name in first[count:]:
            models[name].plan_at_ms = deadlines[name] - WAIT_MS
        return sorted(first[:count])

    def _count(self, deadlines_ms: Collection[int]) -> int:
        """Return how many models to plan if a turn had no limit."""
        later = [deadline_ms for deadline_ms in deadlines_ms if deadline_ms > self.now]
        urgent = len(deadlines_ms) - len(later)
        in_time = ceil(len(later) * TURN_MS / (min(later) - self.now)) if later else 0
        return max(urgent + in_time, PLANNED_MIN)

    def remove_model(self, model: str) -> None:
        """Remove a model that is no longer configured from the models to plan."""
        self._deadlines.pop(model, None)
        self.learned.pop(model, None)
