"""Worker-side client of the frontend: accepts requests, lists held requests and announces ends until acknowledged."""

from typing import Final

from msgspec import Struct

from loadline.client.handover.bus import reply_handler
from loadline.errors import BusUnavailable
from loadline.sim.engine import EngineEvent, Request
from loadline.sim.world import peers
from loadline.sim.world.peers import Acknowledgement
from loadline.sim.world.tasks import VirtualTask, sleep
from loadline.sim.world.timeline import Timeline
from loadline.sim.world.worker import SimulatedWorker
from loadline.wire.subjects import encode_token

_RETRY_MS: Final = 1_000.0


class SubmitRequest(Struct, frozen=True):
    """Command to run a request."""

    request: Request
    incarnation: int
    """Incarnation of the addressed worker."""


class HeldRequestsQuery(Struct, frozen=True):
    """Query for the requests that a worker holds."""

    incarnation: int


class HeldRequestsReply(Struct, frozen=True):
    """Answer to ``HeldRequestsQuery``."""

    request_ids: list[str]


class RequestEnded(Struct, frozen=True):
    """Announcement of a request's end."""

    request_id: str
    hop: int


def submit_subject(worker: str) -> str:
    """Return the subject on which a worker accepts requests."""
    return f"sim.submit.{encode_token(worker)}"


def held_subject(worker: str) -> str:
    """Return the subject on which a worker lists its requests."""
    return f"sim.held.{encode_token(worker)}"


def ended_subject(model: str) -> str:
    """Return the subject on which the frontend of a model acknowledges ended requests."""
    return f"sim.ended.{encode_token(model)}"


class RequestClient:
    """Client of one lifetime of a worker.

    Args:
        timeline: Virtual time.
        worker: The worker.
    """

    def __init__(self, timeline: Timeline, worker: SimulatedWorker) -> None:
        self._timeline = timeline
        self._worker = worker
        self._unacknowledged: dict[str, int] = {}
        """Hops of ended requests without an acknowledgement."""
        self._tasks: list[VirtualTask] = []
        port, name = worker.peers, worker.record.worker
        for subject, answer in {
            submit_subject(name): reply_handler(SubmitRequest, self._answer_submit),
            held_subject(name): reply_handler(HeldRequestsQuery, self._answer_held),
        }.items():
            VirtualTask(port.answer(subject, answer))

    def close(self) -> None:
        """Stop all announcements, since the worker is gone."""
        for task in self._tasks:
            task.kill()

    def on_engine_event(self, event: EngineEvent) -> None:
        """Announce the end of a request."""
        hop = self._worker.held_requests.hop(event.request_id)
        if event.kind == "finished" and hop is not None:
            self._unacknowledged[event.request_id] = hop
            self._tasks = [task for task in self._tasks if not task.done]
            self._tasks.append(VirtualTask(self._announce_end(RequestEnded(event.request_id, hop))))

    async def _announce_end(self, ended: RequestEnded) -> None:
        while True:
            try:
                await peers.request(
                    self._worker.peers, ended_subject(self._worker.record.model), ended, Acknowledgement
                )
            except BusUnavailable:
                await sleep(self._timeline, _RETRY_MS)
            else:
                break
        self._unacknowledged.pop(ended.request_id, None)

    async def _answer_submit(self, command: SubmitRequest) -> Acknowledgement | None:
        if command.incarnation != self._worker.record.incarnation:
            return None
        return Acknowledgement(self._worker.submit(command.request))

    async def _answer_held(self, query: HeldRequestsQuery) -> HeldRequestsReply | None:
        if query.incarnation != self._worker.record.incarnation:
            return None
        return HeldRequestsReply([*self._worker.held, *self._unacknowledged])
