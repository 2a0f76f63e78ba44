"""The agent's API for operators and programs: a NATS micro service. Every agent receives every request.

All agents answer ``status``, leaders first; only the leader of a model answers the other requests about it. Without a
leader these stay unanswered, and ``status`` shows why. Requests about all models are answered by all agents that lead
some, each for its models.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from loadline.adapters.logs import bounded
from loadline.core.fleet.moved_workers import home_of
from loadline.core.fleet.pool import DRAINS_MAX
from loadline.core.queries import status as query
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.events import DrainRequested, PauseRequested
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.status import AgentStatus
from loadline.errors import BusUnavailable
from loadline.ports import Bus, RequestHandler, SampleFiles
from loadline.runtime.announcements import AnnounceRequests
from loadline.runtime.loop import Runtime
from loadline.runtime.shards import Shards
from loadline.runtime.shared_answers import SharedAnswers
from loadline.runtime.slices import Steps, map_in_steps, run_in_slices
from loadline.runtime.status_parts import STATUS_BYTES_MAX, encode_status
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import (
    DecisionsReply,
    DrainOrder,
    ExplainReply,
    ExplainRequest,
    OperatorReply,
    PauseCommand,
    StatusRequest,
)

STANDBY_DELAY_S = 0.2
"""Delay of a standby's answer: a caller takes the first one, and the leader's has more data."""
EXPLANATIONS_MAX = 64
"""Explanations and policy reports in one reply: those of 1,024 models do not fit into a message."""
PAUSE_CONFIRM_S = 1.5
"""Time limit for the write of a pause, which takes milliseconds; callers wait for 2 s."""
PAUSE_POLL_S = 0.005
_SCALING = ("decisions", "drain", "announce")
"""Requests that an agent does not answer if it makes no decisions and drains no workers."""

_log = bounded("agent")


class Service:
    """API of one agent.

    Args:
        shards: The runtimes of the agent, whose bus carries the commands.
        queries: Bus of the queries. Messages of one connection arrive in order, so a burst of queries on that of the
            reports would delay them: 20,000 take 44 ms to read.
        version: Version of the agent.
    """

    def __init__(self, shards: Shards, queries: Bus, version: str) -> None:
        self._shards = shards
        self._runtime = shards.first
        self._queries = queries
        self._version = version
        self._started_at_ms = shards.first.clock.now_ms()
        self._trimmed = False
        self._newest: AgentStatus | None = None
        self._pausing = asyncio.Lock()
        self._pauses = 0
        """Number of the newest request to pause or resume a model."""
        self._statuses: SharedAnswers[list[bytes]] = SharedAnswers()
        self._replies: SharedAnswers[bytes] = SharedAnswers()
        self._announcements = AnnounceRequests(
            lambda: shards.leading,
            shared=shards.shared,
            call_later=lambda wait_s, do: asyncio.get_running_loop().call_later(wait_s, do),
        )

    def status(self) -> Steps[AgentStatus]:
        """Compute the agent's current status: that of 250 models takes 10 ms."""
        if not self._shards.shared:
            return (yield from self._status_of(self._runtime))
        found: list[AgentStatus] = []
        for one in self._shards.runtimes:
            status = yield from self._status_of(one, with_models=one.controller.leading)
            found += [status]
        candidacy = self._runtime.controller.state.leadership.candidacy
        populated = sum(bool(one.controller.state.fleet.models) for one in self._shards.runtimes)
        merged = query.merge_statuses(found, populated, candidacy.agents if candidacy is not None else ())
        return replace(merged, bus_connected=self._runtime.bus.connected)  # to a shard: while it receives reports

    def _status_of(self, runtime: Runtime, *, with_models: bool = True) -> Steps[AgentStatus]:
        controller, clock = runtime.controller, runtime.clock
        state, configured = controller.state, controller.settings.models
        present = (one for one in configured if with_models and one.name in state.fleet.models)  # they may change
        planners = controller.planners
        models = yield from map_in_steps(
            lambda knobs: query.model_status(state, knobs, clock.now_ms(), planners.get(knobs.name)), present
        )
        return query.agent_status(
            controller.settings,
            state,
            models,
            version=self._version,
            started_at_ms=self._started_at_ms,
            now=clock.now_ms(),
        )

    async def serve(self) -> None:
        """Answer queries and commands."""
        queries: dict[str, RequestHandler] = {
            "status": self._status,
            "explain": self._leader_only(self._explain),
            "decisions": self._leader_only(self._decisions),
        }
        commands: dict[str, RequestHandler] = {
            "pause": self._leader_only(lambda payload: self._pause(payload, paused=True)),
            "resume": self._leader_only(lambda payload: self._pause(payload, paused=False)),
            "drain": self._leader_only(self._drain),
            "announce": self._announce,
        }
        only = "migration" if self._runtime.controller.settings.only_migration else ""
        for name in _SCALING if only else ():
            queries.pop(name, None)
            commands.pop(name, None)
        service, subjects = f"loadline-{only}" if only else "loadline", self._runtime.subjects
        endpoints = {name: (subjects.api(name, only), answer) for name, answer in queries.items()}
        await self._queries.serve(service, self._version, endpoints)
        for name, answer in commands.items():
            await self._runtime.bus.answer(subjects.api(name, only), answer)

    async def publish_status(self, interval_ms: int, show: Callable[[AgentStatus], None]) -> None:
        """Publish the status periodically, and hand it to ``show``, until cancelled; one that fails is left out."""
        while True:
            try:
                await self._publish_status()
                if self._newest is not None:
                    show(self._newest)
            except Exception as error:  # noqa: BLE001 - a defect of one status must not end them all
                _log.error("status_not_published", detail=repr(error))
            await asyncio.sleep(interval_ms / 1000)

    async def write_samples(self, interval_ms: int, files: SampleFiles) -> None:
        """Write a sample of all models periodically, until cancelled; one that fails is left out."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                status, _ = await run_in_slices(self.status())
                await files.write(status.models)
            except Exception as error:  # noqa: BLE001 - a defect of one status must not end them all
                _log.error("sample_not_written", detail=repr(error))

    async def _publish_status(self) -> None:
        subject = self._runtime.subjects.status(self._runtime.controller.settings.agent)
        with contextlib.suppress(BusUnavailable):
            for frame in await self._statuses.get_in_slices("", self._frames):
                await self._runtime.bus.publish(subject, frame)

    async def _status(self, payload: bytes) -> bytes:
        request = decode_as(StatusRequest, payload)
        if not self._shards.leading:
            await asyncio.sleep(STANDBY_DELAY_S)
        frames = await self._statuses.get_in_slices("", self._frames)
        # A request without a part gets the first; an index past the end, after models were removed, gets the last.
        return frames[0 if isinstance(request, Rejected) else min(request.part, len(frames) - 1)]

    def _frames(self) -> Steps[list[bytes]]:
        """Return the status as messages within the size limits of servers and readers."""
        status = self._newest = yield from self.status()
        frames, size = yield from encode_status(status)
        if size > STATUS_BYTES_MAX and not self._trimmed:
            self._trimmed = True
            _log.warning(
                "status_trimmed", bytes=size, bytes_max=STATUS_BYTES_MAX, left_out="lists of workers and migrations"
            )
        return frames

    def _leader_only(self, answer: Callable[[bytes], Awaitable[bytes | None]]) -> RequestHandler:
        async def only_leading(payload: bytes) -> bytes | None:
            return await answer(payload) if self._shards.leading else None

        return only_leading

    def _is_led_elsewhere(self, model: str) -> bool:
        """Return True if another agent answers requests about a model; those about all models have an empty name."""
        return self._shards.shared and bool(model) and not self._shards.answers_for(model)

    async def _explain(self, payload: bytes) -> bytes | None:
        request = decode_as(ExplainRequest, payload)
        if isinstance(request, Rejected):
            return _refusal(request.detail)
        if self._is_led_elsewhere(request.model):
            return None

        def explain() -> bytes:
            states = self._shards.states
            found = [
                one
                for state in states
                for one in query.explain(state, request.decision_id, request.model, earlier=request.earlier)
            ]
            found.sort(key=lambda one: -one.at_ms)
            reports = [
                one for state in states for one in query.explain_migrations(state, request.decision_id, request.model)
            ]
            shared = self._shards.shared
            return encode(ExplainReply(found[:EXPLANATIONS_MAX], reports[:EXPLANATIONS_MAX], shared))

        return await self._replies.get(request, explain)

    async def _decisions(self, _payload: bytes) -> bytes:
        def decisions() -> bytes:
            return encode(DecisionsReply(query.decisions(self._shards.states), self._shards.shared))

        return await self._replies.get("decisions", decisions)

    async def _pause(self, payload: bytes, *, paused: bool) -> bytes | None:
        command = decode_as(PauseCommand, payload)
        if isinstance(command, Rejected):
            return _refusal(command.detail)
        if self._is_led_elsewhere(command.model):
            return None
        return encode(await self.set_paused(command.model, command.by or "somebody", paused=paused))

    async def set_paused(self, model: str, by: str, *, paused: bool) -> OperatorReply:
        """Pause or resume a model; return when that is written and in force.

        It is written though the model may seem to be paused or resumed already: an earlier write that was not
        confirmed, here or by a former leader, may still change that.
        """
        runtime = self._shards.of_model(model)
        if runtime is None:
            known = (name for one in self._shards.runtimes for name in one.controller.state.fleet.models)
            return _refused(f"there is no model {model!r}; there are: {', '.join(sorted(known))}")
        if not runtime.controller.state.store_connected:
            return _refused("etcd is not connected, so the pause cannot be written; no decisions are made meanwhile")
        async with self._pausing:  # serialised, in order of arrival
            if not runtime.controller.leading:
                return _refused(f"this agent does not lead {model!r}; ask again")
            self._pauses += 1
            request = PauseRequested(model, paused, by, self._pauses)
            runtime.inbox.put(request)
            if not await _wait_for(lambda: _is_in_force(runtime.controller.state, request)):
                return _refused(
                    f"the write is not confirmed after {PAUSE_CONFIRM_S:g} s; `loadline status` shows the current state"
                )
        return OperatorReply(accepted=True)

    async def _drain(self, payload: bytes) -> bytes | None:
        order = decode_as(DrainOrder, payload)
        if isinstance(order, Rejected):
            return _refusal(order.detail)
        if self._is_led_elsewhere(order.model):
            return None
        runtime = self._shards.of_model(order.model) or self._runtime
        state = runtime.controller.state
        pool = state.fleet.find_pool(order.model, order.pool)
        worker = None if isinstance(pool, Rejection) else pool.workers.get(order.worker)
        if worker is None:
            return _refusal(f"no worker {order.worker!r} is registered in pool {order.pool!r} of model {order.model!r}")
        home = home_of(state.fleet.models[order.model].pools, worker)
        if not worker.draining and state.drains_full(order.model, home):
            return _refusal(f"{DRAINS_MAX} workers of pool {home!r} drain already; try again when some have left")
        runtime.inbox.put(DrainRequested(order.model, order.pool, order.worker, order.by or "somebody"))
        return encode(OperatorReply(accepted=True))

    async def _announce(self, payload: bytes) -> bytes | None:
        return self._announcements.answer(payload)


async def _wait_for(condition: Callable[[], bool]) -> bool:
    """Wait up to ``PAUSE_CONFIRM_S`` for a condition that a turn makes true, and return it."""
    for _ in range(int(PAUSE_CONFIRM_S / PAUSE_POLL_S)):
        if condition():
            return True
        await asyncio.sleep(PAUSE_POLL_S)
    return condition()


def _is_in_force(state: AgentState, request: PauseRequested) -> bool:
    return state.pauses_written == request.request and (request.model in state.paused) == request.paused


def _refused(detail: str) -> OperatorReply:
    return OperatorReply(accepted=False, detail=detail[:256])


def _refusal(detail: str) -> bytes:
    return encode(_refused(detail))
