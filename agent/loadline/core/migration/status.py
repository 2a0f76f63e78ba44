"""What is said of the moves of a model: those in flight, what became of the others, and what the policies last saw."""

from typing import Final

from loadline.core.migration.memory import MigrationMemory, MigrationTally
from loadline.core.migration.outcomes import PolicyReport
from loadline.core.migration.peers import MigrationPeers
from loadline.core.vocabulary.status import DurationTotal, InFlightStatus, MigrationStatus

LISTED_MAX: Final = 64
"""Moves, and workers that do not answer: of 1,024 models these are 15 kB each."""


def migration_status(memory: MigrationMemory, model: str, now: int) -> MigrationStatus:
    """The moves of a model at ``now`` (ms)."""
    flights = [flight for flight in memory.flights.of_model(model) if not flight.ended]
    tally, peers = memory.tallies.get(model, MigrationTally()), memory.peers.get(model, MigrationPeers())
    silent = sorted(key.partition("\0")[2] for key, peer in peers.known.items() if peer.breaker_open_until_ms > now)
    return MigrationStatus(
        in_flight=len(flights),
        in_flight_commands=tuple(
            InFlightStatus(
                flight.move.command_id,
                flight.move.source.worker,
                flight.move.destination.worker,
                flight.move.trigger,
                flight.phase,
                now - flight.sent_at_ms,
                flight.requests,
                flight.moved,
            )
            for flight in flights[:LISTED_MAX]
        ),
        commands=dict(sorted(tally.commands.items())),
        requests=dict(sorted(tally.requests.items())),
        tokens=dict(sorted(tally.tokens.items())),
        phases={phase: DurationTotal(count, tally.phases_ms[phase]) for phase, count in sorted(tally.phases.items())},
        silent=len(silent),
        silent_workers=tuple(silent[:LISTED_MAX]),
    )


def drained_workers(memory: MigrationMemory, model: str) -> DurationTotal:
    """The workers of a model that were drained."""
    tally = memory.tallies.get(model, MigrationTally())
    return DurationTotal(tally.emptied, tally.emptied_ms)


def policy_reports(memory: MigrationMemory, model: str) -> list[PolicyReport]:
    """What the policies last saw, of one model or of all (empty), by model, group and policy."""
    return [look for _, look in sorted(memory.looks.items()) if model in {"", look.model}]
