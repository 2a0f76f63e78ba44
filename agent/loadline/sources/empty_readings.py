"""Readings in a row in which an engine has said that it has no request, by rank."""

from collections.abc import Collection
from typing import Final

_ENOUGH: Final = 2
"""One is not enough: it may be older than what routers have sent."""


class EmptyReadings:
    """Count of the latest readings of each rank without a request."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def begin(self) -> None:
        """Count from now on; ranks that are known must be read again."""
        self._counts = dict.fromkeys(self._counts, 0)

    def note(self, rank: int, *, is_empty: bool) -> None:
        """Note a reading of a rank."""
        self._counts[rank] = self._counts.get(rank, 0) + 1 if is_empty else 0

    def keep(self, ranks: Collection[int]) -> None:
        """Forget all other ranks."""
        self._counts = {rank: count for rank, count in self._counts.items() if rank in ranks}

    @property
    def are_enough(self) -> bool:
        """True if the last two readings of each rank are without a request."""
        return bool(self._counts) and min(self._counts.values()) >= _ENOUGH
