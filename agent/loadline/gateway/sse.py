"""Server-sent events, as engines stream them. Pure."""

from typing import Final

DONE: Final = b"[DONE]"
"""Data of the last event of a complete stream."""
_EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
_DONE_BYTES_MAX: Final = 16
"""Longest last event without its blank line."""
_END_BYTES: Final = 3
"""Longest end of an event: two lines, of which the first may have begun with a carriage return."""


class EventTooLarge(ValueError):
    """Event above 16 MiB, with which no engine answers."""


class EventReader:
    """Splits a stream into the data of its events. Comments, which keep connections alive, have none."""

    def __init__(self) -> None:
        self._begun = bytearray()
        """Bytes of the event that has begun; as a list, 16 MiB in pieces of two bytes would take 350 MB."""
        self._last = b""
        """Last bytes that were fed, with which the end of an event may begin."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Add bytes as they arrive; return the data of events that are complete.

        Raises:
            EventTooLarge: An event does not end.
        """
        self._begun += piece
        seam = self._last + piece
        self._last = seam[1 - _END_BYTES :]
        found = self._split() if b"\n\n" in seam or b"\n\r\n" in seam else []
        if len(self._begun) > _EVENT_BYTES_MAX:
            raise EventTooLarge(f"an event of more than {_EVENT_BYTES_MAX:,} bytes")
        if 0 < len(self._begun) <= _DONE_BYTES_MAX and _data(bytes(self._begun).strip()) == DONE:
            self._begun.clear()  # nothing follows, so the blank line is not waited for: some proxies drop it
            found.append(DONE)
        return found

    def _split(self) -> list[bytes]:
        text = bytes(self._begun)
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *events, rest = text.split(b"\n\n")
        self._begun, self._last = bytearray(rest), rest[1 - _END_BYTES :]
        return [data for event in events if (data := _data(event))]


def write_event(data: bytes) -> bytes:
    """Return an event with this data, which may have several lines."""
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def _data(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:  # nearly all
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
