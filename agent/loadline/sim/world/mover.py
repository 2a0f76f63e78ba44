"""What a simulated worker moves to others: around ``client.moves`` it does what the engine of a real worker does.

It asks the destination for room, copies while the request goes on, stops it, and hands it over. Where it does not hear
that it was taken, it claims the request for itself: see ``client.ownership``.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from loadline.client.moves import SLOTS, Moves, Part
from loadline.core.vocabulary.migrations import MigrationFailure
from loadline.core.vocabulary.samples import WorkerSample
from loadline.errors import BusUnavailable
from loadline.sim.engine import EngineEvent, Request
from loadline.sim.world import peers
from loadline.sim.world.intake import Host, Intake
from loadline.sim.world.peers import Handover, Room, Said
from loadline.sim.world.tasks import VirtualFuture, VirtualTask, sleep
from loadline.sim.world.timeline import Timeline
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport

_TASKS_KEPT: Final = 64


class Copy(Protocol):
    """How long a cache takes to the destination."""

    @property
    def copying_ms(self) -> float:
        """While the request goes on."""
        ...

    @property
    def downtime_ms(self) -> float:
        """While it stands still."""
        ...


class MoverKnobs(Struct, frozen=True):
    """How a worker moves requests. One without slots cannot."""

    copy: Callable[[float, float], Copy]
    """How long so many tokens take, while so many are added to them in a ms."""
    slots_in: int = SLOTS
    slots_out: int = SLOTS

    @property
    def supported(self) -> bool:
        """Whether it can."""
        return self.slots_in + self.slots_out > 0


class _AtOnce(Struct, frozen=True):
    copying_ms: float = 0.0
    downtime_ms: float = 0.0


NO_MOVES: Final = MoverKnobs(lambda _tokens, _tokens_per_ms: _AtOnce(), 0, 0)
"""Of a worker whose engine cannot move requests."""


class Mover:
    """The moves of one life of a worker.

    Args:
        timeline: Virtual time.
        host: Its process.
        knobs: How it moves.
        say: Publishes a report.
    """

    def __init__(
        self,
        timeline: Timeline,
        host: Host,
        knobs: MoverKnobs,
        say: Callable[[MigrationReport], None],
    ) -> None:
        record = host.record
        self.moves = Moves(record, slots_in=knobs.slots_in, slots_out=knobs.slots_out, supported=knobs.supported)
        self.hangs = False
        """No copy that begins ever ends."""
        self.on_phase: Callable[[str, MigrateCommand], None] = lambda _phase, _command: None
        """Told of every step of every move, ``accepted`` and ``switching`` too."""
        self._timeline = timeline
        self._host = host
        self._port = host.peers
        self._say = say
        self._knobs = knobs
        self._taken: dict[str, VirtualFuture[EngineEvent]] = {}
        self._copies: dict[Part, VirtualFuture[None]] = {}
        self._planned_ms: float | None = None
        self._tasks: list[VirtualTask] = []
        self._ended = False
        self.intake = Intake(timeline, host, self.moves, self._begin)
        """What it takes in."""
        if knobs.supported:
            self._begin(self.intake.listen())

    def sampled(self, sample: WorkerSample) -> WorkerSample:
        """A sample with the slots that are free."""
        if not self._knobs.supported:
            return sample
        free = self.moves.slots(len(self._host.held))
        return replace(sample, migration_slots_in=free.taken_in, migration_slots_out=free.given_away)

    def end(self) -> None:
        """The process ends where it stands."""
        self._ended = True
        for task in self._tasks:
            task.kill()
        self._tasks.clear()

    def taken(self, event: EngineEvent) -> bool:
        """A request has left the engine; says whether it is this mover that took it out."""
        promise = self._taken.pop(event.request_id, None)
        if promise is not None:
            promise.set_result(event)
        return promise is not None

    def _begin(self, coroutine: Coroutine[object, object, None]) -> None:
        """Do it until the process ends."""
        if self._ended:
            coroutine.close()
            return
        if len(self._tasks) > _TASKS_KEPT:
            self._tasks = [task for task in self._tasks if not task.done]
        self._tasks.append(VirtualTask(coroutine))

    @property
    def _now_ms(self) -> int:
        return int(self._timeline.now_ms)

    # -- as a source ---------------------------------------------------------------------------------------------------

    def answer(self, command: MigrateCommand) -> MigrateReply | None:
        """The answer to a command, which is begun after it; None where another worker of this name answers."""
        reply = self.moves.answer(command, self._host.engine.migratable_requests(), self._now_ms)
        if reply is not None and reply.accepted:
            self._timeline.call_later(0.0, partial(self._begin_all, command))
        return reply

    def _begin_all(self, command: MigrateCommand) -> None:
        parts = self.moves.begin(command.command_id)
        if parts:
            self.on_phase("accepted", command)
        for part in parts:
            self._begin(self._move(command, part))
        self._wake()

    async def _move(self, command: MigrateCommand, part: Part) -> None:
        """Move one request, or leave it where it is."""
        failure, downtime_ms = await self._copied(command, part)
        if not failure:
            failure = await self._switched(command, part, downtime_ms)
        if failure:
            self._begin(self._forgo(command, part))
        now_ms = self._now_ms
        reports = self.moves.failed(part, failure, now_ms) if failure else self.moves.switched(part, now_ms)
        self._reached(command, reports)
        self._host.advance()

    async def _copied(self, command: MigrateCommand, part: Part) -> tuple[MigrationFailure, float]:
        """Have the cache there but for the last part; gives why it is not, and how long the last part takes."""
        destination, engine = command.destination, self._host.engine
        tokens, most = engine.kv_tokens(part.request_id), engine.kv_tokens_max(part.request_id)
        room = Room(part.request_id, destination.incarnation, tokens, most, command.ttl_ms)
        try:
            said = await peers.ask(self._port, peers.room_at(destination.worker), room, Said)
        except BusUnavailable:
            return "destination_lost", 0.0
        if not said.yes:
            return "destination_refused", 0.0
        if not self._reached(command, self.moves.admitted(part, self._now_ms)):
            return "deadline", 0.0
        self._reached(command, self.moves.copying(part, self._now_ms))
        itl_ms = engine.load().itl_ms
        copy = self._knobs.copy(engine.kv_tokens(part.request_id), 1.0 / itl_ms if itl_ms else 0.0)
        over = self._copies[part] = VirtualFuture[None]()
        if not self.hangs:
            self._timeline.call_later(copy.copying_ms, partial(over.set_result, None))
        await over
        del self._copies[part]
        return "", copy.downtime_ms

    async def _forgo(self, command: MigrateCommand, part: Part) -> None:
        """Let the destination have its room back at once; if it does not hear of that, it has it back in time."""
        its = command.destination
        with suppress(BusUnavailable):
            room = Room(part.request_id, its.incarnation, 0, 0, ttl_ms=0)
            await peers.ask(self._port, peers.room_at(its.worker), room, Said)

    async def _switched(self, command: MigrateCommand, part: Part, downtime_ms: float) -> MigrationFailure:
        """Stop it here, have the rest of its cache there, and hand it over; gives why it stays."""
        if not self.moves.switching(part, self._now_ms):
            return "deadline"
        engine, request_id = self._host.engine, part.request_id
        taken = engine.detach(request_id, self._timeline.now_ms)
        if taken is None:
            return "withdrawn" if request_id in engine.held else "finished"
        gone = self._taken[request_id] = VirtualFuture[EngineEvent]()
        self._host.advance()
        left = await gone
        taken = replace(taken, last_token_ms=left.last_token_ms, token_gap_max_ms=left.token_gap_max_ms)
        hop = self._host.holds.hand_over(request_id)
        if hop is None:
            return "withdrawn"
        self.on_phase("switching", command)
        await sleep(self._timeline, downtime_ms)
        return await self._handed(command, taken, hop)

    async def _handed(self, command: MigrateCommand, taken: Request, hop: int) -> MigrationFailure:
        """Hand it over. How that ended is found out, however long it takes; what is not taken goes on here."""
        its, host, name = command.destination, self._host, taken.request_id
        failure: MigrationFailure = "destination_refused"
        try:
            handover = Handover(replace(taken, hop=hop, migrations=taken.migrations + 1), its.incarnation)
            if (await peers.ask(self._port, peers.handover_to(its.worker), handover, Said)).yes:
                host.holds.answered(name, hop, taken=False)
                return ""
        except BusUnavailable:
            failure = "destination_lost"
        owned = await peers.claim(self._timeline, self._port, host.record, name, hop)
        if host.holds.answered(name, hop, taken=owned.yes) == "run":
            host.run(replace(taken, hop=hop))
            return failure
        return "" if (owned.worker, owned.incarnation) == (its.worker, its.incarnation) else "withdrawn"

    # -- what it says --------------------------------------------------------------------------------------------------

    def _reached(self, command: MigrateCommand, reports: Sequence[MigrationReport]) -> bool:
        """Tell of a phase; says whether it was reached, which what is withdrawn never is."""
        self._tell(reports)
        for report in reports:
            self.on_phase(report.phase, command)
        return bool(reports)

    def _tell(self, reports: Sequence[MigrationReport]) -> None:
        for report in reports:
            self._say(report)
        self._wake()

    def _wake(self) -> None:
        """Come back when something is overdue, or is to be said again."""
        wake_ms = self.moves.wake_ms()
        if wake_ms is not None and (self._planned_ms is None or wake_ms < self._planned_ms):
            self._planned_ms = float(wake_ms)
            self._timeline.call_at(self._planned_ms, partial(self._tick, self._planned_ms))

    def _tick(self, at_ms: float) -> None:
        if at_ms != self._planned_ms or self._ended:
            return
        self._planned_ms = None
        now_ms = self._now_ms
        for part in self.moves.overdue(now_ms):
            self._tell(self.moves.failed(part, "deadline", now_ms))
            if part in self._copies:
                self._copies[part].set_result(None)
        self._tell(self.moves.repeats(now_ms))
