"""What people and programs may ask an agent: a NATS micro service. Every agent hears every request.

All agents answer ``status``, the leader first; only the leader answers the others, because only it knows and may act.
Where nobody leads, nobody answers, and the caller learns that from ``status``.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from loadline.core.queries import status as query
from loadline.core.vocabulary.events import AnnouncementRequested, DrainRequested, PauseRequested
from loadline.core.vocabulary.status import AgentStatus
from loadline.errors import BusUnavailable
from loadline.ports import RequestHandler
from loadline.runtime.loop import Runtime
from loadline.runtime.status_parts import STATUS_BYTES_MAX, split_status, without_lists
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import (
    AnnounceRequest,
    DecisionsReply,
    DrainOrder,
    ExplainReply,
    ExplainRequest,
    OperatorReply,
    PauseCommand,
    StatusRequest,
)

STANDBY_DELAY_S = 0.2
"""A caller takes the first answer, and a leader's says more."""
EXPLANATIONS_MAX = 64
"""Explanations in one reply, and looks of policies: of 1,024 models all would not fit into a message."""
PAUSE_CONFIRM_S = 1.5
"""A pause is written in milliseconds; callers wait for 2 s."""
PAUSE_POLL_S = 0.005
_SCALING_ENDPOINTS = frozenset({"decisions", "drain", "announce"})

_log = structlog.get_logger("loadline")


class Service:
    """Answers for one runtime."""

    def __init__(self, runtime: Runtime, version: str) -> None:
        self._runtime = runtime
        self._version = version
        self._started_at_ms = runtime.clock.now_ms()
        self._trimmed = False
        self._pausing = asyncio.Lock()

    def status(self) -> AgentStatus:
        """The agent as it is now."""
        controller, now = self._runtime.controller, self._runtime.clock.now_ms()
        return query.status(controller.settings, controller.state, self._version, self._started_at_ms, now)

    async def serve(self) -> None:
        """Offer the endpoints."""
        subjects = self._runtime.subjects
        answers: dict[str, RequestHandler] = {
            "status": self._status,
            "explain": self._leader_only(self._explain),
            "decisions": self._leader_only(self._decisions),
            "pause": self._leader_only(lambda payload: self._pause(payload, paused=True)),
            "resume": self._leader_only(lambda payload: self._pause(payload, paused=False)),
            "drain": self._leader_only(self._drain),
            "announce": self._leader_only(self._announce),
        }
        only = "migration" if self._runtime.controller.settings.only_migration else ""
        if only:  # it knows of no decision, and drains nobody
            answers = {name: answer for name, answer in answers.items() if name not in _SCALING_ENDPOINTS}
        endpoints = {name: (subjects.api(name, only), answer) for name, answer in answers.items()}
        await self._runtime.bus.serve(f"loadline-{only}" if only else "loadline", self._version, endpoints)

    async def publish_status(self, interval_ms: int) -> None:
        """Publish the status again and again, until cancelled."""
        subject = self._runtime.subjects.status(self._runtime.controller.settings.agent)
        while True:
            with contextlib.suppress(BusUnavailable):
                for frame in self._frames():
                    await self._runtime.bus.publish(subject, frame)
            await asyncio.sleep(interval_ms / 1000)

    async def _status(self, payload: bytes) -> bytes:
        request = decode_as(StatusRequest, payload)
        if not self._runtime.controller.leading:
            await asyncio.sleep(STANDBY_DELAY_S)
        frames = self._frames()
        # Whoever says nothing of parts is given the first; of models that have gone meanwhile, the last that there is.
        return frames[0 if isinstance(request, Rejected) else min(request.part, len(frames) - 1)]

    def _frames(self) -> list[bytes]:
        """The status as messages that servers and readers take."""
        status = self.status()
        size = len(encode(status))
        if size > STATUS_BYTES_MAX:
            status = without_lists(status)
            if not self._trimmed:
                self._trimmed = True
                _log.warning(
                    "status_trimmed", bytes=size, bytes_max=STATUS_BYTES_MAX, left_out="lists of workers and moves"
                )
        return [encode(part) for part in split_status(status)]

    def _leader_only(self, answer: Callable[[bytes], Awaitable[bytes]]) -> RequestHandler:
        async def only_leading(payload: bytes) -> bytes | None:
            return await answer(payload) if self._runtime.controller.leading else None

        return only_leading

    async def _explain(self, payload: bytes) -> bytes:
        request = decode_as(ExplainRequest, payload)
        if isinstance(request, Rejected):
            return _refusal(request.detail)
        state = self._runtime.controller.state
        found = query.explain(state, request.decision_id, request.model)
        moves = query.explain_migrations(state, request.decision_id, request.model)
        return encode(ExplainReply(found[:EXPLANATIONS_MAX], moves[:EXPLANATIONS_MAX]))

    async def _decisions(self, _payload: bytes) -> bytes:
        return encode(DecisionsReply(query.decisions(self._runtime.controller.state)))

    async def _pause(self, payload: bytes, *, paused: bool) -> bytes:
        command = decode_as(PauseCommand, payload)
        if isinstance(command, Rejected):
            return _refusal(command.detail)
        state = self._runtime.controller.state
        if command.model not in state.fleet.models:
            return _refusal(f"there is no model {command.model!r}; there are: {', '.join(sorted(state.fleet.models))}")
        if not state.store_connected:
            return _refusal("etcd is not reached, so nothing can be written; nothing is decided meanwhile either")

        def written() -> bool:
            return (command.model in self._runtime.controller.state.paused) == paused

        async with self._pausing:  # one after the other, in the order in which they came
            if not written():
                self._runtime.inbox.put(PauseRequested(command.model, paused, command.by or "somebody"))
            if not await _wait_for(written):
                return _refusal(
                    f"not known to be written after {PAUSE_CONFIRM_S:g} s; `loadline status` shows what holds"
                )
        return encode(OperatorReply(accepted=True))

    async def _drain(self, payload: bytes) -> bytes:
        order = decode_as(DrainOrder, payload)
        if isinstance(order, Rejected):
            return _refusal(order.detail)
        pool = self._runtime.controller.state.fleet.find_pool(order.model, order.pool)
        workers = getattr(pool, "workers", {})
        if order.worker not in workers:
            return _refusal(f"no worker {order.worker!r} is registered in pool {order.pool!r} of model {order.model!r}")
        self._runtime.inbox.put(DrainRequested(order.model, order.pool, order.worker, order.by or "somebody"))
        return encode(OperatorReply(accepted=True))

    async def _announce(self, payload: bytes) -> bytes:
        request = decode_as(AnnounceRequest, payload)
        if isinstance(request, Rejected):
            return _refusal(request.detail)
        if not self._runtime.controller.state.decisions_read:
            return _refusal("the decisions have not been read yet; ask again")
        for model in request.models:
            self._runtime.inbox.put(AnnouncementRequested(model, request.by))
        return encode(OperatorReply(accepted=True))


async def _wait_for(condition: Callable[[], bool]) -> bool:
    """Whether a condition, which a turn brings about, holds within ``PAUSE_CONFIRM_S``."""
    for _ in range(int(PAUSE_CONFIRM_S / PAUSE_POLL_S)):
        if condition():
            return True
        await asyncio.sleep(PAUSE_POLL_S)
    return condition()


def _refusal(detail: str) -> bytes:
    return encode(OperatorReply(accepted=False, detail=detail[:256]))
