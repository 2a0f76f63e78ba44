"""What is said of the moves of a model: those in flight, what became of the others, and what the policies last saw."""

from typing import Final

from loadline.core.rescheduling.memory import Memory, Tally
from loadline.core.rescheduling.peers import Peers
from loadline.core.rescheduling.verdicts import PolicyLook
from loadline.core.status import MigrationStatus, MoveStatus, Timing

LISTED_MAX: Final = 64
"""Moves, and workers that do not answer: of 1,024 models these are 15 kB each."""


def summary(memory: Memory, model: str, now: int) -> MigrationStatus:
    """The moves of a model at ``now`` (ms)."""
    flights = [flight for flight in memory.flights.of_model(model) if not flight.ended]
    tally, peers = memory.tallies.get(model, Tally()), memory.peers.get(model, Peers())
    silent = sorted(key.partition("\0")[2] for key, peer in peers.known.items() if peer.shut_until_ms > now)
    return MigrationStatus(
        in_flight=len(flights),
        moves=tuple(
            MoveStatus(
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
        phases={phase: Timing(count, tally.phases_ms[phase]) for phase, count in sorted(tally.phases.items())},
        silent=len(silent),
        silent_workers=tuple(silent[:LISTED_MAX]),
    )


def emptied(memory: Memory, model: str) -> Timing:
    """The workers of a model that were drained."""
    tally = memory.tallies.get(model, Tally())
    return Timing(tally.emptied, tally.emptied_ms)


def looks(memory: Memory, model: str) -> list[PolicyLook]:
    """What the policies last saw, of one model or of all (empty), by model, group and policy."""
    return [look for _, look in sorted(memory.looks.items()) if model in {"", look.model}]
