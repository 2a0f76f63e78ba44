"""Latest decisions of each model, with their explanations and last known states."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from loadline.core.state.explanation_log import EncodedExplanation
from loadline.core.vocabulary.status import DecisionSummary
from loadline.web.page_data import DecisionPage, decision_page

DECISIONS_MAX: Final = 64
"""Decisions of a model that the page lists."""
FLEET_DECISIONS_MAX: Final = 4_096
"""Decisions of all models: some 8 MB."""

_Key = tuple[int, str]


class DecisionLog:
    """Decisions and advice by model, bounded.

    Args:
        models: Number of models, which divide ``FLEET_DECISIONS_MAX``.
    """

    def __init__(self, models: int) -> None:
        self._kept_max = DECISIONS_MAX
        self._explanations: dict[str, OrderedDict[_Key, EncodedExplanation]] = {}
        self._states: dict[str, OrderedDict[str, tuple[str, str]]] = {}
        self._revisions: dict[str, int] = {}
        self.divide_among(models)

    def divide_among(self, models: int) -> None:
        """Divide the decisions among another number of models: if these are more, each loses its oldest ones."""
        kept_max = max(4, min(DECISIONS_MAX, FLEET_DECISIONS_MAX // max(1, models)))
        if kept_max < self._kept_max:
            for model in self._revisions:
                _shorten(self._explanations.get(model, OrderedDict()), kept_max)
                _shorten(self._states.get(model, OrderedDict()), kept_max)
        self._kept_max = kept_max

    def add(self, explanations: Iterable[EncodedExplanation]) -> None:
        """Add explanations, oldest first; known ones change only if another decision superseded them."""
        held: dict[str, list[EncodedExplanation]] = {}
        for one in explanations:
            held.setdefault(one.model, []).append(one)
        for model, found in held.items():
            kept = self._explanations.setdefault(model, OrderedDict())
            # The core may hold more: those before a known one were let go, and would take the place of newer ones.
            first = next((place for place, one in enumerate(found) if _key(one) in kept), 0)
            for one in found[first:]:
                self._add(kept, one)

    def _add(self, kept: OrderedDict[_Key, EncodedExplanation], one: EncodedExplanation) -> None:
        known = kept.get(_key(one))
        if known != one:
            kept[_key(one)] = one
            _shorten(kept, self._kept_max)
            self._change(one.model)

    def update(self, model: str, decision: DecisionSummary | None) -> None:
        """Keep the state of a model's newest decision."""
        if decision is None:
            return
        states, state = self._states.setdefault(model, OrderedDict()), (decision.state, decision.detail)
        if states.get(decision.decision_id) != state:
            states[decision.decision_id] = state
            _shorten(states, self._kept_max)
            self._change(model)

    def forget_others(self, models: set[str]) -> None:
        """Forget models that are no longer configured."""
        for name in self._revisions.keys() - models:
            for kept in (self._explanations, self._states, self._revisions):
                kept.pop(name, None)

    def revision(self, model: str) -> int:
        """Return a number that rises with each change of a model's decisions."""
        return self._revisions.get(model, 0)

    def pages(self, model: str) -> list[DecisionPage]:
        """Return the decisions of a model, newest first."""
        states = self._states.get(model, OrderedDict())
        found = reversed(self._explanations.get(model, OrderedDict()).values())
        return [decision_page(one.decode(), *states.get(one.decision_id, ("", ""))) for one in found]

    def _change(self, model: str) -> None:
        self._revisions[model] = self._revisions.get(model, 0) + 1


def _key(one: EncodedExplanation) -> _Key:
    return one.at_ms, one.decision_id


def _shorten(kept: OrderedDict[_Key, EncodedExplanation] | OrderedDict[str, tuple[str, str]], size_max: int) -> None:
    while len(kept) > size_max:
        kept.popitem(last=False)
