"""Client of nats-py with faster delivery of frames, and with limits on requests and waiting times."""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.metadata import version
from typing import Any, Final

import nats.errors
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from loadline.adapters.logs import bounded
from loadline.adapters.nats_requests import COMMAND_LIMITS, QUERY_LIMITS, QueueLimits, RequestQueue
from loadline.ports import FrameHandler, Frames, FramesHandler

_log = bounded("nats")

_PARTS: Final = ("_error_cb", "_inbox_prefix", "_ps", "_server_info", "_sid", "_transport")
"""Private attributes of the library's client that the fast delivery of frames needs."""
_METHODS: Final = {
    "_connect_command": (),
    "_process_msg": ("sid", "subject", "reply", "data", "headers"),
    "_send_ping": ("future",),
}
"""Private methods, with their parameters."""
_TLS_PARTS: Final = frozenset({"_connect_command", "_server_info"})
"""Private parts that keep a login from a server without TLS."""
_PARSER_PARTS: Final = ("buf", "nc", "needed", "state")
_FLUSH_S = 1
# The library reports a lost connection only after a flush, which a frozen server can block: so poll its state as well.
_POLL_S = 1.0
# The server closes a connection that lags by more than 64 MB, which take 2 s to read.
_UNREAD_S = 5.0
# The library passes replies on in a task of their own, some steps of the loop after it has read them.
_PASS_ON_S = 0.05

_Callback = Callable[[Msg], Awaitable[None]]


@cache
def missing_parts() -> tuple[str, ...]:
    """Return the private parts of nats-py that this version of it lacks; none: frames are delivered fast."""
    client: Any = Client()
    missing = [name for name in _PARTS if not hasattr(client, name)]
    for name, parameters in _METHODS.items():
        method = getattr(client, name, None)
        if method is None or tuple(inspect.signature(method).parameters) != parameters:
            missing.append(name)
    missing += [] if hasattr(Subscription(client), "_id") else ["Subscription._id"]
    parser = getattr(client, "_ps", None)
    missing += [f"Parser.{name}" for name in _PARSER_PARTS if not hasattr(parser, name)]
    if missing:
        _log.warning(
            "nats_py_changed",
            version=version("nats-py"),
            missing=missing,
            remedy="Install a version of nats-py that loadline's requirements allow. Until then frames take five times "
            "the CPU time.",
        )
    return tuple(missing)


class NatsClient(Client):
    """Client of nats-py that delivers frames without queues, limits waiting requests and closes within a bounded time.

    With a version of nats-py whose private parts have changed, frames and requests pass through the library's queues.

    Args:
        tls_only: Refuse a server that offers no TLS.
        read_pause_s: Pause after each read.
        on_dropped: Called with the number of requests that were dropped because their queue is full.
    """

    def __init__(self, *, tls_only: bool, read_pause_s: float, on_dropped: Callable[[int], None]) -> None:
        super().__init__()
        self._tls_only = tls_only
        self._on_dropped = on_dropped
        self._disconnected = asyncio.Event()
        self._frame_handlers: dict[int, FramesHandler] = {}
        self._requests: dict[int, RequestQueue] = {}
        self._fast = not missing_parts()
        if self._fast:
            # Imported here, since another version may have no such parser to derive from.
            from loadline.adapters.nats_parser import FrameParser  # noqa: PLC0415

            self._ps = FrameParser(self, self._frame_handlers, self._requests, read_pause_s)
        self._queues: dict[Subscription, RequestQueue] = {}
        """Queues of requests that the library passes on."""

    async def connect(self, **options: Any) -> None:  # type: ignore[override]  # all arguments are options
        """Connect once.

        Raises:
            nats.errors.Error: Nothing would keep the library from sending a login to a server without TLS.
        """
        if self._tls_only and _TLS_PARTS.intersection(missing_parts()):
            raise nats.errors.Error("this version of nats-py cannot be kept from sending a login without TLS")
        await super().connect(**options)

    @property
    def unsent_bytes(self) -> int:
        """Size of unsent data in the buffers of the library and of the transport."""
        writer = self._writer
        buffered: int = 0 if writer is None else writer.transport.get_write_buffer_size()
        return self.pending_data_size + buffered

    @property
    def _writer(self) -> Any:
        return getattr(getattr(self, "_transport", None), "_io_writer", None)

    async def subscribe_frames(self, subject: str, handler: FrameHandler) -> Subscription:
        """Pass every frame on the subject to ``handler`` as soon as it is read."""
        return await self.subscribe_batches(subject, _one_by_one(handler))

    async def subscribe_batches(self, subject: str, handler: FramesHandler) -> Subscription:
        """Pass the frames on the subject to ``handler``, and together those that were read together.

        This takes 1 us per frame; the library's parser, queue and task take 5 us.
        """
        if not self._fast:
            return await super().subscribe(subject, cb=_passing(handler))
        self._frame_handlers[self._sid + 1] = handler  # id that the library assigns to the next subscription
        return await super().subscribe(subject, cb=_unused)

    async def subscribe_commands(self, subject: str, callback: _Callback, concurrent_max: int) -> Subscription:
        """Pass every request on the subject to a callback, within ``COMMAND_LIMITS``.

        Args:
            subject: Subject of the requests.
            callback: Answers a request.
            concurrent_max: Maximum number of requests that are answered at a time.
        """
        limits = replace(COMMAND_LIMITS, concurrent_max=concurrent_max)
        return await self._subscribe_requests(subject, "", callback, limits)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription, and the answers to its requests.

        Raises:
            nats.errors.Error: The connection was lost, or the subscription is one of another connection.
        """
        requests = self._queues.pop(subscription, None)
        if self._fast:
            self._frame_handlers.pop(subscription._id, None)  # noqa: SLF001 - the library has no accessor
            requests = self._requests.pop(subscription._id, None)  # noqa: SLF001
        if requests is not None:
            requests.close()
        await subscription.unsubscribe()

    async def subscribe(  # type: ignore[override]  # the other arguments are unused
        self, subject: str, queue: str = "", cb: _Callback | None = None
    ) -> Subscription:
        """Subscribe within ``QUERY_LIMITS``. The library's service framework calls this for each endpoint."""
        replies = bytes(getattr(self, "_inbox_prefix", b"_INBOX")).decode() + "."
        if cb is None or subject.startswith(replies):  # replies: at most one for each request sent
            return await super().subscribe(subject, queue, cb)
        return await self._subscribe_requests(subject, queue, cb, QUERY_LIMITS)

    async def _subscribe_requests(
        self, subject: str, queue: str, callback: _Callback, limits: QueueLimits
    ) -> Subscription:
        if not self._fast:
            requests = RequestQueue(self, callback, limits, self._on_dropped, _log_error)
            subscription = await super().subscribe(subject, queue, _passing_requests(requests))
            self._queues[subscription] = requests
            return subscription
        self._requests[self._sid + 1] = RequestQueue(self, callback, limits, self._on_dropped, self._error_cb)
        return await super().subscribe(subject, queue, _unused)

    async def request_reply(self, subject: str, payload: bytes, timeout_s: float) -> Msg:
        """Publish and wait for one reply; after ``timeout_s``, for one that has arrived and was not read yet.

        A flood of frames or a busy loop delays the reading. A worker that has answered must not count as silent then.
        """
        request = asyncio.create_task(self.request(subject, payload, timeout=timeout_s + _UNREAD_S + 1.0))
        try:
            await asyncio.wait({request}, timeout=timeout_s)
            if not request.done() and self.is_connected:
                await self._read_arrived()
                await asyncio.wait({request}, timeout=_PASS_ON_S)
            if not request.done():
                raise nats.errors.TimeoutError
            return await request
        finally:
            request.cancel()

    async def _read_arrived(self) -> None:
        """Wait until all that the server has sent is read, which its answer to a PING follows, or for 5 s."""
        with contextlib.suppress(nats.errors.Error):
            await self._wait_for_pong(round(_UNREAD_S))

    async def _wait_for_pong(self, timeout_s: int) -> None:
        """Wait until the server has read all that was sent, and all that it had sent is read.

        Raises:
            nats.errors.Error: The connection is closed, or that takes longer than ``timeout_s``.
        """
        if not self._fast:
            await self.flush(timeout_s)
            return
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        pong = asyncio.get_running_loop().create_future()
        await self._send_ping(pong)
        # Not ``flush``, which cancels the future when it is late or its caller is cancelled: at the PONG, the library
        # then fails to set it and closes the connection, on which other clients may be.
        done, _ = await asyncio.wait({pong}, timeout=timeout_s)
        if not done:
            raise nats.errors.TimeoutError

    # The library calls this for messages that FrameParser does not handle: replies, messages with headers, and large
    # messages that arrive in parts.
    async def _process_msg(self, *message: Any) -> None:
        if not self._fast:
            await super()._process_msg(*message)
            return
        sid, subject, reply, data, _ = message
        handler, requests = self._frame_handlers.get(sid), self._requests.get(sid)
        try:
            if handler is not None:
                handler([(subject.decode(), data)])
            elif requests is not None:
                requests.offer(subject.decode(), reply.decode(), data)
            else:
                await super()._process_msg(*message)
        except* Exception as failed:  # noqa: BLE001 - as in the library, an error of a callback must not end reading
            for error in failed.exceptions:
                await self._error_cb(error)

    async def on_closed(self) -> None:
        """Record that the connection has ended; the library calls this."""
        self._disconnected.set()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        while not self.is_closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._disconnected.wait()

    async def close_or_abort(self) -> None:
        """Close the connection; abort it if it cannot be flushed within 1 s."""
        for requests in (*self._requests.values(), *self._queues.values()):
            requests.close()
        if self._flush_queue is None:
            return  # the connection failed before it began, as by an unreadable certificate
        try:
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(_FLUSH_S):
                    await self.close()
        finally:
            writer = self._writer
            if writer is not None:
                writer.transport.abort()

    def _connect_command(self) -> bytes:
        # Without this check, the library sends the password in plain text if the server's INFO does not require TLS.
        if self._tls_only and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the URL says tls:// but the server offers no TLS")
        return super()._connect_command()

    async def flush_all(self) -> None:
        """Wait until the server has received everything that was published.

        Raises:
            nats.errors.Error: The connection is closed, or that takes longer than 1 s.
        """
        await asyncio.sleep(0)  # the library's writer must run first: PING bypasses its buffer
        await self._wait_for_pong(_FLUSH_S)


async def _unused(_message: Msg) -> None:
    """Do nothing: the messages of these subscriptions bypass the library's queues."""


def _passing(handler: FramesHandler) -> _Callback:
    """Return a callback of the library that passes frames to a handler."""

    async def pass_on(message: Msg) -> None:
        handler([(message.subject, message.data)])

    return pass_on


def _one_by_one(handler: FrameHandler) -> FramesHandler:
    """Return a handler that passes on each frame; one that fails does not keep the others."""

    def pass_on(frames: Frames) -> None:
        errors: list[Exception] = []
        for subject, data in frames:
            try:
                handler(subject, data)
            except Exception as error:  # noqa: BLE001 - raised below, with those of the other frames
                errors.append(error)
        if errors:
            raise ExceptionGroup("a handler of frames failed", errors)

    return pass_on


def _passing_requests(requests: RequestQueue) -> _Callback:
    """Return a callback of the library that passes requests to a queue."""

    async def pass_on(message: Msg) -> None:
        requests.offer(message.subject, message.reply, message.data)

    return pass_on


async def _log_error(error: Exception) -> None:
    _log.warning("request_failed", detail=repr(error))
