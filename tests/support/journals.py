"""Journals as an agent writes them, and what is read back."""

from collections.abc import Callable
from pathlib import Path

from loadline.adapters.file_journal import read_segments
from loadline.ports import Journal


def replay(path: Path) -> list[list[bytes]]:
    return [list(records) for _, records in read_segments(path)]


def said(snapshot: bytes) -> Callable[[bool], bytes]:
    return lambda _goes_on: snapshot


def run(journal: Journal, records: int, size: int = 10, first: int = 0) -> None:
    """Append turns as the runtime does."""
    for index in range(first, first + records):
        if journal.wants_snapshot:
            journal.begin(said(b'{"snapshot":%d}' % index))
        journal.append(b'{"turn":%d,"x":"%s"}' % (index, b"x" * size))
