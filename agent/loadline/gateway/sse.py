"""Server-sent events, as engines stream them. Pure."""

from typing import Final

DONE: Final = b"[DONE]"
"""Data of the last event of a complete stream."""
_EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
_END_BYTES: Final = 3
"""Longest end of an event: two lines, of which the first may have begun with a carriage return."""


class EventTooLarge(ValueError):
    """Event above 16 MiB, with which no engine answers."""


class EventReader:
    """Splits a stream into the data of its events. Comments, which keep connections alive, have none."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._last = b""
        """Last bytes that were fed, with which the end of an event may begin."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Add bytes as they arrive; return the data of events that are complete.

        Raises:
            EventTooLarge: An event does not end.
        """
        self._parts.append(piece)
        self._size += len(piece)
        seam = self._last + piece
        self._last = seam[1 - _END_BYTES :]
        if b"\n\n" not in seam and b"\n\r\n" not in seam:
            return self._bounded([])  # an event is joined once, not with each of its pieces or lines
        text = b"".join(self._parts)
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *events, rest = text.split(b"\n\n")
        self._parts, self._size, self._last = [rest], len(rest), rest[1 - _END_BYTES :]
        return self._bounded([data for event in events if (data := _data(event))])

    def _bounded(self, found: list[bytes]) -> list[bytes]:
        """Return what was found, if the event that has begun is not too large."""
        if self._size > _EVENT_BYTES_MAX:
            raise EventTooLarge(f"an event of more than {_EVENT_BYTES_MAX:,} bytes")
        return found


def write_event(data: bytes) -> bytes:
    """Return an event with this data."""
    return b"data: " + data + b"\n\n"


def _data(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:  # nearly all
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
