"""Consolidation rounds, in which workers are emptied to save GPUs.

A worker is eligible if its requests have fitted elsewhere for ``consolidate_after_ms`` and no router has assigned it a
request in this time; otherwise, it would fill up again. A round fails if at least half of its workers have requests at
its end. The wait before the next round doubles with each consecutive failure.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import Mask
from loadline.core.migration.amounts import requests_within_slo
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.measures import REQUESTS
from loadline.core.migration.outcomes import MigrationCode, NotPlanned

_WAIT_MAX_MS: Final = 3_600_000
_DOUBLINGS_MAX: Final = 20
_DESTINATIONS_MAX: Final = 8
"""Number of destinations that are evaluated, the fullest first."""

Names = list[str]


class Consolidation(Struct):
    """State of the consolidation of one group. Times are in ms; -1: none."""

    eligible_since_ms: int = -1
    """Time since which a worker could be emptied."""
    workers: Names = []
    """Workers of the current round."""
    emptied: Names = []
    """Workers of the round that have been empty; requests that they have now arrived later."""
    round_started_ms: int = -1
    round_ends_ms: int = -1
    """Time at which the round is evaluated; -1: there is no round."""
    failed_rounds: int = 0
    """Consecutive rounds that failed."""
    not_before_ms: int = 0
    """Earliest start of the next round."""

    def evaluate_round(self, view: LoadView, now: int) -> None:
        """Record the empty workers of the round; end the round at its end time, or earlier if all stay empty."""
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
        """Return the sources that may be emptied at ``now`` (ms), or the reason why none may."""
        after_ms, none = view.knobs.consolidate_after_ms, np.zeros_like(sources)
        last_assigned_at_ms = view.columns.last_assigned_at_ms
        if self.round_ends_ms >= 0:  # a round continues with its own workers until they are empty or get new requests
            remaining = set(self.workers) - set(self.emptied)
            of_round = np.asarray([name in remaining for _, name in view.table.keys], dtype=np.bool_)
            return sources & of_round & (last_assigned_at_ms < self.round_started_ms), None
        since_ms = now if self.eligible_since_ms < 0 else self.eligible_since_ms
        age_ms, needed_ms = now - since_ms, max(after_ms, self.not_before_ms - since_ms)
        due = age_ms >= needed_ms
        unassigned = sources & (now - last_assigned_at_ms >= after_ms)
        if due and not np.count_nonzero(unassigned):
            return none, NotPlanned.of(MigrationCode.GIVEN_WORK, within_ms=after_ms)
        candidates, limit = (unassigned, len(view.table)) if due else (sources, 1)
        found, obstacle = _could_be_emptied(view, candidates, destinations, limit)
        if not np.count_nonzero(found):
            self.eligible_since_ms = -1
            return none, obstacle
        self.eligible_since_ms = since_ms
        if not due:
            return none, NotPlanned.of(MigrationCode.TOO_SOON, age_ms=age_ms, needed_ms=needed_ms)
        return found, None

    def join_round(self, names: Names, knobs: MigrationKnobs, now: int) -> None:
        """Add workers that are being emptied to the round; start a round if there is none."""
        if self.round_ends_ms < 0:
            self.round_started_ms = now
            self.round_ends_ms = now + knobs.ttl_ms + knobs.consolidate_after_ms
        self.workers += [name for name in names if name not in self.workers]


def _could_be_emptied(view: LoadView, sources: Mask, destinations: Mask, limit: int) -> tuple[Mask, NotPlanned | None]:
    """Return at most ``limit`` sources, emptiest first, whose requests all fit elsewhere, or why there is none.

    Each destination counts for one source only, since its remaining room is unknown.
    """
    found = np.zeros_like(sources)
    source_rows = view.ordered(sources.nonzero()[0], "predicted_tpot", limit, descending=False).tolist()
    remaining = view.ordered(destinations.nonzero()[0], "predicted_tpot", _DESTINATIONS_MAX, descending=True).tolist()
    for source in source_rows:
        requests, each = int(view.movable[source]), view.tokens_per_request(source)
        others, room, used = [row for row in remaining if row != source], 0, 0
        while used < len(others) and room < requests:
            room += requests_within_slo(view, others[used], each, requests)
            used += 1
        if room < requests or requests < view.measure(REQUESTS)[source]:
            total = float(view.measure(REQUESTS)[source])
            obstacle = NotPlanned.of(MigrationCode.NOT_EMPTIED, room=room, requests=total)
            return found, None if np.count_nonzero(found) else obstacle
        found[source] = True
        remaining = [row for row in others[used:] if not found[row]]
    return found, None
