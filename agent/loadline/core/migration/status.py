"""Migration as the status and explanations show it: migrations in flight, counts, and reports of the policies."""

from collections.abc import Iterable
from typing import Final

from loadline.core.migration.in_flight import InFlightMigration
from loadline.core.migration.model_state import ModelMigrationState
from loadline.core.migration.outcomes import PolicyReport
from loadline.core.vocabulary.status import DurationTotal, InFlightStatus, MigrationStatus

LISTED_MAX: Final = 64
"""Migrations and workers that are listed by model: 1,024 models then take 15 kB each."""


def migration_status(state: ModelMigrationState, in_flight: Iterable[InFlightMigration], now: int) -> MigrationStatus:
    """Return the migrations of a model at ``now`` (ms).

    Args:
        state: Memory of the model.
        in_flight: Its migrations in flight.
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
    )


def drained_workers(state: ModelMigrationState) -> DurationTotal:
    """Return the count of drained workers of a model and the time that took."""
    return DurationTotal(state.tally.emptied, state.tally.emptied_ms)


def policy_reports(state: ModelMigrationState) -> list[PolicyReport]:
    """Return the last reports of the policies of a model, by group and policy."""
    return [report for _, group in sorted(state.groups.items()) for _, report in sorted(group.reports.items())]
