"""Context of the handlers of one turn."""

from typing import Final

from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted

PLANNED_MAX: Final = 10
"""Models that one turn plans. To plan one takes 0.1 ms, and 0.5 ms where its pools are sized; until the turn is over
nothing is heard, and no effect performed."""


class Turn:
    """One turn of the controller: the state, the time, and the models that changed in it."""

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
        """Plan a model at the end of this turn, or of one of the next."""
        self._changed[model] = None

    def answer(self, event: ForecastFitted | ForecastFailed) -> None:
        """Pass a forecast to a model's planner in its next round."""
        model = self.state.fleet.models.get(event.model)
        if model is not None:
            model.forecasts.append(event)
            self.change(event.model)

    def change_all(self) -> None:
        """Plan all models at the end of this turn: models that share supplies need each other's demand."""
        self._all = True

    def to_plan(self) -> list[str]:
        """Return the models to plan by name, longest waiting first; the others follow in the next turns."""
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
        """Forget a model that is no longer configured."""
        self._changed.pop(model, None)
        self.learned.pop(model, None)
