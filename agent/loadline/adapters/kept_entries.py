"""Entries of one read, within a bound for each writer: who fills etcd must not fill the memory of all readers."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct, field

from loadline.ports import StoreEntry

WRITER_BYTES_MAX: Final = 32 * 2**20
"""Memory for the entries of one writer: 40,000 workers with records of usual size, 300 bytes."""
_ENTRY_BYTES = 500


class _Kept(Struct):
    """Entries of one writer; the heap has the one that was created last on top."""

    heap: list[tuple[int, str, StoreEntry]] = field(default_factory=list)
    size: int = 0
    left_out: int = 0


class KeptEntries:
    """The entries of each writer that were created first, so that those that were there before stay visible.

    Args:
        writer_of: Function that returns who writes a key; the keys of the writer "" are not bounded.
        bytes_max: Memory for the entries of one writer.
    """

    def __init__(self, writer_of: Callable[[str], str], bytes_max: int = WRITER_BYTES_MAX) -> None:
        self._writer_of = writer_of
        self._bytes_max = bytes_max
        self._unbounded: list[StoreEntry] = []
        self._writers: dict[str, _Kept] = {}

    def add(self, entry: StoreEntry) -> None:
        """Add an entry; above the bound of its writer, leave out the one that was created last."""
        writer = self._writer_of(entry.key)
        if not writer:
            self._unbounded.append(entry)
            return
        kept = self._writers.setdefault(writer, _Kept())
        heappush(kept.heap, (-entry.create_revision, entry.key, entry))
        kept.size += _size(entry)
        while kept.size > self._bytes_max:
            kept.size -= _size(heappop(kept.heap)[2])
            kept.left_out += 1

    def in_key_order(self) -> list[StoreEntry]:
        """Return the kept entries."""
        bounded = [entry for kept in self._writers.values() for _, _, entry in kept.heap]
        return sorted(self._unbounded + bounded, key=lambda entry: entry.key)

    def left_out(self) -> dict[str, int]:
        """Return the number of entries that were left out, by writer."""
        return {writer: kept.left_out for writer, kept in self._writers.items() if kept.left_out}


def _size(entry: StoreEntry) -> int:
    return len(entry.key) + len(entry.value) + _ENTRY_BYTES
