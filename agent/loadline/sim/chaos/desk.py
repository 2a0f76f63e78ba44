"""A worker's side of the frontend: takes requests, says which it has, and that one has ended until that is heard."""

from typing import Final

from msgspec import Struct

from loadline.errors import BusUnavailable
from loadline.sim.engine import EngineEvent, Request
from loadline.sim.world import peers
from loadline.sim.world.peers import Said
from loadline.sim.world.tasks import Task, pause
from loadline.sim.world.timeline import Timeline
from loadline.sim.world.worker import WorkerProcess
from loadline.wire.subjects import encode_token

_AGAIN_MS: Final = 1_000.0


class Submission(Struct, frozen=True):
    """Run this request."""

    request: Request
    incarnation: int
    """Of the worker."""


class Look(Struct, frozen=True):
    """Which requests do you have?"""

    incarnation: int


class Held(Struct, frozen=True):
    """These."""

    request_ids: list[str]


class Ended(Struct, frozen=True):
    """A request has its last token."""

    request_id: str
    hop: int


def submissions_to(worker: str) -> str:
    """Where a worker is given requests."""
    return f"sim.submit.{encode_token(worker)}"


def looks_at(worker: str) -> str:
    """Where a worker is asked what it has."""
    return f"sim.look.{encode_token(worker)}"


def ends_of(model: str) -> str:
    """Where the frontend of a model hears what has ended."""
    return f"sim.ended.{encode_token(model)}"


class Desk:
    """The desk of one life of a worker.

    Args:
        timeline: Virtual time.
        worker: Its process.
    """

    def __init__(self, timeline: Timeline, worker: WorkerProcess) -> None:
        self._timeline = timeline
        self._worker = worker
        self._hops: dict[str, int] = {}
        """Of the requests that have ended and of which that was not heard yet."""
        self._tasks: list[Task] = []
        port, name = worker.peers, worker.record.worker
        for subject, answer in {
            submissions_to(name): peers.answering(Submission, self._submitted),
            looks_at(name): peers.answering(Look, self._looked_at),
        }.items():
            Task(port.answer(subject, answer))

    def close(self) -> None:
        """The worker is gone."""
        for task in self._tasks:
            task.kill()

    def happened(self, event: EngineEvent) -> None:
        """Something happened to a request."""
        hop = self._worker.holds.hop(event.request_id)
        if event.kind == "finished" and hop is not None:
            self._hops[event.request_id] = hop
            self._tasks = [task for task in self._tasks if not task.done]
            self._tasks.append(Task(self._say(Ended(event.request_id, hop))))

    async def _say(self, ended: Ended) -> None:
        while True:
            try:
                await peers.ask(self._worker.peers, ends_of(self._worker.record.model), ended, Said)
            except BusUnavailable:
                await pause(self._timeline, _AGAIN_MS)
            else:
                break
        self._hops.pop(ended.request_id, None)

    async def _submitted(self, submission: Submission) -> Said | None:
        if submission.incarnation != self._worker.record.incarnation:
            return None
        return Said(self._worker.submit(submission.request))

    async def _looked_at(self, look: Look) -> Held | None:
        if look.incarnation != self._worker.record.incarnation:
            return None
        return Held([*self._worker.held, *self._hops])
