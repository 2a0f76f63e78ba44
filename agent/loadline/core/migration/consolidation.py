"""Consolidation rounds: when workers may be emptied only to save GPUs.

A worker is eligible once it could have been emptied for ``consolidate_after_ms``, and if it has not been assigned a
request meanwhile, since a router would fill it again. A round failed if half of its workers have requests again at its
end. After each failed round in a row, the next one waits twice as long.
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
_DOUBLINGS_MAX: Final = 20
_DESTINATIONS_MAX: Final = 8
"""Destinations that are evaluated, the fullest first: later ones are the emptiest."""

Names = list[str]


class Consolidation(Struct):
    """State of the consolidation of one group. Times in ms; -1: none."""

    eligible_since_ms: int = -1
    """Time since which a worker could be emptied."""
    workers: Names = []
    """Workers of the current round."""
    emptied: Names = []
    """Workers of the round that have been empty: their requests have come since."""
    round_started_ms: int = -1
    round_ends_ms: int = -1
    """Time when the round is evaluated; -1: there is no round."""
    failed_rounds: int = 0
    """Consecutive rounds that failed."""
    not_before_ms: int = 0
    """Start of the next round at the earliest."""

    def evaluate_round(self, view: LoadView, now: int) -> None:
        """Record which workers of the round are empty, and end it once its time is over or all stay empty."""
        if self.round_ends_ms < 0:
            return
        requests, after_ms = view.measure(REQUESTS), view.knobs.consolidate_after_ms
        busy = {name for (_, name), row in view.table.rows.items() if requests[row] > 0.0}
        self.emptied += [name for name in self.workers if name not in busy and name not in self.emptied]
        filled = sum(name in busy for name in self.workers)
        if not filled:
            self.round_ends_ms = min(self.round_ends_ms, now + after_ms)
        if now < self.round_ends_ms:
            return
        self.failed_rounds = self.failed_rounds + 1 if 2 * filled >= len(self.workers) else 0
        wait_ms = min(after_ms << min(self.failed_rounds, _DOUBLINGS_MAX), _WAIT_MAX_MS)
        self.not_before_ms = now + (wait_ms if self.failed_rounds else 0)
        self.workers, self.emptied, self.round_ends_ms = [], [], -1
        if self.failed_rounds:
            self.eligible_since_ms = -1

    def eligible(self, view: LoadView, sources: Mask, destinations: Mask, now: int) -> tuple[Mask, NotPlanned | None]:
        """Return the sources that may be emptied now, or why none may."""
        after_ms, none = view.knobs.consolidate_after_ms, np.zeros_like(sources)
        last_assigned_at_ms = view.columns.last_assigned_at_ms
        if self.round_ends_ms >= 0:  # a round continues with its own workers until they are empty or filled again
            remaining = set(self.workers) - set(self.emptied)
            of_round = np.asarray([name in remaining for _, name in view.table.keys], dtype=np.bool_)
            return sources & of_round & (last_assigned_at_ms < self.round_started_ms), None
        since_ms = now if self.eligible_since_ms < 0 else self.eligible_since_ms
        age_ms, needed_ms = now - since_ms, max(after_ms, self.not_before_ms - since_ms)
        due = age_ms >= needed_ms
        unassigned = sources & (now - last_assigned_at_ms >= after_ms)
        if due and not unassigned.any():
            return none, NotPlanned.of(MigrationCode.GIVEN_WORK, within_ms=after_ms)
        candidates, limit = (unassigned, len(view.table)) if due else (sources, 1)
        found, obstacle = _could_be_emptied(view, candidates, destinations, limit)
        if not found.any():
            self.eligible_since_ms = -1
            return none, obstacle
        self.eligible_since_ms = since_ms
        if not due:
            return none, NotPlanned.of(MigrationCode.TOO_SOON, age_ms=age_ms, needed_ms=needed_ms)
        return found, None

    def join_round(self, names: Names, knobs: MigrationKnobs, now: int) -> None:
        """Add workers that are being emptied to the round, which starts with the first of them."""
        if self.round_ends_ms < 0:
            self.round_started_ms = now
            self.round_ends_ms = now + knobs.ttl_ms + knobs.consolidate_after_ms
        self.workers += [name for name in names if name not in self.workers]


def _could_be_emptied(view: LoadView, sources: Mask, destinations: Mask, limit: int) -> tuple[Mask, NotPlanned | None]:
    """Return at most ``limit`` sources, the emptiest first, whose requests all fit elsewhere, or why there is none.

    A destination serves one source only, since the room left in it is unknown.
    """
    found = np.zeros_like(sources)
    givers = view.ordered(sources, "predicted_tpot", limit, descending=False).tolist()
    takers = view.ordered(destinations, "predicted_tpot", _DESTINATIONS_MAX, descending=True).tolist()
    for giver in givers:
        requests, each = int(view.movable[giver]), view.tokens_per_request(giver)
        others, room, used = [taker for taker in takers if taker != giver], 0, 0
        while used < len(others) and room < requests:
            room += requests_within_slo(view, others[used], each, requests)
            used += 1
        if room < requests or requests < view.measure(REQUESTS)[giver]:
            total = float(view.measure(REQUESTS)[giver])
            obstacle = NotPlanned.of(MigrationCode.NOT_EMPTIED, room=room, requests=total)
            return found, None if found.any() else obstacle
        found[giver] = True
        takers = [taker for taker in others[used:] if not found[taker]]
    return found, None
