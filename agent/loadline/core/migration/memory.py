"""All that the rescheduler remembers, as one encodable Struct: a snapshot has it, so that a replay begins anywhere."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from msgspec import Struct, field

from loadline.core.migration.consolidation import Consolidation
from loadline.core.migration.in_flight import InFlightMigration, InFlightMigrations, MigrationPhase
from loadline.core.migration.knobs import MigrationKnobs, PolicyName
from loadline.core.migration.outcomes import PolicyReport
from loadline.core.migration.peers import MigrationPeers
from loadline.core.migration.policies import DRAIN
from loadline.core.vocabulary.migrations import MigrationEndpoint

STALL_MS: Final = 1_000
"""An agent that has something to do and does nothing for so long stood still."""
VANISHED_MS: Final = 60_000
"""A worker that vanished counts as failing, for what it shares its node or unit with, no longer than this."""
TRIGGERS: Final = frozenset((*get_args(PolicyName), DRAIN))
"""Who wants moves. A report of a move that nobody here began may name anything, and is counted as ``other``."""


class FailedWorker(Struct, frozen=True):
    """A worker that fails, by what it shares with others: its node, its unit, and whether that has ranks."""

    node: str
    unit: str
    parallel: bool


class VanishedWorker(Struct):
    """A worker whose lease was lost while it was at work. Times in ms of our clock."""

    incarnation: int
    node: str
    unit: str
    parallel: bool
    at_ms: int
    heard_at_ms: int
    """When it last reported: one that does is only cut off from the store."""


class MigrationTally(Struct):
    """What has become of the moves of one model."""

    commands: dict[str, int] = field(default_factory=dict)
    """By policy, outcome and reason, such as ``decode_load:refused:no_slots``."""
    requests: dict[str, int] = field(default_factory=dict)
    """That were moved, by policy."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Of KV cache that were moved, by policy."""
    phases: dict[str, int] = field(default_factory=dict)
    """How often a phase ended, by phase."""
    phases_ms: dict[str, int] = field(default_factory=dict)
    """How long they took together, by phase."""
    emptied: int = 0
    """Workers that were drained."""
    emptied_ms: int = 0
    """How long that took, together."""

    def note(self, policy: str, outcome: str, reason: str = "") -> None:
        """Something became of a command."""
        what = ":".join(word for word in (_known(policy), outcome, reason) if word)
        self.commands[what] = self.commands.get(what, 0) + 1

    def spend(self, phase: MigrationPhase, took_ms: int) -> None:
        """A move was so long in a phase, and has left it."""
        self.phases[phase] = self.phases.get(phase, 0) + 1
        self.phases_ms[phase] = self.phases_ms.get(phase, 0) + took_ms

    def end(self, flight: InFlightMigration) -> None:
        """A move has ended."""
        trigger = _known(flight.move.trigger)
        if flight.moved:
            self.requests[trigger] = self.requests.get(trigger, 0) + flight.moved
            self.tokens[trigger] = self.tokens.get(trigger, 0) + flight.tokens

    def lose(self, flight: InFlightMigration, reason: str, now: int) -> None:
        """Of a move nobody will ever say how it ended."""
        self.note(flight.move.trigger, "lost", reason)
        self.spend(flight.phase, now - flight.since_ms)

    def empty(self, took_ms: int) -> None:
        """A worker was drained."""
        self.emptied += 1
        self.emptied_ms += took_ms


class MigrationMemory(Struct):
    """What is in flight, what is remembered of workers, and when each model is looked at next."""

    flights: InFlightMigrations = field(default_factory=InFlightMigrations)
    peers: dict[str, MigrationPeers] = field(default_factory=dict)
    """By model."""
    due: dict[str, int] = field(default_factory=dict)
    """When all workers of a model are looked at next."""
    last_turn_at_ms: int = -1
    """When it was last looked at anything."""
    hearing_since_ms: int = -1
    """When we last stood still: what workers said meanwhile may be waiting still."""
    touched: dict[str, list[MigrationEndpoint]] = field(default_factory=dict)
    """Workers of which something was remembered since their model was last looked at."""
    failing: dict[str, list[FailedWorker]] = field(default_factory=dict)
    """By model, as of its last look; where there are any."""
    vanished: dict[str, VanishedWorker] = field(default_factory=dict)
    """In the order in which they did."""
    packing: dict[str, Consolidation] = field(default_factory=dict)
    """By model and group."""
    looks: dict[str, PolicyReport] = field(default_factory=dict)
    """The last one of each policy and group that had a reason to look."""
    tallies: dict[str, MigrationTally] = field(default_factory=dict)
    """By model."""
    faults: dict[str, None] = field(default_factory=dict)
    """Models that could not be looked at when they were last."""
    nameless: dict[str, None] = field(default_factory=dict)
    """Groups of which people were told that workers do not name what they fail with."""

    def tally(self, model: str) -> MigrationTally:
        """What became of the moves of a model."""
        return self.tallies.setdefault(model, MigrationTally())

    def forget(self, model: str) -> None:
        """A model is none of ours any more."""
        for flight in self.flights.of_model(model):
            del self.flights.open[flight.move.command_id]
        by_model: tuple[dict[str, Any], ...] = (
            self.peers,
            self.due,
            self.touched,
            self.failing,
            self.tallies,
            self.faults,
        )
        for remembered in by_model:
            remembered.pop(model, None)
        by_group: tuple[dict[str, Any], ...] = (self.packing, self.looks, self.nameless)
        for remembered in by_group:
            for key in [key for key in remembered if key.split("\0", 1)[0] == model]:
                del remembered[key]

    def keep(self, model: str, pools: Mapping[str, str], knobs: MigrationKnobs) -> None:
        """A model has these pools now, by their roles: forget the groups and policies that are gone."""
        groups = set(pools.values() if knobs.across_pools else pools)
        policies = {DRAIN, *knobs.active_policies}
        for by_group in (self.packing, self.looks, self.nameless):
            for key in list(by_group):
                name, group, *policy = key.split("\0")
                if name == model and not (group in groups and policies.issuperset(policy)):
                    del by_group[key]
        if model in self.peers:
            self.peers[model].keep(pools)

    def expire_vanished(self, now: int) -> None:
        """Workers that vanished long ago count no more; the oldest are the first."""
        while self.vanished:
            key, first = next(iter(self.vanished.items()))
            if now - first.at_ms <= VANISHED_MS:
                return
            del self.vanished[key]

    def listen(self, now: int) -> None:
        """Note whether we stood still since the last turn: something was due, and nothing happened."""
        due_ms = min(self.due.values(), default=now)
        if self.last_turn_at_ms >= 0 and now - max(self.last_turn_at_ms, due_ms) > STALL_MS:
            self.hearing_since_ms = now
        self.last_turn_at_ms = now

    def next_wake(self) -> int | None:
        """When something is due."""
        wakes = [min(self.due.values(), default=None), self.flights.next_wake()]
        return min((wake for wake in wakes if wake is not None), default=None)


def key_of(*names: str) -> str:
    """Names as one key; none of them has such a character."""
    return "\0".join(names)


def _known(trigger: str) -> str:
    return trigger if trigger in TRIGGERS else "other"
