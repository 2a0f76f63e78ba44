"""In-memory journal that keeps samples of a few hundred turns each, to be replayed when they are complete."""

import random
from collections.abc import Callable
from typing import Final

_SEGMENT_RECORDS: Final = 150
_SEGMENTS: Final = 2
"""Segments of a sample: the second continues the first, so that the boundary between them is replayed too."""
_PAUSE_RECORDS_MAX: Final = 1_500


class SampledJournal:
    """Implementation of ``ports.Journal``.

    Args:
        seed: Seed of the number of records between two samples.
    """

    def __init__(self, seed: int) -> None:
        self.on_sample: Callable[[list[tuple[str, list[bytes]]]], None] = lambda _segments: None
        """Called with every sample when it is complete."""
        self.lost = 0
        self._rng = random.Random(seed)  # noqa: S311 - reproducible, no secret
        self._segments: list[tuple[str, list[bytes]]] = []
        self._left = 0
        self._pause = self._rng.randrange(_PAUSE_RECORDS_MAX)

    @property
    def wants_snapshot(self) -> bool:
        """True if the next record starts a segment."""
        return self._left <= 0 and self._pause <= 0

    def append(self, record: bytes, *, at_once: bool = False) -> None:  # noqa: ARG002 - nothing waits
        """Append a record to the current sample, or count one between two samples."""
        if self._segments:
            self._segments[-1][1].append(record)
            self._left -= 1
            if self._left <= 0 and len(self._segments) == _SEGMENTS:
                self.close()
        else:
            self._pause -= 1

    def begin(self, snapshot: Callable[[bool], bytes]) -> None:
        """Begin a segment with a snapshot."""
        self._segments.append((f"segment {len(self._segments)}", [snapshot(bool(self._segments))]))
        self._left = _SEGMENT_RECORDS

    def close(self) -> None:
        """End the current sample."""
        segments, self._segments = self._segments, []
        self._left, self._pause = 0, self._rng.randrange(_PAUSE_RECORDS_MAX)
        if segments:
            self.on_sample(segments)
