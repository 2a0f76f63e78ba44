"""What the handlers of one turn share."""

from typing import Final

from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted

PLANNED_MAX: Final = 10
"""Models that one turn plans. To plan one takes 0.1 ms, and 0.5 ms where its pools are sized; until the turn is over
nothing is heard, and no effect performed."""


class Turn:
    """One turn of the controller: all that is known, the time, and the models whose picture has changed in it."""

    __slots__ = ("_all", "_changed", "learned", "now", "state")

    def __init__(self, state: AgentState, now: int) -> None:
        self.state = state
        self.now = now
        """Unix time in ms."""
        self._changed: dict[str, None] = {}
        self._all = False
        self.learned: dict[str, None] = {}
        """Models of which the store has told what was learned."""

    def change(self, model: str) -> None:
        """Have a model planned at the end of this turn, or of one of the next."""
        self._changed[model] = None

    def answer(self, event: ForecastFitted | ForecastFailed) -> None:
        """Have a model's planner take a forecast when it plans next."""
        model = self.state.fleet.models.get(event.model)
        if model is not None:
            model.forecasts.append(event)
            self.change(event.model)

    def change_all(self) -> None:
        """Have all models planned at the end of this turn: who shares what is limited has to know what all wish."""
        self._all = True

    def to_plan(self) -> list[str]:
        """The models to plan, by name: of those that have changed or are due the first, and the others come next."""
        models = self.state.fleet.models
        if self._all:
            return sorted(models)
        due = {name: model.plan_at_ms for name, model in models.items() if model.plan_at_ms <= self.now}
        waiting = dict.fromkeys(self._changed, self.now) | due
        first = sorted(waiting, key=lambda name: (waiting[name], name))
        for name in first[PLANNED_MAX:]:
            models[name].plan_at_ms = waiting[name]
        return sorted(first[:PLANNED_MAX])

    def forget(self, model: str) -> None:
        """A model is none of ours any more."""
        self._changed.pop(model, None)
        self.learned.pop(model, None)
