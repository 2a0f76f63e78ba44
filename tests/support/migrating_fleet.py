"""A small fleet that executes commands or fails to, and checks each of them against its real state."""

from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.controller import Controller
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import AnyEvent, BusConnectionChanged, PauseChanged
from loadline.core.vocabulary.migrations import Migration
from loadline.core.vocabulary.scalars import WorkerPhase
from tests.support.migration_world import MigrationWorld

CAPACITY: Final = 1_000
"""Tokens of KV cache of each worker."""
STALE_MS: Final = 5_000


class Turn(Struct, frozen=True):
    """A turn: the snapshot before it, its events, and its encoded effects."""

    before: bytes
    events: list[AnyEvent]
    now: int
    effects: bytes


class RecordingController:
    """A controller that records its turns."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.turns: list[Turn] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.controller, name)

    def handle(self, events: list[AnyEvent], now: int) -> list[AnyEffect]:
        """Handle events and record the turn."""
        before = self.controller.snapshot()
        effects = self.controller.handle(events, now)
        self.turns.append(Turn(before, list(events), now, msgspec.json.encode(effects)))
        return effects


class WorkerTruth(Struct):
    """The real state of a worker."""

    slots: int
    """Requests that it sends or receives at a time."""
    alive: bool = True
    state: WorkerPhase = "ready"
    schedulable: bool = True
    reported_at_ms: int = -1
    incarnation: int = 1


class CommandedMigration(Struct):
    """The real state of a migration."""

    command: Migration
    ends_by_ms: int
    requests: int
    """Requests that may still migrate."""
    begun: bool = False
    silent: bool = False
    """Its source did not answer, so it must not block others."""
    moved: int = 0


class MigratingFleet:
    """Workers ``w0`` to ``w5`` of one pool, and their commanded migrations.

    Every command is checked at once against the real state of its workers.
    """

    def __init__(self, knobs: MigrationKnobs, hosts: list[WorkerTruth]) -> None:
        self.world = MigrationWorld(knobs)
        self.recorded = RecordingController(self.world.controller)
        self.world.controller = self.recorded  # type: ignore[assignment]  # only ``handle`` is used
        self.knobs = self.world.knobs
        self.hosts = {f"w{number}": host for number, host in enumerate(hosts)}
        self.commanded: dict[str, CommandedMigration] = {}
        self.bus, self.paused = True, False
        self.records: dict[str, dict[str, Any]] = {}

    # -- events --------------------------------------------------------------------------------------------------------

    def begin(self, records: dict[str, dict[str, Any]]) -> None:
        """Register all workers in one turn."""
        self.records = dict(records)
        for name, record in records.items():
            self.hosts[name].state = record["state"]
        self._handle(*(self.world.worker(name, **record) for name, record in records.items()))

    def register(self, name: str, **record: Any) -> None:
        """Register a worker; a registered one starts a new incarnation without requests."""
        host = self.hosts[name]
        if name in self.records:
            self._lose(name)
            host.incarnation += 1
            self.world.samples.pop(name, None)
        self.records[name] = record
        host.alive, host.state, host.schedulable, host.reported_at_ms = True, record["state"], True, -1
        self._handle(self.world.worker(name, incarnation=host.incarnation, **record))

    def leave(self, name: str) -> None:
        """Remove a worker with all its requests."""
        if name in self.records:
            self.hosts[name].alive = False
            self._lose(name)
            self._check(self.world.deregister(name))

    def report(
        self, name: str, used: int, running: int, *, schedulable: bool, unmovable: int, tells_kv: bool = True
    ) -> None:
        """Report the load and the free slots of a worker, with or without its KV cache."""
        host = self.hosts[name]
        if name not in self.records or not host.alive:
            return
        host.schedulable, host.reported_at_ms = schedulable, self.world.now
        slots = {
            "migration_slots_in": self._free(name, "destination"),
            "migration_slots_out": self._free(name, "source"),
        }
        more = {"schedulable": schedulable, "unmovable_requests": unmovable, "kv_blocks_total": CAPACITY}
        missing = {} if tells_kv else {"kv_blocks_total": None, "kv_blocks_used": None, "decode_tokens": None}
        self._handle(self.world.report(name, used, running, **(more | slots | missing)))

    def answer(self, number: int, *, accepted: bool | None, begins: bool) -> None:
        """Answer a command, or not; without an answer the source may have started all the same."""
        one = self._nth(number)
        if one is None or one.begun:
            return
        one.begun, one.silent = accepted is True or (accepted is None and begins), accepted is None
        requests = max(1, one.requests // 2) if accepted else 0
        if accepted:
            one.requests = requests
        if accepted is False:
            del self.commanded[one.command.command_id]
        self._check(self.world.answer(one.command, accepted=accepted, requests=requests, tokens=10 * requests))

    def progress(self, number: int, *, fails: bool, delivered: bool) -> None:
        """Complete or fail one request of a migration; the report may be lost."""
        one = self._nth(number)
        if one is None or not one.begun:
            return
        one.requests -= 1
        one.moved += not fails
        total = one.requests + one.moved
        if one.requests <= 0:
            del self.commanded[one.command.command_id]
            phase = "done" if one.moved else "aborted"
        else:
            phase = "switched" if one.moved else "copying"
        if delivered and self.bus:
            failed = 0 if not fails else 1
            requests = max(total + failed, 1)
            self._check(
                self.world.report_phase(one.command, phase, one.moved, failed, 10 * one.moved, requests=requests)  # type: ignore[arg-type]  # one of the four
            )

    def pass_time(self, ms: int) -> None:
        """Let time pass without reports; migrations end at their deadline."""
        self.world.now += ms
        self.commanded = {name: one for name, one in self.commanded.items() if one.ends_by_ms > self.world.now}
        self._handle()

    def connect(self, *, bus: bool) -> None:
        """Connect or disconnect the bus."""
        self.bus = bus
        self._handle(BusConnectionChanged(connected=bus))

    def pause(self, *, paused: bool) -> None:
        """Pause or resume the model."""
        self.paused = paused
        self._handle(PauseChanged("m", paused=paused))

    # -- checks --------------------------------------------------------------------------------------------------------

    def _handle(self, *events: AnyEvent) -> None:
        self._check(self.world.handle(*events))

    def _check(self, commands: list[Migration]) -> None:
        for command in commands:
            self._check_ends(command)
            ends = {(one.command.source.worker, one.command.destination.worker): one for one in self.commanded.values()}
            delivered = [both for both, one in ends.items() if not one.silent]
            source, destination = command.source.worker, command.destination.worker
            assert (source, destination) not in ends, "two migrations of one pair"
            assert destination not in {one for one, _ in delivered}, "a chain or a reversal"
            assert source not in {one for _, one in delivered}, "a chain"
            self.commanded[command.command_id] = CommandedMigration(
                command, self.world.now + self.knobs.ttl_ms, command.requests_max
            )
            answered = [one for one in self.commanded.values() if not one.silent]
            for name, side in ((source, "source"), (destination, "destination")):
                used = sum(one.requests for one in answered if getattr(one.command, side).worker == name)
                assert used <= min(self.hosts[name].slots, self.knobs.migrations_per_worker_max), "slots"
        assert sum(one.requests for one in self.commanded.values() if not one.silent) <= self.knobs.migrations_max
        assert not (commands and (self.paused or not self.bus))

    def _check_ends(self, command: Migration) -> None:
        source, destination = self.hosts[command.source.worker], self.hosts[command.destination.worker]
        assert command.source.worker != command.destination.worker
        assert (command.source.pool, command.source.incarnation) == ("decode", source.incarnation)
        assert (command.destination.pool, command.destination.incarnation) == ("decode", destination.incarnation)
        assert source.alive or source.state == "draining"  # its key is gone, and it may still serve what it has
        assert destination.alive
        assert destination.state == "ready"
        assert destination.schedulable
        assert 0 <= destination.reported_at_ms >= self.world.now - STALE_MS
        assert command.requests_max >= 1

    def _nth(self, number: int) -> CommandedMigration | None:
        known = list(self.commanded.values())
        return known[number % len(known)] if known else None

    def _free(self, name: str, side: str) -> int:
        mine = [one for one in self.commanded.values() if one.begun and getattr(one.command, side).worker == name]
        return max(0, self.hosts[name].slots - sum(one.requests for one in mine))

    @staticmethod
    def _has_part(one: CommandedMigration, name: str) -> bool:
        return name in {one.command.source.worker, one.command.destination.worker}

    def _lose(self, name: str) -> None:
        self.commanded = {key: one for key, one in self.commanded.items() if not self._has_part(one, name)}


def replayed(controller: Controller, turns: list[Turn], snapshot: bytes | None = None) -> list[bytes]:
    """Return the effects of the turns in another controller, from a snapshot or from its start."""
    if snapshot is not None:
        controller.restore(snapshot)
    return [msgspec.json.encode(controller.handle(list(turn.events), turn.now)) for turn in turns]


def registered_backwards(turns: list[Turn]) -> list[Turn]:
    """Return the turns with the registrations of the first one reversed."""
    first, *others = turns
    return [replace(first, events=first.events[::-1]), *others]
