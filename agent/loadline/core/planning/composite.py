"""Two planners that one is made of: the first looks at the traffic to come, the other at the workers."""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planner import Finding, ForecastRequest, ModelSettings, Planner
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import History


class CompositePlanner(Planner):
    """What both parts are told, and what is asked of the first of them. A part has the name of its knobs."""

    first: ClassVar[str]
    """The part that forecasts."""

    parts: Any = None
    """A Struct of the two; None until it is made."""

    @classmethod
    def check(cls, knobs: Any, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield findings of each part."""
        for part in cls.composed_of:
            yield from part.check(getattr(knobs, part.name), model, f"{place}.{part.name}")

    @classmethod
    def describe(cls, knobs: Any, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield the sentences of each part."""
        for part in cls.composed_of:
            yield from part.describe(getattr(knobs, part.name), model, pool)

    @property
    def _each(self) -> dict[str, Planner]:
        return {name: getattr(self.parts, name) for name in self.parts.__struct_fields__}

    @property
    def _first(self) -> Planner:
        return self._each[self.first]

    def on_settings_change(self, before: Any) -> None:  # noqa: ARG002 - each part knows what it went by
        """Both parts follow."""
        for name, part in self._each.items():
            part.apply_settings(getattr(self.knobs, name))

    def forget_pool(self, pool: str) -> None:
        """In both parts."""
        for part in self._each.values():
            part.forget_pool(pool)

    def next_wake(self) -> int:
        """The sooner of the two."""
        return min(part.next_wake() for part in self._each.values())

    def warm_up(self, history: History) -> None:
        """For the first."""
        self._first.warm_up(history)

    def resume_requests_from(self, requests: int) -> None:
        """For the first."""
        self._first.resume_requests_from(requests)

    def forecast_request(self) -> ForecastRequest | None:
        """The forecasts of the first."""
        return self._first.forecast_request()

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        """For the first."""
        self._first.ingest_forecast(answer)

    def export_learned(self) -> bytes | None:
        """What each part has learned, by name."""
        found = {name: part.export_learned() for name, part in self._each.items()}
        found = {name: data for name, data in found.items() if data is not None}
        return msgspec.json.encode(found) if found else None

    def import_learned(self, data: bytes) -> None:
        """For each part."""
        for name, said in msgspec.json.decode(data, type=dict[str, bytes]).items():
            if name in self._each:
                self._each[name].import_learned(said)
