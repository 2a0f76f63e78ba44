"""When workers may be emptied for nothing but order: only where it can be done, keeps being so, and stays done.

A worker that whoever routes gives work is not emptied: it would be filled again. One that was emptied and has work
again was emptied for nothing. After each time that most of them have, the next one waits twice as long.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.migration.amounts import requests_within_slo
from loadline.core.migration.columns import Mask
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.load_metrics import REQUESTS
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.outcomes import MigrationCode, NotPlanned

_WAIT_MAX_MS: Final = 3_600_000
_DOUBLED_MAX: Final = 20
_LOOKED_AT: Final = 8
"""Destinations that are asked how much they can take: those that come later are the emptiest."""

Names = list[str]


class Consolidation(Struct):
    """What is remembered of the emptying of workers of one group."""

    since_ms: int = -1
    """Since when there is one that could be emptied."""
    emptied: Names = []
    """Workers that the last round has had emptied, and those that it is about."""
    done: Names = []
    """Of these, those that were empty since: what they have now has come after that."""
    began_ms: int = -1
    """When it began."""
    round_ends_ms: int = -1
    """When it is looked whether they stayed empty; -1: there was no round."""
    failed_rounds: int = 0
    """Rounds in a row that came to nothing."""
    not_before_ms: int = 0

    def judge(self, view: LoadView, now: int) -> None:
        """See who of the last round is empty, and, once its time is over or all were for a while, what became of it."""
        if self.round_ends_ms < 0:
            return
        requests, after_ms = view.measure(REQUESTS), view.knobs.consolidate_after_ms
        busy = {name for (_, name), row in view.table.rows.items() if requests[row] > 0.0}
        self.done += [name for name in self.emptied if name not in busy and name not in self.done]
        filled = sum(name in busy for name in self.emptied)
        if not filled:
            self.round_ends_ms = min(self.round_ends_ms, now + after_ms)
        if now < self.round_ends_ms:
            return
        self.failed_rounds = self.failed_rounds + 1 if 2 * filled >= len(self.emptied) else 0
        wait_ms = min(after_ms << min(self.failed_rounds, _DOUBLED_MAX), _WAIT_MAX_MS)
        self.not_before_ms = now + (wait_ms if self.failed_rounds else 0)
        self.emptied, self.done, self.round_ends_ms = [], [], -1
        if self.failed_rounds:
            self.since_ms = -1

    def allowed(self, view: LoadView, sources: Mask, destinations: Mask, now: int) -> tuple[Mask, NotPlanned | None]:
        """Which of those that could be emptied may be, or why none may."""
        after_ms, nobody = view.knobs.consolidate_after_ms, np.zeros_like(sources)
        last_assigned_at_ms = view.columns.last_assigned_at_ms
        if self.round_ends_ms >= 0:  # a round goes on with those that it began with, until they are empty or filled
            named = set(self.emptied) - set(self.done)
            its = np.asarray([name in named for _, name in view.table.keys], dtype=np.bool_)
            return sources & its & (last_assigned_at_ms < self.began_ms), None
        since_ms = now if self.since_ms < 0 else self.since_ms
        age_ms, needed_ms = now - since_ms, max(after_ms, self.not_before_ms - since_ms)
        due = age_ms >= needed_ms
        left_alone = sources & (now - last_assigned_at_ms >= after_ms)
        if due and not left_alone.any():
            return nobody, NotPlanned.of(MigrationCode.GIVEN_WORK, within_ms=after_ms)
        givers, most = (left_alone, len(view.table)) if due else (sources, 1)
        fits, refusal = _could_be_emptied(view, givers, destinations, most)
        if not fits.any():
            self.since_ms = -1
            return nobody, refusal
        self.since_ms = since_ms
        if not due:
            return nobody, NotPlanned.of(MigrationCode.TOO_SOON, age_ms=age_ms, needed_ms=needed_ms)
        return fits, None

    def begun(self, names: Names, knobs: MigrationKnobs, now: int) -> None:
        """These are being emptied."""
        if self.round_ends_ms < 0:
            self.began_ms = now
            self.round_ends_ms = now + knobs.ttl_ms + knobs.consolidate_after_ms
        self.emptied += [name for name in names if name not in self.emptied]


def _could_be_emptied(view: LoadView, sources: Mask, destinations: Mask, most: int) -> tuple[Mask, NotPlanned | None]:
    """Those, the emptiest first and at most so many, whose requests all fit elsewhere.

    Each destination counts once: it is not known how much room is left in it.
    """
    found = np.zeros_like(sources)
    givers = view.ordered(sources, "predicted_tpot", most, descending=False).tolist()
    takers = view.ordered(destinations, "predicted_tpot", _LOOKED_AT, descending=True).tolist()
    for giver in givers:
        requests, each = int(view.movable[giver]), view.tokens_per_request(giver)
        others, room, used = [taker for taker in takers if taker != giver], 0, 0
        while used < len(others) and room < requests:
            room += requests_within_slo(view, others[used], each, requests)
            used += 1
        if room < requests or requests < view.measure(REQUESTS)[giver]:
            refusal = NotPlanned.of(MigrationCode.NOT_EMPTIED, room=room, requests=float(view.measure(REQUESTS)[giver]))
            return found, None if found.any() else refusal
        found[giver] = True
        takers = [taker for taker in others[used:] if not found[taker]]
    return found, None
