"""Queues of the requests that NATS delivers: bounded, shared fairly, and answered at a bounded rate."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from loadline.wire.fair_queue import FairQueue


class QueueLimits(Struct, frozen=True):
    """Limits of the requests on one subject."""

    requests_max: int
    """Waiting requests; the rest of a burst is dropped."""
    bytes_max: int = 1_048_576
    """Size of the waiting requests."""
    spacing_s: float = 0.0
    """Time between two answers."""
    concurrent_max: int = 1
    """Requests that are answered at a time."""


QUERY_LIMITS: Final = QueueLimits(64, 65_536, 0.005)
"""Limits of requests that only read: 200 answers a second, as answers take their time from turns."""
COMMAND_LIMITS: Final = QueueLimits(1_024)
"""Limits of commands: all scalers of 1,024 models may start at once."""


class RequestQueue:
    """Requests on one subscription, each answered in a task.

    Requesters share the queue by the first token of their reply subjects, usually their inbox prefix. NATS does not
    check that subject: with one of the requests' own root or of the server, a requester would have the agent publish
    what it may not publish itself. Such requests are dropped.

    Args:
        client: The connection of the requests.
        answer: Answers a request.
        limits: Limits of the queue.
        on_dropped: Called with the number of requests that were dropped: too many wait, or the reply subject is
            no inbox.
        on_error: Called with what ``answer`` raises.
    """

    def __init__(
        self,
        client: Client,
        answer: Callable[[Msg], Awaitable[None]],
        limits: QueueLimits,
        on_dropped: Callable[[int], None],
        on_error: Callable[[Exception], Awaitable[None]],
    ) -> None:
        self._client = client
        self._answer = answer
        self._spacing_s = limits.spacing_s
        self._concurrent_max = limits.concurrent_max
        self._on_dropped = on_dropped
        self._on_error = on_error
        self._queue: FairQueue[tuple[str, str, bytes]] = FairQueue(
            limits.requests_max, limits.bytes_max, lambda request: len(request[2])
        )
        self._arrived = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run(), name="nats-requests")

    def offer(self, subject: str, reply: str, data: bytes) -> None:
        """Queue a request, in O(1): the reader of the connection calls this."""
        if reply.startswith(("$", f"{subject.partition('.')[0]}.")):
            self._on_dropped(1)
            return
        dropped = self._queue.dropped
        self._queue.put(reply.partition(".")[0], (subject, reply, data))
        if self._queue.dropped != dropped:
            self._on_dropped(self._queue.dropped - dropped)
        self._arrived.set()

    def close(self) -> None:
        """Stop answering, also requests whose answer is being computed."""
        for task in (self._task, *self._answering):
            task.cancel()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            for _, request in self._queue.pop_batch(1, 1):
                task = asyncio.create_task(self._answer_one(*request), name="nats-answer")
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            if not self._queue.waiting:
                self._arrived.clear()
            if len(self._answering) >= self._concurrent_max:
                await asyncio.wait(self._answering, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self._spacing_s)

    async def _answer_one(self, subject: str, reply: str, data: bytes) -> None:
        try:
            await self._answer(Msg(_client=self._client, subject=subject, reply=reply, data=data))
        except Exception as error:  # noqa: BLE001 - an answer that fails must not end the service
            await self._on_error(error)
