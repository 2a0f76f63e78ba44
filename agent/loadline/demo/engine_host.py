"""Host of a demo worker's engine: receives requests from gateways and returns their events."""

import asyncio
import heapq
import time

from msgspec import Struct

from loadline.adapters.logs import bounded
from loadline.adapters.nats_bus import NatsBus
from loadline.client.handover.held_requests import HeldRequests
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.demo.clock import ReplayClock
from loadline.demo.protocol import (
    DECODE_LAG_S,
    HEARTBEAT_S,
    ITEMS_MAX,
    LAG_S,
    ResultBatch,
    Submission,
    SubmitBatch,
    pack,
    result_subject,
    unpack,
)
from loadline.errors import BusUnavailable
from loadline.sim.engine import EngineEvent, Request, SimulatedEngine

_log = bounded("demo_worker")
# A drain ends at the earliest this long after the last message: requests that a gateway sent before it received the
# announcement of the drain arrive within about one tick (0.02 s).
_DRAIN_QUIET_S = 0.3
_GATEWAYS_MAX = 16


class ExtractedRequest(Struct, frozen=True):
    """Request that was removed from the engine after all its events were sent to its gateway."""

    request: Request
    at_ms: float
    """Virtual time of the removal."""
    gateway: str


class _Extraction(Struct):
    """Removal of a request from the engine."""

    done: "asyncio.Future[float]"
    """Result: virtual time of the removal, set after all events of the request were sent to its gateway."""
    at_ms: float | None = None
    """Virtual time of the removal; None: the engine has not removed the request yet."""


class EngineHost:
    """Engine with an inbox and one outbox per gateway.

    Args:
        record: Description of the worker.
        engine: The engine.
        clock: Clock of virtual time.
        bus: A connected bus.
        root: Prefix of every NATS subject.
    """

    def __init__(
        self, record: WorkerRecord, engine: SimulatedEngine, clock: ReplayClock, bus: NatsBus, root: str
    ) -> None:
        self.engine = engine
        self.held_requests = HeldRequests()
        self._record = record
        self._clock = clock
        self._lag_s = DECODE_LAG_S if record.role == "decode" else LAG_S
        self._bus = bus
        self._root = root
        self._due: list[tuple[float, int, Submission]] = []
        """Heap of virtual arrival time, sequence number and request, for requests that the engine has not received."""
        self._submissions = 0
        self._gateways: dict[str, str] = {}
        """Gateway of each request, until the final event of the request was sent."""
        self._outboxes: dict[str, list[EngineEvent]] = {}
        """Unsent events, by gateway."""
        self._extractions: dict[str, _Extraction] = {}
        self._last_heartbeat_s = 0.0
        self._last_received_s = 0.0
        self._drained: asyncio.Event | None = None
        """Event that ends a drain; None: the worker does not drain."""

    @property
    def now_ms(self) -> float:
        """Virtual time of the engine."""
        return self._clock.now_ms(behind_s=self._lag_s)

    async def drain(self) -> None:
        """Wait until the worker holds no requests and has sent all events to the gateways."""
        self._last_received_s = time.monotonic()
        self._drained = asyncio.Event()
        await self._drained.wait()

    def receive(self, _subject: str, payload: bytes) -> None:
        """Accept requests of a gateway."""
        batch = unpack(SubmitBatch, payload)
        if batch is None or not self._has_outbox(batch.gateway):
            _log.warning("requests_refused", bytes=len(payload))
            return
        self._last_received_s = time.monotonic()
        for submission in batch.submissions:
            request = submission.request
            if len(self._gateways) < ITEMS_MAX and self.held_requests.assign(request.request_id, request.hop):
                self._submit(submission, batch.gateway)

    def _has_outbox(self, gateway: str) -> bool:
        """Return True if events of a gateway's requests can be sent."""
        if gateway not in self._outboxes and len(self._outboxes) >= _GATEWAYS_MAX:
            return False
        self._outboxes.setdefault(gateway, [])
        return True

    def _submit(self, submission: Submission, gateway: str) -> None:
        self._gateways[submission.request.request_id] = gateway
        self._submissions += 1
        heapq.heappush(self._due, (submission.at_ms, self._submissions, submission))

    # -- migration -----------------------------------------------------------------------------------------------------

    def run(self, submission: Submission, gateway: str) -> None:
        """Run a request that was handed over, or resume a request whose handover failed."""
        self._last_received_s = time.monotonic()
        if self._has_outbox(gateway):
            self._submit(submission, gateway)
        else:  # the worker no longer reports the request as held, so the gateway restarts it elsewhere
            self.held_requests.end(submission.request.request_id)

    def discard(self, request_id: str) -> None:
        """Drop a request that another worker owns."""
        self._gateways.pop(request_id, None)

    async def extract(self, request_id: str) -> ExtractedRequest | None:
        """Remove a request from the engine, and return it after all its events were sent to its gateway.

        Return None, and leave the request in the engine, if it is unknown, in prefill or about to end.
        """
        gateway = self._gateways.get(request_id)
        request = None if gateway is None else self.engine.detach(request_id, self.now_ms)
        if gateway is None or request is None:
            return None
        extraction = self._extractions[request_id] = _Extraction(asyncio.get_running_loop().create_future())
        try:
            return ExtractedRequest(request, await extraction.done, gateway)
        finally:
            del self._extractions[request_id]

    # -- time ----------------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Run the engine up to now, and send the events to the gateways."""
        now_ms = self.now_ms
        while self._due and self._due[0][0] <= now_ms:
            at_ms, _, submission = heapq.heappop(self._due)
            try:
                self.engine.submit(submission.request, at_ms)
            except ValueError as error:  # no longer reported as held, so the gateway restarts the request
                self._end(submission.request.request_id)
                _log.warning("request_refused", detail=str(error))
        for event in self.engine.advance(now_ms):
            if event.kind != "detached":
                self._outboxes[self._gateways[event.request_id]].append(event)
            elif event.request_id in self._extractions:
                self._extractions[event.request_id].at_ms = event.at_ms
        await self._send_events()
        self._complete_extractions()
        quiet = time.monotonic() - self._last_received_s > _DRAIN_QUIET_S
        if self._drained is not None and not self._gateways and not self.held_requests.unresolved() and quiet:
            self._drained.set()

    def _complete_extractions(self) -> None:
        """Complete the extractions of requests whose events were all sent."""
        unsent = {event.request_id for events in self._outboxes.values() for event in events}
        for name, extraction in self._extractions.items():
            if extraction.at_ms is not None and name not in unsent and not extraction.done.done():
                extraction.done.set_result(extraction.at_ms)

    async def announce_exit(self) -> None:
        """Announce to all gateways that no more events follow."""
        for gateway in self._outboxes:
            await self._send(gateway, leaving=True)

    async def _send_events(self) -> None:
        heartbeat = time.monotonic() - self._last_heartbeat_s >= HEARTBEAT_S
        if heartbeat:
            self._last_heartbeat_s = time.monotonic()
        for gateway, events in self._outboxes.items():
            if events or heartbeat:
                await self._send(gateway, heartbeat=heartbeat)

    async def _send(self, gateway: str, *, heartbeat: bool = False, leaving: bool = False) -> None:
        events = self._outboxes[gateway][:ITEMS_MAX]
        ended = {event.request_id for event in events if self._is_end(event)}
        hops = {event.request_id: hop for event in events if (hop := self.held_requests.hop(event.request_id))}
        held = self._held_of(gateway) if heartbeat else None
        batch = ResultBatch(self._record.worker, self._record.incarnation, events, held, leaving, hops)
        try:
            await self._bus.publish(result_subject(self._root, gateway), pack(batch))
        except BusUnavailable:
            return  # the events stay in the outbox
        del self._outboxes[gateway][: len(events)]
        for name in ended:
            self._end(name)

    def _end(self, request_id: str) -> None:
        self.held_requests.end(request_id)
        self.discard(request_id)

    def _held_of(self, gateway: str) -> list[str]:
        """Return a gateway's requests, and all requests with a pending claim, since they may belong to the gateway."""
        owned = [name for name, owner in self._gateways.items() if owner == gateway]
        return [*owned, *(name for name, _ in self.held_requests.unresolved())]

    def _is_end(self, event: EngineEvent) -> bool:
        return event.kind in ("finished", "refused") or (event.kind == "first_token" and self._record.role == "prefill")
