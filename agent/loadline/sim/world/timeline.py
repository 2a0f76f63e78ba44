"""Virtual time: what is to be done and when. Of things at the same time, what was planned first comes first."""

import heapq
import random
from collections.abc import Callable
from typing import Final

START_MS: Final = 1_700_000_000_000
"""Unix ms at which virtual time begins for whoever reads a clock."""


class Timeline:
    """A heap of deeds. Time only moves forward, from deed to deed.

    Args:
        seed: Where all rng comes from.
    """

    def __init__(self, seed: int = 0) -> None:
        self.now_ms = 0.0
        """Virtual ms since the start."""
        self.seed = seed
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._scheduled = 0

    def rng(self, purpose: str) -> random.Random:
        """A stream of its own for each purpose: who draws more of one does not change another."""
        return random.Random(f"{self.seed}:{purpose}")  # noqa: S311 - repeatable, no secret

    def call_at(self, at_ms: float, do: Callable[[], object]) -> None:
        """Do it then; what is in the past is done next."""
        self._scheduled += 1
        heapq.heappush(self._queue, (max(at_ms, self.now_ms), self._scheduled, do))

    def call_later(self, wait_ms: float, do: Callable[[], object]) -> None:
        """Do it after a while."""
        self.call_at(self.now_ms + wait_ms, do)

    def run_until(self, until_ms: float) -> None:
        """Let time pass."""
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            self.now_ms, _, do = heapq.heappop(queue)
            do()
        self.now_ms = max(self.now_ms, until_ms)
