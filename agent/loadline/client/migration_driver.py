"""Driver of handovers for a real engine: a task for each effect, and a clock for deadlines."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Self, TypeVar

from msgspec.structs import replace

from loadline.adapters.logs import bounded
from loadline.client.handover.effects import (
    AskRoom,
    CancelCopy,
    DiscardRequest,
    EndTransfer,
    ExpireRoom,
    PublishReports,
    ReleaseRoom,
    ReplyHandover,
    RunRequest,
    SendClaim,
    SendHandover,
    StartCopy,
    StopRequest,
    Transfer,
)
from loadline.client.handover.executor import EffectExecutor
from loadline.client.handover.messages import HandoverReply, HandoverRequest, RoomReply, RoomRequest
from loadline.client.handover.migrator import RequestMigrator
from loadline.client.handover.source import StoppedRequest
from loadline.client.migratable_engine import MigrationOptions, MigrationRefused
from loadline.client.resources import log_crash, running, wait_at_most
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.scalars import TOKENS_MAX, is_name
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport

# At most 64 requests with four reports each migrate at a time; the rest is reserve for a slow bus.
_REPORTS_MAX: Final = 1_024
_SHOWN_CHARS_MAX: Final = 100

_log = bounded("migration")

_R = TypeVar("_R")


class MigrationDriver(EffectExecutor):
    """Executor of the handovers of a worker, as an async context manager.

    Args:
        migrator: State machine of the handovers.
        options: Engine, and transport to other workers.
        worker: Name of the worker.
        publish: Publishes a report.
    """

    def __init__(
        self,
        migrator: RequestMigrator,
        options: MigrationOptions,
        worker: str,
        publish: Callable[[MigrationReport], Awaitable[object]],
    ) -> None:
        super().__init__()
        self._migrator = migrator
        self._engine = options.engine
        self._transport = options.transport
        self._worker = worker
        self._publish = publish
        self._tasks: set[asyncio.Task[None]] = set()
        self._copies: dict[Transfer, asyncio.Task[None]] = {}
        self._replies: dict[tuple[str, int], asyncio.Future[HandoverReply | None]] = {}
        self._outbox: deque[MigrationReport] = deque(maxlen=_REPORTS_MAX)
        self._wake = asyncio.Event()
        self._closed = False
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start to answer other workers and to apply deadlines."""
        self._closed = False  # the start of the worker may have failed before, and be repeated
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running(self._run_clock(), f"migrations of {self._worker}"))
            end = await self._transport.serve_worker(self._worker, self._answer_room, self._answer_handover)
            stack.push_async_callback(end)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel all handovers, since the process exits."""
        self._closed = True
        await self._stack.aclose()
        for future in self._replies.values():
            future.set_result(None)
        self._replies.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def answer(self, command: MigrateCommand) -> MigrateReply | None:
        """Answer a migrate command, then begin it; None: no answer, or another worker answers."""
        if self._closed:
            return None
        reply = self._migrator.answer(command, self._candidates(), self._now_ms())
        self.execute(self._migrator.source.begin(command.command_id))
        self._wake.set()
        return reply

    def _candidates(self) -> Sequence[MigratableRequest]:
        try:
            return _valid(self._engine.migratable_requests(), self._worker)
        except Exception as error:  # noqa: BLE001 - the engine's code: its failure costs this command
            _log.error("requests_unknown", worker=self._worker, exc_info=error)
            return ()

    async def _answer_room(self, message: RoomRequest) -> RoomReply | None:
        destination = self._migrator.destination
        if self._closed or not destination.is_addressed(message.incarnation):
            return None
        reserved = destination.reserved_kv_tokens(message.request_id)
        reply, effects = destination.on_room_request(message, fits=self._has_room(message.kv_tokens + reserved))
        self.execute(effects)
        return reply

    def _has_room(self, kv_tokens: int) -> bool:
        try:
            return self._engine.has_room(kv_tokens)
        except Exception as error:  # noqa: BLE001 - the engine's code: its failure costs this handover
            _log.error("room_unknown", worker=self._worker, exc_info=error)
            return False

    async def _answer_handover(self, message: HandoverRequest) -> HandoverReply | None:
        destination = self._migrator.destination
        if self._closed or not destination.is_addressed(message.incarnation):
            return None
        reply, effects = destination.on_handover_request(message, self._now_ms())
        key = message.request.request_id, message.request.hop
        future = None if reply else self._replies.setdefault(key, asyncio.get_running_loop().create_future())
        self.execute(effects)
        return reply if future is None else await asyncio.shield(future)

    # -- effects -------------------------------------------------------------------------------------------------------

    def ask_room(self, effect: AskRoom) -> None:
        """Ask a destination for room."""

        async def ask() -> None:
            reply = await self._send(self._transport.ask_room(effect.worker, effect.message))
            self.execute(self._migrator.source.on_room_reply(effect.transfer, reply, self._now_ms()))

        self._start(ask())

    def release_room(self, effect: ReleaseRoom) -> None:
        """Release the room at a destination."""

        async def release() -> None:
            await self._send(self._transport.ask_room(effect.worker, effect.message))

        self._start(release())

    def start_copy(self, effect: StartCopy) -> None:
        """Copy the KV cache in a task."""
        transfer = effect.transfer

        async def copy() -> None:
            # Called within the task: what the call itself raises, as with a wrong signature, ends the copy too.
            await self._engine.copy(transfer.request_id, effect.command)

        self._copies[transfer] = self._start(copy(), partial(self._copy_ended, transfer))

    def cancel_copy(self, effect: CancelCopy) -> None:
        """Cancel the task of a copy; ``_copy_ended`` is called once it has ended."""
        self._copies[effect.transfer].cancel()

    def _copy_ended(self, transfer: Transfer, copy: asyncio.Task[None]) -> None:
        if self._closed:
            return
        if copy.cancelled():
            # Before the deadline, this means that the engine awaited something that was cancelled.
            self._give_up(transfer, MigrationRefused("failed", "its copy was cancelled"))
        elif (error := copy.exception()) is not None:
            self._give_up(transfer, error)
        else:
            self.execute(self._migrator.source.on_copied(transfer, self._now_ms()))

    def stop_request(self, effect: StopRequest) -> None:
        """Stop a request in a task."""
        transfer = effect.transfer

        async def stop() -> None:
            try:
                stopped = await self._engine.stop(transfer.request_id, effect.command)
                _check_stopped(stopped)
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                self._give_up(transfer, MigrationRefused("failed", "its stop was cancelled"))
                return
            except Exception as error:  # noqa: BLE001 - the engine's code: its failure costs this migration
                self._give_up(transfer, error)
                return
            if stopped is None:
                self._give_up(transfer, MigrationRefused("finished", "it ended, or is about to"))
            else:
                self.execute(self._migrator.source.on_stopped(transfer, stopped, self._now_ms()))

        self._start(stop())

    def _give_up(self, transfer: Transfer, error: BaseException) -> None:
        if isinstance(error, MigrationRefused):
            refused = error
        else:
            _log.error("migration_failed", worker=self._worker, request=transfer.request_id, exc_info=error)
            refused = MigrationRefused("failed", repr(error))
        self.execute(self._migrator.source.on_failure(transfer, refused.reason, self._now_ms(), refused.detail))

    def send_handover(self, effect: SendHandover) -> None:
        """Send a request to its destination."""

        async def send() -> None:
            reply = await self._send(self._transport.hand_over(effect.worker, effect.message))
            self.execute(self._migrator.source.on_handover_reply(effect.transfer, reply, self._now_ms()))

        self._start(send())

    def send_claim(self, effect: SendClaim) -> None:
        """Send a claim to a frontend."""

        async def send() -> None:
            await asyncio.sleep(effect.delay_ms / 1_000)
            reply = await self._send(self._transport.claim(effect.frontend, effect.message))
            name, hop = effect.message.request_id, effect.message.hop
            self.execute(self._migrator.on_claim_reply(name, hop, reply, self._now_ms()))

        self._start(send())

    def run_request(self, effect: RunRequest) -> None:
        """Have the engine run a request."""
        self._call(partial(self._engine.run, effect.request), effect.request.request_id)

    def discard_request(self, effect: DiscardRequest) -> None:
        """Have the engine discard a request."""
        self._call(partial(self._engine.discard, effect.request_id), effect.request_id)

    def expire_room(self, effect: ExpireRoom) -> None:
        """Schedule the expiry of a reservation."""
        expire = self._migrator.destination.on_room_expired
        asyncio.get_running_loop().call_later(effect.delay_ms / 1_000, expire, effect.request_id, effect.reservation)

    def reply_handover(self, effect: ReplyHandover) -> None:
        """Answer the sources of a handover."""
        future = self._replies.pop((effect.request_id, effect.hop), None)
        if future is not None:
            future.set_result(effect.message)

    def publish_reports(self, effect: PublishReports) -> None:
        """Publish reports as soon as the bus takes them."""
        self._outbox.extend(effect.reports)
        self._wake.set()

    def end_transfer(self, effect: EndTransfer) -> None:
        """Remove the copy of a transfer."""
        self._copies.pop(effect.transfer, None)

    def _start(
        self, work: Coroutine[object, object, None], on_end: Callable[[asyncio.Task[None]], None] = log_crash
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"handover of {self._worker}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(on_end)
        return task

    def _call(self, call: Callable[[], None], request_id: str) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the engine's code: the frontend restarts the missing request
            _log.error("engine_failed", worker=self._worker, request=request_id, exc_info=error)
            self._engine.held_requests.end(request_id)

    async def _send(self, sending: Awaitable[_R | None]) -> _R | None:
        try:
            return await sending
        except asyncio.CancelledError as error:  # as calls of gRPC raise whose channel was closed
            if _is_cancelled():
                raise
            _log.error("message_failed", worker=self._worker, exc_info=error)
            return None
        except Exception as error:  # noqa: BLE001 - the engine's code: as if there were no answer
            _log.error("message_failed", worker=self._worker, exc_info=error)
            return None

    # -- time ----------------------------------------------------------------------------------------------------------

    async def _run_clock(self) -> None:
        """Publish reports, apply deadlines, and repeat final reports."""
        while True:
            self._wake.clear()
            self.execute(self._migrator.tick(self._now_ms()))
            while self._outbox:
                await self._publish(self._outbox.popleft())
            wake_ms = self._migrator.next_wake_ms()
            if wake_ms is None:
                await self._wake.wait()
            else:
                await wait_at_most(self._wake, max(0, wake_ms - self._now_ms()) / 1_000)

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1_000)


def _is_cancelled() -> bool:
    """Return True if the running task was cancelled, and not only something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _check_stopped(stopped: object) -> None:
    """Check what ``stop`` of an engine returned, before the request is given up here.

    Raises:
        TypeError: It cannot be handed over.
    """
    if stopped is None:
        return
    if not isinstance(stopped, StoppedRequest):
        raise TypeError(f"stop returned {type(stopped).__name__}, not StoppedRequest or None")
    frontend: object = stopped.frontend
    if not (isinstance(frontend, str) and is_name(frontend)):
        raise TypeError(f"the frontend is no name: {frontend!r:.100}")
    state: object = stopped.state
    if not isinstance(state, bytes | bytearray | memoryview):
        raise TypeError(f"the state is {type(state).__name__}, not bytes")


def _valid(requests: Iterable[MigratableRequest], worker: str) -> list[MigratableRequest]:
    """Return the requests with a unique id and valid numbers of tokens."""
    found: dict[str, MigratableRequest] = {}
    for one in requests:
        try:
            request = _with_integers(one)
            name = request.request_id
            repeated = name in found
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            _log.error("request_ignored", worker=worker, request=repr(one)[:_SHOWN_CHARS_MAX], problem=str(error))
            continue
        tokens = request.prompt_tokens, request.output_tokens
        if min(tokens) < 0 or max(tokens) > TOKENS_MAX or repeated:
            problem = "its id is not unique" if repeated else f"it has {tokens[0]} and {tokens[1]} tokens"
            _log.error("request_ignored", worker=worker, request=repr(name)[:_SHOWN_CHARS_MAX], problem=problem)
            continue
        found[name] = request
    return list(found.values())


def _with_integers(request: MigratableRequest) -> MigratableRequest:
    """Return a request with integers of Python, as those of NumPy, and those beyond 64 bits, cannot be sent."""
    remaining = request.remaining_tokens
    return replace(
        request,
        prompt_tokens=int(request.prompt_tokens),
        output_tokens=int(request.output_tokens),
        hops=int(request.hops),
        remaining_tokens=None if remaining is None else min(int(remaining), int(TOKENS_MAX)),
    )
