"""A demo worker's engine, with its inbox and its outboxes: takes work from gateways, and tells what became of it."""

import asyncio
import heapq
import time

from msgspec import Struct

from loadline.adapters.logs import bounded
from loadline.adapters.nats_bus import NatsBus
from loadline.client.holds import HeldRequests
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.demo.protocol import (
    DECODE_LAG_S,
    HEARTBEAT_S,
    ITEMS_MAX,
    LAG_S,
    ResultBatch,
    Submission,
    SubmitBatch,
    VirtualClock,
    pack,
    result_subject,
    unpack,
)
from loadline.errors import BusUnavailable
from loadline.sim.engine import EngineEvent, Request, SimulatedEngine

_log = bounded("demo_worker")
# Work that a gateway sent before it saw the drain is still on its way for about a tick.
_QUIET_S = 0.3
_GATEWAYS_MAX = 16


class Stopped(Struct, frozen=True):
    """A request that has left the engine at this virtual time, and whose gateway was told everything before that."""

    request: Request
    at_ms: float
    gateway: str


class _Leaving(Struct):
    """A request that is to leave the engine."""

    said: "asyncio.Future[float]"
    at_ms: float | None = None
    """None: it has not left yet."""


class EngineHost:
    """The engine, its inbox and its outboxes.

    Args:
        record: What the worker is.
        engine: What does its work.
        clock: The virtual time that all share.
        bus: A connected bus.
        root: First tokens of every subject.
    """

    def __init__(
        self, record: WorkerRecord, engine: SimulatedEngine, clock: VirtualClock, bus: NatsBus, root: str
    ) -> None:
        self.engine = engine
        self.holds = HeldRequests()
        """Which requests it may run. It also has those that it handed over, or was offered, until that is settled."""
        self.expected: set[str] = set()
        """Requests that have a place here and have not come yet."""
        self._record = record
        self._clock = clock
        self._lag_s = DECODE_LAG_S if record.role == "decode" else LAG_S
        self._bus = bus
        self._root = root
        self._due: list[tuple[float, int, Submission]] = []  # what has not yet come, in virtual time
        self._count = 0
        self._gateways: dict[str, str] = {}  # request -> gateway, until the gateway was told of its end
        self._outboxes: dict[str, list[EngineEvent]] = {}
        self._leaving: dict[str, _Leaving] = {}
        self._said_s = 0.0
        self._taken_s = 0.0
        self._emptied: asyncio.Event | None = None

    @property
    def now_ms(self) -> float:
        """Virtual time of the engine."""
        return self._clock.now_ms(behind_s=self._lag_s)

    async def drain(self) -> None:
        """Wait until nothing is inside or under way, and everybody was told."""
        self._taken_s = time.monotonic()
        self._emptied = asyncio.Event()
        await self._emptied.wait()

    def take(self, _subject: str, payload: bytes) -> None:
        """A gateway sent work."""
        batch = unpack(SubmitBatch, payload)
        if batch is None or not self._knows(batch.gateway):
            _log.warning("work_refused", bytes=len(payload))
            return
        self._taken_s = time.monotonic()
        for submission in batch.submissions:
            request = submission.request
            if len(self._gateways) < ITEMS_MAX and self.holds.run(request.request_id, request.hop):
                self._gateways[request.request_id] = batch.gateway
                self.go_on(submission)

    def _knows(self, gateway: str) -> bool:
        """Whether there is an outbox for it."""
        if gateway not in self._outboxes and len(self._outboxes) >= _GATEWAYS_MAX:
            return False
        self._outboxes.setdefault(gateway, [])
        return True

    # -- moves ---------------------------------------------------------------------------------------------------------

    def expect(self, request: Request, gateway: str) -> bool:
        """A request was handed over to this worker: whether it is to be claimed."""
        if not self._knows(gateway) or not self.holds.expect(request.request_id, request.hop):
            return False
        self._taken_s = time.monotonic()
        self._gateways[request.request_id] = gateway
        return True

    def go_on(self, submission: Submission) -> None:
        """Run a request that this worker owns, from that virtual time on."""
        self._count += 1
        heapq.heappush(self._due, (submission.at_ms, self._count, submission))

    def forget(self, request_id: str) -> None:
        """It is another's, or over."""
        self.holds.end(request_id)
        self._gateways.pop(request_id, None)

    async def stop(self, request_id: str) -> Stopped | None:
        """Take a request out of the engine, and wait until its gateway was told all that it did here.

        None where it is not inside, about to end, or its prompt is being computed: then it goes on. It runs no longer
        when this returns, but is still held under its hop.
        """
        gateway = self._gateways.get(request_id)
        request = None if gateway is None else self.engine.detach(request_id, self.now_ms)
        if gateway is None or request is None:
            return None
        leaving = self._leaving[request_id] = _Leaving(asyncio.get_running_loop().create_future())
        try:
            return Stopped(request, await leaving.said, gateway)
        finally:
            del self._leaving[request_id]

    # -- time ----------------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Let the engine run up to now, and tell the gateways."""
        now_ms = self.now_ms
        while self._due and self._due[0][0] <= now_ms:
            at_ms, _, submission = heapq.heappop(self._due)
            try:
                self.engine.submit(submission.request, at_ms)
            except ValueError as error:
                # Left to itself: the gateway misses it among what is held.
                self.forget(submission.request.request_id)
                _log.warning("request_refused", error=str(error))
        for event in self.engine.advance(now_ms):
            if event.kind != "detached":
                self._outboxes[self._gateways[event.request_id]].append(event)
            elif event.request_id in self._leaving:
                self._leaving[event.request_id].at_ms = event.at_ms
        await self._tell()
        self._let_go()
        waited = time.monotonic() - self._taken_s > _QUIET_S
        if self._emptied is not None and not self._gateways and not self.expected and waited:
            self._emptied.set()

    def _let_go(self) -> None:
        """Who has left may be handed over once nothing is left to be said of it."""
        unsaid = {event.request_id for events in self._outboxes.values() for event in events}
        for name, leaving in self._leaving.items():
            if leaving.at_ms is not None and name not in unsaid and not leaving.said.done():
                leaving.said.set_result(leaving.at_ms)

    async def say_leaving(self) -> None:
        """Tell all gateways that nothing more will come."""
        for gateway in self._outboxes:
            await self._send(gateway, leaving=True)

    async def _tell(self) -> None:
        beat = time.monotonic() - self._said_s >= HEARTBEAT_S
        if beat:
            self._said_s = time.monotonic()
        for gateway, events in self._outboxes.items():
            if events or beat:
                await self._send(gateway, beat=beat)

    async def _send(self, gateway: str, *, beat: bool = False, leaving: bool = False) -> None:
        events = self._outboxes[gateway][:ITEMS_MAX]
        ended = {event.request_id for event in events if self._is_end(event)}
        held = [name for name, its in self._gateways.items() if its == gateway] if beat else None
        hops = {event.request_id: hop for event in events if (hop := self.holds.hop(event.request_id))}
        batch = ResultBatch(self._record.worker, self._record.incarnation, events, held, leaving, hops)
        try:
            await self._bus.publish(result_subject(self._root, gateway), pack(batch))
        except BusUnavailable:
            return  # it stays in the outbox
        del self._outboxes[gateway][: len(events)]
        for name in ended:
            self.forget(name)

    def _is_end(self, event: EngineEvent) -> bool:
        return event.kind in ("finished", "refused") or (event.kind == "first_token" and self._record.role == "prefill")
