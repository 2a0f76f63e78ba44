"""Ownership of the streams of one model: which worker may serve each, and moves that workers command. Pure.

A worker stops a stream and hands it over; the destination claims it here, and whoever gets the claim is the worker that
the gateway asks to continue. Nothing else continues a stopped stream, unless no claim comes in time: then the gateway
assigns it anew, after which no pending claim can be granted. So a stream has one owner at every moment.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, Protocol

from loadline.client.handover.messages import ClaimReply, ClaimRequest
from loadline.client.handover.ownership import RequestOwners
from loadline.client.streams.messages import STREAMS_MAX, StopReply, StopStream, StreamProgress, StreamReport
from loadline.gateway.backends import Backend, Backends

_NAME_KEPT: Final = 70
"""Characters of a gateway's name, its last ones: names of requests have at most 100."""


class MovableStream(Protocol):
    """A stream as its moves need it."""

    @property
    def is_stopped(self) -> bool:
        """True from a stop until a claim is granted, or none came in time."""
        ...

    @property
    def backend(self) -> Backend | None:
        """Worker that was asked and has not ended its answer; None: there is none."""
        ...

    def progress(self, request_id: str, hop: int) -> StreamProgress:
        """Return what a report tells of it."""
        ...

    def stop(self) -> StopReply:
        """End it at its worker, if that is possible now."""
        ...

    def continue_at(self, backend: Backend) -> None:
        """Continue it at a worker, once it is stopped."""
        ...


def gateway_id(name: str, began_ms: int) -> str:
    """Return the name of a gateway's process. With the number of a stream, it is a valid name of a request."""
    return f"{name[-_NAME_KEPT:]}-{began_ms:x}"


class StreamMoves:
    """Open streams of one model at one gateway.

    Args:
        gateway: Name of this process, of which no other has ever had streams.
        backends: Workers of the model.
    """

    def __init__(self, gateway: str, backends: Backends) -> None:
        self.gateway = gateway
        self._backends = backends
        self._owners = RequestOwners()
        self._streams: dict[str, MovableStream] = {}
        self._numbers = itertools.count(1)
        self._reported: dict[tuple[str, int], int] = {}
        """Reports without streams that a worker still gets, by its name and incarnation."""
        self.moved = 0
        """Streams continued at another worker because a worker commanded it."""

    def begin(self, stream: MovableStream) -> str:
        """Add a stream; return its id."""
        request_id = f"{self.gateway}.{next(self._numbers)}"
        self._streams[request_id] = stream
        return request_id

    def assign(self, request_id: str, backend: Backend) -> None:
        """Make a worker the owner of a stream, because the gateway chose it; pending claims are void."""
        self._owners.assign(request_id, backend.record.worker, backend.record.incarnation)

    def end(self, request_id: str) -> None:
        """Remove a stream."""
        self._streams.pop(request_id, None)
        self._owners.end(request_id)

    def answer_stop(self, command: StopStream) -> StopReply:
        """Stop a stream for the worker that owns it; a repeated command gets the same answer."""
        stream, owner = self._streams.get(command.request_id), self._owners.owner(command.request_id)
        if stream is None or owner is None:
            return StopReply("ended")
        if (owner.worker, owner.incarnation, owner.hop) != (command.worker, command.incarnation, command.hop):
            return StopReply("ended", f"{owner.worker} owns it")
        return StopReply("stopped") if stream.is_stopped else stream.stop()

    def answer_claim(self, claim: ClaimRequest) -> ClaimReply:
        """Grant or refuse a claim; a stream continues at the worker that it was granted to."""
        stream, owner = self._streams.get(claim.request_id), self._owners.owner(claim.request_id)
        if stream is None or owner is None:
            return ClaimReply(granted=False)
        if owner.hop == claim.hop:
            return self._owners.answer(claim)  # repeated, or too late
        backend = self._backends.find(claim.worker, claim.incarnation)
        if not stream.is_stopped or backend is None:
            return ClaimReply(granted=False, worker=owner.worker, incarnation=owner.incarnation)
        reply = self._owners.answer(claim)
        if reply.granted:
            self.moved += (owner.worker, owner.incarnation) != (claim.worker, claim.incarnation)
            stream.continue_at(backend)
        return reply

    def reports(self) -> Iterable[StreamReport]:
        """Return the reports that are due: for each worker with streams, and twice after its last one."""
        streams: dict[tuple[str, int], list[StreamProgress]] = defaultdict(list)
        for request_id, stream in self._streams.items():
            self._follow(request_id, stream)
            owner = self._owners.owner(request_id)
            if owner is not None:
                listed = streams[owner.worker, owner.incarnation]
                if len(listed) < STREAMS_MAX:
                    listed.append(stream.progress(request_id, owner.hop))
        last = {worker: left - 1 for worker, left in self._reported.items() if worker not in streams and left}
        self._reported = last | dict.fromkeys(streams, 2)
        for worker, incarnation in self._reported:
            yield StreamReport(self.gateway, worker, incarnation, streams.get((worker, incarnation), []))

    def _follow(self, request_id: str, stream: MovableStream) -> None:
        """Assign a stream to the present incarnation of its worker.

        A sidecar that is started again registers its engine anew. A stream that is still relayed from there is at that
        engine, so the new sidecar may move it.
        """
        backend, owner = stream.backend, self._owners.owner(request_id)
        if backend is None or owner is None or stream.is_stopped:
            return
        record = backend.record
        if record.worker == owner.worker and record.incarnation != owner.incarnation:
            self.assign(request_id, backend)
