"""Number of answered cases of each group, since cases whose answer is lost would otherwise only be skipped."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path(__file__).parent / "answered.json"

Expected = dict[str, dict[int, int]]
"""Answered cases by group and by the number of its cases, which differs between folders of vectors."""


def read() -> Expected:
    """Read the expected numbers."""
    return msgspec.json.decode(FILE.read_bytes(), type=Expected)


def lost(cases: Counter[str], answered: Counter[str], expected: Expected) -> Iterator[str]:
    """Yield a sentence for each group with fewer answers than expected."""
    for group, count, before in _known(cases, expected):
        if answered[group] < before:
            yield f"{group}: {answered[group]} of {count} cases are answered, and {before} were"


def gained(cases: Counter[str], answered: Counter[str], expected: Expected) -> Iterator[str]:
    """Yield a request for each group with more answers than expected."""
    for group, count, before in _known(cases, expected):
        if answered[group] > before:
            yield f"{group}: {answered[group]} of {count} cases are answered: raise {before} in {FILE.name}"


def _known(cases: Counter[str], expected: Expected) -> Iterable[tuple[str, int, int]]:
    for group, count in sorted(cases.items()):
        before = expected.get(group, {}).get(count)
        if before is not None:
            yield group, count, before
