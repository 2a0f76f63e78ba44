"""Who fails: by itself, as it is silent, hangs or says so, and with it what shares its node or its unit."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from loadline.core.migration.columns import Mask
from loadline.core.migration.failure_domains import NO_FAILED_DOMAINS, DomainMember, FailedDomains, failed_domains
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.load_metrics import REQUESTS
from loadline.core.migration.memory import FailedWorker
from loadline.core.migration.outcomes import MigrationCode, NotPlanned
from loadline.core.migration.worker_table import WorkerTable


class FailureAssessment(Struct, frozen=True):
    """Who of the workers of a model fails."""

    own: Mapping[str, Mask]
    """By itself, by group."""
    domains: FailedDomains
    """What fails with these, and with those that fail elsewhere."""
    fallen: list[FailedWorker]
    """Those that fail by themselves, by group and name."""
    doubt: NotPlanned | None
    """Why silence is not believed."""


def detect_failures(
    boards: Mapping[str, WorkerTable],
    knobs: MigrationKnobs,
    elsewhere: Sequence[DomainMember],
    hearing_since_ms: int,
    now: int,
) -> FailureAssessment:
    """Find out who fails.

    Args:
        boards: All workers of a model, by group.
        knobs: What its rescheduler goes by.
        elsewhere: Workers that fail or have vanished and are on none of these boards.
        hearing_since_ms: Since when all that workers say is heard: nobody's silence before that means anything.
        now: In ms.
    """
    silences = {name: _silent(table, knobs, hearing_since_ms, now) for name, table in boards.items()}
    silent = sum(int(one.sum()) for one in silences.values())
    alive = sum(int(table.columns.alive.sum()) for table in boards.values())
    doubt = None
    if 2 * silent > alive:
        doubt = NotPlanned.of(MigrationCode.TOO_MANY_SILENT, silent=silent, workers=alive)
        silences = {name: np.zeros_like(one) for name, one in silences.items()}
    own = {name: _fails(table, silences[name], knobs, hearing_since_ms, now) for name, table in boards.items()}
    fallen = [
        FailedWorker(record.node, record.unit, record.data_parallel_size > 1)
        for name, table in boards.items()
        for record in (table.workers[row].record for row in table.sorted_rows(own[name]))
    ]
    pairs = [(table, own[name]) for name, table in boards.items()]
    domains = failed_domains(pairs, elsewhere, knobs.failover_domain) if elsewhere or fallen else NO_FAILED_DOMAINS
    return FailureAssessment(own, domains, fallen, doubt)


def _silent(table: WorkerTable, knobs: MigrationKnobs, hearing_since_ms: int, now: int) -> Mask:
    columns = table.columns
    heard_ms = np.maximum(columns.seen_at_ms, hearing_since_ms)
    found: Mask = columns.alive & (now - heard_ms >= knobs.suspect_after_ms)
    return found


def _fails(table: WorkerTable, silent: Mask, knobs: MigrationKnobs, hearing_since_ms: int, now: int) -> Mask:
    columns = table.columns
    hung_ms = knobs.instance_staleness_seconds * 1_000
    changed_ms = np.maximum(columns.changed_at_ms, hearing_since_ms)
    hung = (columns.measures[REQUESTS] > 0.0) & (now - changed_ms >= hung_ms)
    found: Mask = columns.alive & (silent | hung | ~columns.schedulable)
    return found
