"""nats-py's parser with a fast path for messages of subscriptions, which are most of what an agent reads."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from nats.aio.client import Client
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from loadline.adapters.nats_requests import RequestQueue
from loadline.ports import Frames, FramesHandler

_CRLF: Final = b"\r\n"
# The library's parser handles larger messages, since it does not copy the buffer at each read.
_REST_BYTES_MAX: Final = 65_536
# The library reads 32 KiB at a time, and does not yield to other tasks while more has arrived.
_FULL_READ_BYTES: Final = 32_768
# 8 reads have about 700 frames, more than a turn handles, and take 1 ms.
_FULL_READS_MAX: Final = 8
# Few lengths occur in frames of a fleet, so most lines end as one before.
_LINE_ENDS_MAX: Final = 4_096


class FrameParser(Parser):
    """Parser that passes complete messages to their handlers, and all else to the library's parser.

    The library takes 2.4 us for a message of 300 bytes: it matches seven patterns in turn, moves what is left in its
    buffer twice and passes through three coroutines. A search for the end of the line and two lookups take 0.6 us.
    Messages of one handler that are read in a row are passed on together, which saves a call for each.

    Args:
        client: The library's client.
        handlers: Handlers of frames, by the number of the subscription. May grow.
        requests: Queues of requests, by the number of the subscription. May grow.
        read_pause_s: Pause after each read, which has at most 32 KiB; 0: let other tasks run once after every eighth
            full one.
    """

    def __init__(
        self,
        client: Client,
        handlers: Mapping[int, FramesHandler],
        requests: Mapping[int, RequestQueue],
        read_pause_s: float = 0.0,
    ) -> None:
        super().__init__(client)
        self._handlers = handlers
        self._requests = requests
        self._read_pause_s = read_pause_s
        self._full_reads = 0
        self._line_ends: dict[bytes, tuple[int, int, str]] = {}

    async def parse(self, data: bytes = b"") -> None:
        """Parse what was read, then pause; what is incomplete waits in the buffer for the next call."""
        await self._parse(data)
        self._full_reads = self._full_reads + 1 if len(data) >= _FULL_READ_BYTES else 0
        if self._read_pause_s or self._full_reads >= _FULL_READS_MAX:
            self._full_reads = 0
            await asyncio.sleep(self._read_pause_s)

    async def _parse(self, data: bytes) -> None:
        if self.state == AWAITING_MSG_PAYLOAD:
            # The library has read the line of this message: pass it the rest of this message only, or it would read on.
            missing = self.needed + len(_CRLF) - len(self.buf)
            await super().parse(data[:missing])
            data = data[missing:]
            if not data:
                return
        data = bytes(self.buf) + data
        self.buf.clear()
        at, more_to_come, errors = self._pass_on(data)
        left = data[at:]
        if more_to_come and len(left) <= _REST_BYTES_MAX:
            self.buf.extend(left)
        else:
            await super().parse(left)
        for error in errors:
            await self.nc._error_cb(error)  # noqa: SLF001 - as the library does with what a callback raises

    def _pass_on(self, data: bytes) -> tuple[int, bool, list[Exception]]:
        """Pass on the messages that ``data`` begins with.

        Returns:
            Number of bytes passed on, True if an incomplete message of a handler follows, and the errors of handlers.
        """
        at, more_to_come, errors = 0, False, list[Exception]()
        handlers, requests, line_ends, size = self._handlers, self._requests, self._line_ends, len(data)
        last, frames = None, Frames()
        while data.startswith(b"MSG ", at):
            line_end = data.find(_CRLF, at)
            if line_end < 0:
                more_to_come = True
                break
            subject, _, rest = data[at + 4 : line_end].partition(b" ")
            known = line_ends.get(rest) or self._read_line_end(rest)
            if known is None:
                break  # the library reports the error
            sid, length, reply = known
            handler = handlers.get(sid)
            if handler is None and sid not in requests:
                break
            begin = line_end + 2
            end = begin + length
            if end + 2 > size:
                more_to_come = True
                break
            if handler is not last:
                errors += _deliver(frames, last)
                last, frames = handler, Frames()
            try:
                if handler is not None:
                    frames.append((subject.decode(), data[begin:end]))
                else:
                    requests[sid].offer(subject.decode(), reply, data[begin:end])
            except Exception as error:  # noqa: BLE001 - one message that fails must not end the reading
                errors.append(error)
            at = end + 2
        errors += _deliver(frames, last)
        return at, more_to_come, errors

    def _read_line_end(self, rest: bytes) -> tuple[int, int, str] | None:
        """Return what follows the subject in a line: subscription, length and reply subject; None if it is invalid."""
        sid, *reply, length = rest.split(b" ") if b" " in rest else (b"", b"")
        try:
            found = int(sid), int(length), reply[0].decode() if reply else ""
        except ValueError:
            return None
        if found[1] < 0:
            return None
        if not reply:  # that of a request is never seen again
            if len(self._line_ends) >= _LINE_ENDS_MAX:
                self._line_ends.clear()
            self._line_ends[rest] = found
        return found


def _deliver(frames: Frames, handler: FramesHandler | None) -> Sequence[Exception]:
    """Pass frames to their handler, if there are any; return what it raised."""
    errors: Sequence[Exception] = ()
    try:
        if handler is not None:
            handler(frames)
    except* Exception as failed:  # noqa: BLE001 - a handler that fails must not end the reading
        errors = failed.exceptions
    return errors
