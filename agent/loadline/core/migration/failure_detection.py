"""Detection of failed workers, which are silent, stalled or unschedulable, and of their failure domains."""

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import Mask
from loadline.core.migration.failed_workers import FailedWorker
from loadline.core.migration.failure_domains import NO_FAILED_DOMAINS, DomainMember, FailedDomains, failed_domains
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.measures import REQUESTS
from loadline.core.migration.outcomes import MigrationCode, NotPlanned
from loadline.core.migration.worker_table import WorkerTable


class FailureAssessment(Struct, frozen=True):
    """The failed workers of a model."""

    failed: Mapping[str, Mask]
    """Workers that failed themselves, by group."""
    domains: FailedDomains
    """Failed domains of these workers and of workers outside the groups."""
    workers: list[FailedWorker]
    """Workers that failed themselves, by group and name."""
    silence_ignored: NotPlanned | None
    """Reason why silence does not count as failure; None: it counts."""


def detect_failures(
    tables: Mapping[str, WorkerTable],
    knobs: MigrationKnobs,
    elsewhere: Sequence[DomainMember],
    listening_since_ms: int,
    now: int,
) -> FailureAssessment:
    """Detect the failed workers of a model.

    Args:
        tables: Workers of the model, by group.
        knobs: Knobs of the model.
        elsewhere: Failed workers that are in none of the tables.
        listening_since_ms: Time since which the agent receives all reports; silence before it means nothing.
        now: Time in ms.
    """
    silent = {name: _silent(table, knobs, listening_since_ms, now) for name, table in tables.items()}
    silence_ignored = None
    if silent_count := sum(int(np.count_nonzero(one)) for one in silent.values()):
        alive_count = sum(int(np.count_nonzero(table.columns.alive)) for table in tables.values())
        if 2 * silent_count > alive_count:
            silence_ignored = NotPlanned.of(MigrationCode.TOO_MANY_SILENT, silent=silent_count, workers=alive_count)
            silent = {name: np.zeros_like(one) for name, one in silent.items()}
    failed = {name: _failed(table, silent[name], knobs, listening_since_ms, now) for name, table in tables.items()}
    workers = [
        FailedWorker.of(table.workers[row].record)
        for name, table in tables.items()
        for row in table.sorted_rows(failed[name])
    ]
    domains = NO_FAILED_DOMAINS
    if elsewhere or workers:
        pairs = [(table, failed[name]) for name, table in tables.items()]
        domains = failed_domains(pairs, elsewhere, knobs.failover_domain)
    return FailureAssessment(failed, domains, workers, silence_ignored)


def _silent(table: WorkerTable, knobs: MigrationKnobs, listening_since_ms: int, now: int) -> Mask:
    columns, silent_since_ms = table.columns, now - knobs.suspect_after_ms
    if listening_since_ms > silent_since_ms:
        return np.zeros(len(table), dtype=np.bool_)
    found: Mask = columns.alive & (columns.seen_at_ms <= silent_since_ms)
    return found


def _failed(table: WorkerTable, silent: Mask, knobs: MigrationKnobs, listening_since_ms: int, now: int) -> Mask:
    columns, unchanged_since_ms = table.columns, now - ceil(knobs.instance_staleness_seconds * 1_000)
    failed: Mask = silent | ~columns.schedulable
    if listening_since_ms <= unchanged_since_ms:
        failed |= (columns.measures[REQUESTS] > 0.0) & (columns.changed_at_ms <= unchanged_since_ms)
    failed &= columns.alive
    return failed
