"""Migration as the status and explanations show it: migrations in flight, counts, and reports of the policies."""

from typing import Final

from loadline.core.migration.memory import MigrationMemory
from loadline.core.migration.model_state import ModelMigrationState
from loadline.core.migration.outcomes import PolicyReport
from loadline.core.vocabulary.status import DurationTotal, InFlightStatus, MigrationStatus

LISTED_MAX: Final = 64
"""Migrations and workers that are listed by model: 1,024 models then take 15 kB each."""


def migration_status(memory: MigrationMemory, model: str, now: int) -> MigrationStatus:
    """Return the migrations of a model at ``now`` (ms)."""
    state = memory.models.get(model, ModelMigrationState())
    migrations = [migration for migration in memory.in_flight.of_model(model) if not migration.ended]
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


def drained_workers(memory: MigrationMemory, model: str) -> DurationTotal:
    """Return the count of drained workers of a model and the time that took."""
    state = memory.models.get(model, ModelMigrationState())
    return DurationTotal(state.tally.emptied, state.tally.emptied_ms)


def policy_reports(memory: MigrationMemory, model: str) -> list[PolicyReport]:
    """Return the last reports of the policies of a model, or of all (empty), by model, group and policy."""
    return [
        report
        for name, state in sorted(memory.models.items())
        if model in {"", name}
        for _, group in sorted(state.groups.items())
        for _, report in sorted(group.reports.items())
    ]
