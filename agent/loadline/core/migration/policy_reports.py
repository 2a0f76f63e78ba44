"""What policies see when they look, and what became of each pair: for people who ask why something moved or not."""

from typing import Final

import numpy as np

from loadline.core.migration.columns import Mask
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.memory import MigrationMemory, key_of
from loadline.core.migration.outcomes import MigrationAmount, MigrationCode, NotPlanned, PairReport, PolicyReport
from loadline.core.migration.policies import Policy

PAIRS_KEPT: Final = 16
"""Of one look of a policy: more than people read."""
_IDLE: Final = frozenset({MigrationCode.NO_SOURCE, MigrationCode.LOAD_UNKNOWN, MigrationCode.TOO_MANY_SILENT})
"""Why a policy had nothing to look at: that is told anew each time that all workers are due."""
_ASKED: Final = frozenset({MigrationCode.PLANNED, MigrationCode.ADVISED})


class PolicyReports:
    """The looks of the policies of one model in one turn.

    Args:
        memory: Where the last ones are kept.
        model: Its name.
        doubt: Why silence is not believed now.
        now: In ms.
        advises: Whether it only says what would move.
    """

    def __init__(
        self, memory: MigrationMemory, model: str, doubt: NotPlanned | None, now: int, *, advises: bool
    ) -> None:
        self._memory = memory
        self._model = model
        self._code = MigrationCode.ADVISED if advises else MigrationCode.PLANNED
        self._doubt = doubt
        self._now = now

    def nobody_gives(self, one: Policy, group: str, view: LoadView, *, whole: bool) -> NotPlanned | None:
        """Why a policy has no source; None: that is known, or what it saw when it last had one says more."""
        if one.urgent and self._doubt is not None:
            return self._doubt
        last = self._last(one, group)
        if last is not None and not (last.code in _IDLE and (whole or last.code is MigrationCode.TOO_MANY_SILENT)):
            return None
        if one.metric is not None:
            unknown = view.sound & np.isnan(view.metric(one.metric(view.knobs)))
            if unknown.any():
                return NotPlanned.of(MigrationCode.LOAD_UNKNOWN, unknown=unknown.sum(), workers=view.sound.sum())
        return NotPlanned(MigrationCode.NO_SOURCE)

    def pair(self, source: str, destination: str, found: MigrationAmount | NotPlanned) -> PairReport:
        """What became of a pair of workers."""
        if isinstance(found, NotPlanned):
            return PairReport(source, destination, found.code, found.numbers)
        return PairReport(
            source, destination, self._code, {"requests": float(found.requests), "tokens": float(found.tokens)}
        )

    def note(  # noqa: PLR0917 - one argument for each part of it
        self,
        one: Policy,
        group: str,
        view: LoadView,
        sources: Mask,
        destinations: Mask,
        pairs: list[PairReport],
        refusal: NotPlanned | None,
    ) -> None:
        """Keep what a policy saw, unless what it saw before is being carried out."""
        asked = next((pair for pair in pairs if pair.code in _ASKED), None)
        if not pairs and self._is_under_way(one, group):
            return
        first = asked or next(iter(pairs), None)
        if refusal is not None or first is None:
            why = refusal or _nothing(view, sources, destinations)
            code, numbers = why.code, why.numbers
        else:
            code, numbers = first.code, first.numbers
        self._memory.looks[key_of(self._model, group, one.name)] = PolicyReport(
            self._model,
            one.name,
            group,
            self._now,
            code,
            numbers,
            int(sources.sum()),
            int(destinations.sum()),
            tuple(pairs),
        )

    def _last(self, one: Policy, group: str) -> PolicyReport | None:
        return self._memory.looks.get(key_of(self._model, group, one.name))

    def _is_under_way(self, one: Policy, group: str) -> bool:
        last = self._last(one, group)
        if last is None or last.code is not MigrationCode.PLANNED:
            return False
        flights = self._memory.flights.of_model(self._model)
        return any(flight.move.trigger == one.name and not flight.ended for flight in flights)


def _nothing(view: LoadView, sources: Mask, destinations: Mask) -> NotPlanned:
    """Why there is no pair although there are sources."""
    if destinations.any() and not (view.free_out[sources] >= 1.0).any():
        return NotPlanned.of(MigrationCode.NO_SLOTS, workers=sources.sum())
    return NotPlanned(MigrationCode.NO_DESTINATION)
