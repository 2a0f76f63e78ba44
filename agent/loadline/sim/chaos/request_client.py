"""A worker's side of the frontend: takes requests, says which it has, and that one has ended until that is heard."""

from typing import Final

from msgspec import Struct

from loadline.errors import BusUnavailable
from loadline.sim.engine import EngineEvent, Request
from loadline.sim.world import peers
from loadline.sim.world.peers import Said
from loadline.sim.world.tasks import VirtualTask, sleep
from loadline.sim.world.timeline import Timeline
from loadline.sim.world.worker import SimulatedWorker
from loadline.wire.subjects import encode_token

_AGAIN_MS: Final = 1_000.0


class SubmitRequest(Struct, frozen=True):
    """Run this request."""

    request: Request
    incarnation: int
    """Of the worker."""


class HeldRequestsQuery(Struct, frozen=True):
    """Which requests do you have?"""

    incarnation: int


class HeldRequests(Struct, frozen=True):
    """These."""

    request_ids: list[str]


class RequestEnded(Struct, frozen=True):
    """A request has its last token."""

    request_id: str
    hop: int


def submit_subject(worker: str) -> str:
    """Where a worker is given requests."""
    return f"sim.submit.{encode_token(worker)}"


def held_subject(worker: str) -> str:
    """Where a worker is asked what it has."""
    return f"sim.look.{encode_token(worker)}"


def ended_subject(model: str) -> str:
    """Where the frontend of a model hears what has ended."""
    return f"sim.ended.{encode_token(model)}"


class RequestClient:
    """The desk of one life of a worker.

    Args:
        timeline: Virtual time.
        worker: Its process.
    """

    def __init__(self, timeline: Timeline, worker: SimulatedWorker) -> None:
        self._timeline = timeline
        self._worker = worker
        self._unacknowledged: dict[str, int] = {}
        """Of the requests that have ended and of which that was not heard yet."""
        self._tasks: list[VirtualTask] = []
        port, name = worker.peers, worker.record.worker
        for subject, answer in {
            submit_subject(name): peers.answering(SubmitRequest, self._answer_submit),
            held_subject(name): peers.answering(HeldRequestsQuery, self._answer_held),
        }.items():
            VirtualTask(port.answer(subject, answer))

    def close(self) -> None:
        """The worker is gone."""
        for task in self._tasks:
            task.kill()

    def on_engine_event(self, event: EngineEvent) -> None:
        """Something happened to a request."""
        hop = self._worker.holds.hop(event.request_id)
        if event.kind == "finished" and hop is not None:
            self._unacknowledged[event.request_id] = hop
            self._tasks = [task for task in self._tasks if not task.done]
            self._tasks.append(VirtualTask(self._announce_end(RequestEnded(event.request_id, hop))))

    async def _announce_end(self, ended: RequestEnded) -> None:
        while True:
            try:
                await peers.ask(self._worker.peers, ended_subject(self._worker.record.model), ended, Said)
            except BusUnavailable:
                await sleep(self._timeline, _AGAIN_MS)
            else:
                break
        self._unacknowledged.pop(ended.request_id, None)

    async def _answer_submit(self, submission: SubmitRequest) -> Said | None:
        if submission.incarnation != self._worker.record.incarnation:
            return None
        return Said(self._worker.submit(submission.request))

    async def _answer_held(self, look: HeldRequestsQuery) -> HeldRequests | None:
        if look.incarnation != self._worker.record.incarnation:
            return None
        return HeldRequests([*self._worker.held, *self._unacknowledged])
