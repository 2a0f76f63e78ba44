"""A journal in memory that keeps samples: some segments, each of a few hundred turns, to be replayed when they end."""

import random
from collections.abc import Callable
from typing import Final

_SEGMENT_RECORDS: Final = 150
_SEGMENTS: Final = 2
"""Segments of a sample: the second goes on where the first one ended, so the seam between them is replayed too."""
_PAUSE_RECORDS_MAX: Final = 1_500


class SampledJournal:
    """``ports.Journal``.

    Args:
        seed: Decides how many records there are between two samples.
    """

    def __init__(self, seed: int) -> None:
        self.on_sample: Callable[[list[tuple[str, list[bytes]]]], None] = lambda _segments: None
        """Given every sample when it is complete."""
        self.lost = 0
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, no secret
        self._segments: list[tuple[str, list[bytes]]] = []
        self._left = 0
        self._pause = self._rng.randrange(_PAUSE_RECORDS_MAX)

    @property
    def wants_snapshot(self) -> bool:
        """Whether a segment begins."""
        return self._left <= 0 and self._pause <= 0

    def append(self, record: bytes) -> None:
        """Keep it, or count it among those between two samples."""
        if self._segments:
            self._segments[-1][1].append(record)
            self._left -= 1
            if self._left <= 0 and len(self._segments) == _SEGMENTS:
                self.close()
        else:
            self._pause -= 1

    def begin(self, snapshot: Callable[[bool], bytes]) -> None:
        """Begin a segment."""
        self._segments.append((f"segment {len(self._segments)}", [snapshot(bool(self._segments))]))
        self._left = _SEGMENT_RECORDS

    def close(self) -> None:
        """The sample ends here."""
        segments, self._segments = self._segments, []
        self._left, self._pause = 0, self._rng.randrange(_PAUSE_RECORDS_MAX)
        if segments:
            self.on_sample(segments)
