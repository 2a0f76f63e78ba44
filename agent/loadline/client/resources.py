"""Resources of clients, each as an async context manager: a bus, a store, background tasks."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from msgspec import Struct, ValidationError, convert, to_builtins

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.logs import bounded
from loadline.adapters.nats_bus import NatsBus
from loadline.core.vocabulary.rejections import Rejection
from loadline.errors import BusUnavailable
from loadline.ports import Bus, Store
from loadline.servers import EtcdKnobs, NatsKnobs
from loadline.wire.codec import Rejected, decode_as, encode, reject

_log = bounded("client")


@asynccontextmanager
async def bus_of(bus: Bus | None, knobs: NatsKnobs | None, name: str) -> AsyncIterator[Bus]:
    """Yield the given bus, which its owner connects and closes; without one, connect and close a new one."""
    if bus is not None:
        yield bus
        return
    opened = NatsBus(knobs or NatsKnobs(), name=name)
    try:
        await opened.connect(lambda connected: _log.info("bus_connection", client=name, connected=connected))
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def store_of(store: Store | None, knobs: EtcdKnobs | None) -> AsyncIterator[Store]:
    """Yield the given store, which its owner closes; without one, open and close a new one."""
    if store is not None:
        yield store
        return
    opened = EtcdStore(knobs or EtcdKnobs())
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def running(work: Coroutine[object, object, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Run ``work`` in a background task and cancel it at the end. A crash is logged at once and raised at the end."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(log_crash)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


class BodyInterrupt:
    """Ends the body of an ``async with`` by an error, as ``asyncio.timeout`` does. Construct it on entry."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        self._error: Exception | None = None
        self._left = False

    def interrupt(self, error: Exception) -> None:
        """Cancel the body unless it has ended; ``leave`` then raises the error."""
        if self._task is not None and not self._left and self._error is None:
            self._error = error
            self._task.cancel()

    def leave(self) -> None:
        """Record the end of the body: from now on nothing is cancelled."""
        self._left = True

    def raise_error(self, kind: type[BaseException] | None) -> None:
        """Raise the error in place of the cancellation that it caused.

        Args:
            kind: Type of the exception that ended the body.
        """
        if self._task is None or self._error is None or self._task.uncancel() > self._cancelling:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._error


def log_crash(task: asyncio.Task[None]) -> None:
    """Log the exception of a task that has ended."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task_crashed", task=task.get_name(), exc_info=error)


def encode_readable(message: Struct) -> bytes | Rejected:
    """Encode a message, or return why every reader would refuse it, with the name of the field."""
    try:
        payload = encode(message)
    except (TypeError, OverflowError, UnicodeEncodeError) as error:  # a NumPy number, one beyond 64 bits, half a pair
        return reject(Rejection.INVALID, "", f"{error}{_place(message)}")
    refused = decode_as(type(message), payload)
    return refused if isinstance(refused, Rejected) else payload


def _place(message: Struct) -> str:
    """Return where a message that cannot be encoded has a value of a wrong type; empty: unknown."""
    try:
        convert(to_builtins(message, enc_hook=repr), type(message))
    except (TypeError, ValidationError) as error:
        _, at, place = str(error).rpartition(" - at ")
        return f"{at}{place}" if at else ""
    return ""


async def publish_now(bus: Bus, subject: str, message: Struct) -> bool:
    """Publish now or not at all, since it would be stale later; return True if the bus accepted it.

    A message that every reader would refuse is logged with the name of its field, and not sent.
    """
    payload = encode_readable(message)
    if isinstance(payload, Rejected):
        _log.error("message_invalid", subject=subject, detail=payload.detail)
        return False
    try:
        await bus.publish(subject, payload)
    except BusUnavailable:
        return False
    return True


async def wait_until_stopped(stop: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    """Wait until ``stop`` is set or one of the tasks has ended."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event, at most ``timeout_s``; return True if it was set."""
    try:
        # wait_for of Python 3.11 swallows a cancellation at the moment when the event is set.
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
