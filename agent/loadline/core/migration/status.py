"""Migrations in the status and in explanations: those in flight, counts, and reports of the policies."""

from collections.abc import Iterable
from typing import Final

from loadline.core.migration.in_flight import InFlightMigration
from loadline.core.migration.model_state import ModelMigrationState
from loadline.core.migration.outcomes import PolicyReport
from loadline.core.vocabulary.status import DurationTotal, InFlightStatus, MigrationStatus

LISTED_MAX: Final = 64
"""Maximum migrations and workers in the status of a model, which then has about 15 kB."""


def migration_status(state: ModelMigrationState, in_flight: Iterable[InFlightMigration], now: int) -> MigrationStatus:
    """Return the migrations of a model at ``now`` (ms).

    Args:
        state: Migration state of the model.
        in_flight: Migrations in flight of the model.
        now: Time in ms.
    """
    migrations = [migration for migration in in_flight if not migration.ended]
    tally, silent = state.tally, state.peers.open_breakers(now)
    return MigrationStatus(
        in_flight=len(migrations),
        in_flight_commands=tuple(
            InFlightStatus(
                migration.command.command_id,
                migration.command.source.worker,
                migration.command.destination.worker,
                migration.command.trigger,
                migration.phase,
                now - migration.sent_at_ms,
                migration.requests,
                migration.moved,
            )
            for migration in migrations[:LISTED_MAX]
        ),
        commands=dict(sorted(tally.commands.items())),
        requests=dict(sorted(tally.requests.items())),
        tokens=dict(sorted(tally.tokens.items())),
        phases={phase: DurationTotal(count, tally.phases_ms[phase]) for phase, count in sorted(tally.phases.items())},
        silent=len(silent),
        silent_workers=tuple(silent[:LISTED_MAX]),
        recent=tally.recent(now),
    )


def drained_workers(state: ModelMigrationState) -> DurationTotal:
    """Return the count and the total duration of the drains of a model."""
    return DurationTotal(state.tally.emptied, state.tally.emptied_ms)


def policy_reports(state: ModelMigrationState) -> list[PolicyReport]:
    """Return the last reports of the policies of a model, by group and policy."""
    return [report for _, group in sorted(state.groups.items()) for _, report in sorted(group.reports.items())]
