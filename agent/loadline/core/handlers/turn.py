"""What the handlers of one turn share."""

from loadline.core.events import ForecastFailed, ForecastFitted
from loadline.core.state import State


class Turn:
    """One turn of the controller: all that is known, the time, and the models whose picture has changed in it."""

    __slots__ = ("_changed", "answers", "learned", "now", "state")

    def __init__(self, state: State, now: int) -> None:
        self.state = state
        self.now = now
        """Unix time in ms."""
        self._changed: dict[str, None] = {}
        self.answers: dict[str, list[ForecastFitted | ForecastFailed]] = {}
        """Forecasts by model, for its planner."""
        self.learned: dict[str, None] = {}
        """Models of which the store has told what was learned."""

    def change(self, model: str) -> None:
        """Have a model planned at the end of this turn."""
        self._changed[model] = None

    def answer(self, event: ForecastFitted | ForecastFailed) -> None:
        """Have a model's planner take a forecast, and plan."""
        if event.model in self.state.fleet.models:
            self.answers.setdefault(event.model, []).append(event)
            self.change(event.model)

    def change_all(self) -> None:
        """Have all models planned."""
        self._changed.update(dict.fromkeys(self.state.fleet.models))

    def to_plan(self) -> list[str]:
        """The models that have changed or are due, by name."""
        due = [name for name, at in self.state.due.items() if at <= self.now]
        return sorted({*self._changed, *due})

    def forget(self, model: str) -> None:
        """A model is none of ours any more."""
        self._changed.pop(model, None)
        self.learned.pop(model, None)
