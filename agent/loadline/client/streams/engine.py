"""Worker's side of streams that gateways relay: a ``MigratableEngine`` for engines that cannot migrate."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from loadline.adapters.logs import bounded
from loadline.client.handover.bus import HandoverBus
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import HandedRequest
from loadline.client.handover.progress import DRAIN_SLOTS_MAX
from loadline.client.handover.source import StoppedRequest
from loadline.client.migratable_engine import MigrationOptions, MigrationRefused
from loadline.client.streams.messages import StopReply, StopStream, StreamProgress, StreamReport, StreamSubjects
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import BusUnavailable
from loadline.ports import Bus
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import MigrateCommand

REPORT_INTERVAL_S: Final = 0.25
"""Time between two reports of a gateway."""
_SILENT_S: Final = 8 * REPORT_INTERVAL_S
"""Time after which a gateway's streams cannot be moved: it has probably gone."""
_GONE_S: Final = 60.0
"""Time after which they are forgotten."""
# A claim may be granted between two reports, so a request has ended only if two reports do not list it.
_MISSES_MAX: Final = 2
_GATEWAYS_MAX: Final = 64
_STOP_TIMEOUT_S: Final = 1.0
_STOP_TRIES: Final = 3
# A chunk with several tokens may end within a character; one of the next does not.
_LATER_S: Final = 0.02
_LATER_TRIES: Final = 50

_log = bounded("streams")


class _Gateway(Struct):
    streams: dict[str, StreamProgress]
    heard_s: float


class _Held(Struct):
    gateway: str
    misses: int = 0


class StreamEngine:
    """Streams at one incarnation of a worker.

    Args:
        record: Description of the worker.
        bus: A connected bus.
        root: Prefix of every NATS subject.
        fits: Returns True if so many more tokens fit into the engine's KV cache.
        clock: Monotonic time in s.
    """

    def __init__(
        self,
        record: WorkerRecord,
        bus: Bus,
        root: str,
        fits: Callable[[int], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record = record
        self._bus = bus
        self._subjects = StreamSubjects(root, record.model)
        self._fits = fits
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        self._requests: dict[str, _Held] = {}
        self._held = HeldRequests()

    @property
    def held_requests(self) -> HeldRequests:
        """Requests that the engine may run."""
        return self._held

    @property
    def unmovable(self) -> int:
        """Number of streams that cannot migrate, for samples."""
        return sum(not one.movable for one in self.migratable_requests())

    def options(self) -> MigrationOptions:
        """Return the options of a worker client: nothing is copied, so many streams may move at a time."""
        return MigrationOptions(self, HandoverBus(self._bus, self._subjects.prefix), slots_in=DRAIN_SLOTS_MAX)

    async def start(self) -> None:
        """Start to receive reports of gateways."""
        await self._bus.subscribe(self._subjects.report(self._record.worker), self.receive)

    def receive(self, subject: str, payload: bytes) -> None:
        """Apply a report of a gateway."""
        report = decode_as(StreamReport, payload, subject)
        if isinstance(report, Rejected):
            _log.warning("stream_report_refused", reason=report.reason, detail=report.detail)
            return
        if (report.worker, report.incarnation) != (self._record.worker, self._record.incarnation):
            return
        self._forget_gone()
        if report.gateway not in self._gateways and len(self._gateways) >= _GATEWAYS_MAX:
            _log.warning("stream_report_refused", reason="too_many_gateways", gateway=report.gateway)
            return
        streams = {one.request_id: one for one in report.streams}
        self._gateways[report.gateway] = _Gateway(streams, self._clock())
        for name, one in streams.items():
            self._held.assign(name, one.hop)
            self._requests[name] = _Held(report.gateway)
        for name, held in list(self._requests.items()):
            if held.gateway == report.gateway and name not in streams:
                held.misses += 1
                if held.misses >= _MISSES_MAX:
                    self._end(name)

    def migratable_requests(self) -> Sequence[MigratableRequest]:
        """Return the streams in queue order: running ones, then waiting ones."""
        heard_s = self._clock() - _SILENT_S
        streams = [
            one
            for gateway in self._gateways.values()
            if gateway.heard_s >= heard_s
            for one in gateway.streams.values()
            if self._held.hop(one.request_id) == one.hop
        ]
        streams.sort(key=lambda one: one.output_tokens == 0)
        return [
            MigratableRequest(
                one.request_id,
                one.prompt_tokens,
                one.output_tokens,
                waiting=one.output_tokens == 0,
                movable=one.movable,
                hops=one.hops,
                remaining_tokens=one.remaining_tokens,
            )
            for one in streams
        ]

    def has_room(self, kv_tokens: int) -> bool:
        """Return True if so many more tokens fit into the KV cache."""
        return self._fits(kv_tokens)

    async def copy(self, request_id: str, command: MigrateCommand) -> None:
        """Return at once: the destination computes the KV cache from the tokens that the gateway has."""

    async def stop(self, request_id: str, _command: MigrateCommand) -> StoppedRequest | None:
        """Have the gateway stop a stream between two chunks.

        Raises:
            MigrationRefused: The stream cannot move, or its gateway does not answer. A gateway that stopped it
                nevertheless continues it by itself.
        """
        held, hop = self._requests.get(request_id), self._held.hop(request_id)
        if held is None or hop is None:
            return None
        message = StopStream(request_id, self._record.worker, self._record.incarnation, hop)
        for _ in range(_LATER_TRIES):
            reply = await self._ask(held.gateway, message)
            if reply.outcome == "stopped":
                return StoppedRequest(held.gateway, b"")
            if reply.outcome == "ended":
                return None
            if reply.outcome == "unmovable":
                raise MigrationRefused("failed", reply.detail)
            await asyncio.sleep(_LATER_S)
        raise MigrationRefused("failed", "the stream has no place to stop it")

    def run(self, request: HandedRequest) -> None:
        """Expect a stream that its gateway continues here, since it granted the claim."""
        self._requests[request.request_id] = _Held(request.frontend)

    def discard(self, request_id: str) -> None:
        """Forget a stream that another worker owns."""
        self._requests.pop(request_id, None)

    async def _ask(self, gateway: str, message: StopStream) -> StopReply:
        subject = self._subjects.stop(gateway)
        problem = ""
        for _ in range(_STOP_TRIES):
            try:
                payload = await self._bus.request(subject, encode(message), _STOP_TIMEOUT_S)
            except BusUnavailable as error:
                problem = str(error)
                continue
            reply = decode_as(StopReply, payload, subject)
            if isinstance(reply, StopReply):
                return reply
            problem = reply.detail
        raise MigrationRefused("failed", f"gateway {gateway} does not answer: {problem}")

    def _forget_gone(self) -> None:
        gone_s = self._clock() - _GONE_S
        gone = [name for name, gateway in self._gateways.items() if gateway.heard_s < gone_s]
        for gateway in gone:
            del self._gateways[gateway]
            for name in [name for name, held in self._requests.items() if held.gateway == gateway]:
                self._end(name)

    def _end(self, request_id: str) -> None:
        """Stop holding a stream, unless a claim to it is pending: its answer decides."""
        if self._held.hop(request_id) is not None:
            self._held.end(request_id)
            del self._requests[request_id]
