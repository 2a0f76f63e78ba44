"""Moves as they happen: a task for each request, the engine's callbacks in it, and the clock that ends what is late."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Protocol, Self, get_args

from msgspec.structs import replace

from loadline.adapters.logs import bounded
from loadline.client.moves import Moves, Part
from loadline.client.resources import running, wait_at_most
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.migrations import MigrationFailure
from loadline.core.vocabulary.scalars import TOKENS_MAX
from loadline.errors import LoadlineError
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import MigrateCommand, MigrationReport

# A request has four reports at most, and a worker moves 64 requests at most: this many wait where the bus is slow.
_REPORTS_MAX: Final = 1_024
_SHOWN_MAX: Final = 100

_FAILURES: Final = frozenset(get_args(MigrationFailure)) - {""}

_log = bounded("mover")


class MoveRefused(LoadlineError):
    """A request stays where it is.

    Args:
        reason: Why; ``finished`` where it is over, ``destination_lost`` where nobody is there any more.
        detail: A sentence for people.
    """

    def __init__(self, reason: MigrationFailure = "destination_refused", detail: str = "") -> None:
        known = reason in _FAILURES
        self.reason: MigrationFailure = reason if known else "failed"
        """One that is not in the list would make the report unreadable."""
        self.detail = str(detail or "") if known else f"{reason}: {detail}"
        super().__init__(self.detail or self.reason)


class Mover(Protocol):
    """How an engine gives requests away. What these raise, other than ``MoveRefused``, fails that request alone."""

    def select(self, command: MigrateCommand) -> Sequence[MigratableRequest]:
        """The requests that there are, in queue order: those that run, the first come first, then those that wait.

        Must be quick. The worker chooses among them.
        """
        ...

    async def copy(self, request_id: str, command: MigrateCommand, admitted: Callable[[], None]) -> None:
        """Ask the destination for room, say ``admitted``, and copy the KV cache while the request goes on here.

        Comes back when so little is left that the request can stand still for it. Cancelled at the deadline: then the
        destination must be told, and the request goes on here.

        Raises:
            MoveRefused: The destination has no room or is gone, or the request is over.
        """
        ...

    async def switch(self, request_id: str, command: MigrateCommand) -> bool:
        """Stop the request, hand over what is left, and come back when it is known who owns it.

        True: the destination does. False: it stays, and goes on here. Never cancelled while the worker runs: where it
        is in doubt, the frontend is asked until it answers or is gone.

        Raises:
            MoveRefused: It stays, and this is why.
        """
        ...


class Moving:
    """Carries out the moves of a worker; an async context manager.

    Args:
        moves: Which, and how far they are.
        mover: The engine; None: it cannot move requests.
        worker: For the log.
        publish: Publishes a report.
    """

    def __init__(
        self,
        moves: Moves,
        mover: Mover | None,
        worker: str,
        publish: Callable[[MigrationReport], Awaitable[object]],
    ) -> None:
        self._moves = moves
        self._mover = mover
        self._worker = worker
        self._publish = publish
        self._tasks: dict[Part, asyncio.Task[None]] = {}
        self._outbox: deque[MigrationReport] = deque(maxlen=_REPORTS_MAX)
        self._news = asyncio.Event()
        self._left = False
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Begin to watch the time."""
        await self._stack.enter_async_context(running(self._watch(), f"moves of {self._worker}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End where it stands: the process leaves."""
        self._left = True
        await self._stack.aclose()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def answer(self, payload: bytes) -> bytes | None:
        """The answer to a migrate command; what it asks for begins after that."""
        command = decode_as(MigrateCommand, payload, "migrate")
        if isinstance(command, Rejected):
            _log.warning("migrate_command_ignored", worker=self._worker, detail=command.detail)
            return None
        if self._left:
            return None
        reply = self._moves.answer(command, self._candidates(command), self._now_ms())
        if reply is None:
            return None
        answer = encode(reply)
        if self._mover is not None:
            self._begin(self._mover, command)
        return answer

    def _begin(self, mover: Mover, command: MigrateCommand) -> None:
        for part in self._moves.begin(command.command_id):
            task = asyncio.create_task(self._carry_out(mover, part, command), name=f"move {part.request_id}")
            self._tasks[part] = task
            task.add_done_callback(partial(self._forget, part))
        self._news.set()

    def _forget(self, part: Part, _task: asyncio.Task[None]) -> None:
        self._tasks.pop(part, None)

    def _candidates(self, command: MigrateCommand) -> Sequence[MigratableRequest]:
        if self._mover is None:
            return ()
        try:
            return _sound(self._mover.select(command), self._worker)
        except Exception as error:  # noqa: BLE001 - the engine's code: its failure costs this command
            _log.error("select_failed", worker=self._worker, exc_info=error)
            return ()

    async def _carry_out(self, mover: Mover, part: Part, command: MigrateCommand) -> None:
        """One request, from its copy to its end."""
        try:
            await self._hand_over(mover, part, command)
        except asyncio.CancelledError:
            if self._left:
                raise
            # Not ours where it is in time: something that the engine waits for was cancelled.
            withdrawn = self._moves.is_withdrawn(part)
            self._failed(part, _late(command) if withdrawn else MoveRefused("failed", "its copy was cancelled"))
        except MoveRefused as refused:
            self._failed(part, refused)
        except Exception as error:  # noqa: BLE001 - the engine's code: its failure costs this request its move
            _log.error("move_failed", worker=self._worker, request=part.request_id, exc_info=error)
            self._failed(part, MoveRefused("failed", repr(error)))
        else:
            self._say(self._moves.switched(part, self._now_ms()))

    async def _hand_over(self, mover: Mover, part: Part, command: MigrateCommand) -> None:
        """Copy and switch; comes back once the destination owns it."""

        def admitted() -> None:
            self._say(self._moves.admitted(part, self._now_ms()))
            self._say(self._moves.copying(part, self._now_ms()))

        await mover.copy(part.request_id, command, admitted)
        admitted()
        if self._left or not self._moves.switching(part, self._now_ms()):
            raise _late(command)
        if not await mover.switch(part.request_id, command):
            raise MoveRefused("withdrawn", "the source has it still")

    def _failed(self, part: Part, refused: MoveRefused) -> None:
        self._say(self._moves.failed(part, refused.reason, self._now_ms(), refused.detail))

    def _say(self, reports: Sequence[MigrationReport]) -> None:
        self._outbox.extend(reports)
        self._news.set()

    async def _watch(self) -> None:
        """Publish what is to be said, withdraw what is late, and say again what was said last."""
        while True:
            self._news.clear()
            now_ms = self._now_ms()
            for part in self._moves.overdue(now_ms):
                task = self._tasks.get(part)
                if task is not None:
                    task.cancel()
                else:
                    self._failed(part, MoveRefused("deadline"))
            self._outbox.extend(self._moves.repeats(now_ms))
            while self._outbox:
                await self._publish(self._outbox.popleft())
            wake_ms = self._moves.wake_ms()
            if wake_ms is None:
                await self._news.wait()
            else:
                await wait_at_most(self._news, max(0, wake_ms - self._now_ms()) / 1_000)

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1_000)


def _sound(candidates: Iterable[MigratableRequest], worker: str) -> list[MigratableRequest]:
    """Those with an id of their own and tokens that can be counted, as engines count them: also NumPy's numbers."""
    found: dict[str, MigratableRequest] = {}
    for one in candidates:
        try:
            tokens = int(one.prompt_tokens), int(one.output_tokens)
            name = one.request_id
            twice = name in found
        except (AttributeError, TypeError, ValueError) as error:
            _log.error("candidate_ignored", worker=worker, candidate=repr(one)[:_SHOWN_MAX], problem=str(error))
            continue
        if min(tokens) < 0 or max(tokens) > TOKENS_MAX or twice:
            problem = "its id is there twice" if twice else f"it has {tokens[0]} and {tokens[1]} tokens"
            _log.error("candidate_ignored", worker=worker, candidate=repr(name)[:_SHOWN_MAX], problem=problem)
            continue
        found[name] = replace(one, prompt_tokens=tokens[0], output_tokens=tokens[1])
    return list(found.values())


def _late(command: MigrateCommand) -> MoveRefused:
    return MoveRefused("deadline", f"its copy was not over after {command.ttl_ms} ms")
