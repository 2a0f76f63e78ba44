"""Virtual time: a queue of callbacks. Callbacks of equal time run in the order of their scheduling."""

import heapq
import random
from collections.abc import Callable
from typing import Final

START_MS: Final = 1_700_000_000_000
"""Unix ms of the start of virtual time."""


ScheduledCall = tuple[float, int, Callable[[], object]]
"""Time, place among the calls of equal time, and the callback."""


class Timeline:
    """A heap of callbacks. Time only moves forward, from callback to callback.

    Args:
        seed: Seed of all random streams.
    """

    def __init__(self, seed: int = 0) -> None:
        self.now_ms = 0.0
        """Virtual ms since the start."""
        self.seed = seed
        self._queue: list[ScheduledCall] = []
        self._scheduled = 0

    def rng(self, purpose: str) -> random.Random:
        """Return a random stream for a purpose, independent of all others."""
        return random.Random(f"{self.seed}:{purpose}")  # noqa: S311 - reproducible, no secret

    def call_at(self, at_ms: float, do: Callable[[], object]) -> None:
        """Call a function at a time; a past time means next."""
        self._scheduled += 1
        at_ms = at_ms if at_ms > self.now_ms else self.now_ms  # noqa: FURB136 - max() takes 3x
        heapq.heappush(self._queue, (at_ms, self._scheduled, do))

    def call_later(self, wait_ms: float, do: Callable[[], object]) -> None:
        """Call a function after a delay of at least 0."""
        self._scheduled += 1
        heapq.heappush(self._queue, (self.now_ms + wait_ms, self._scheduled, do))

    def reserve(self, wait_ms: float, do: Callable[[], object]) -> ScheduledCall:
        """Return a call as ``call_later`` would schedule it; ``schedule`` it in time, or never."""
        self._scheduled += 1
        return self.now_ms + wait_ms, self._scheduled, do

    def schedule(self, call: ScheduledCall) -> None:
        """Schedule a reserved call: it runs where it would have run if it had been scheduled at once."""
        heapq.heappush(self._queue, call)

    def run_until(self, until_ms: float) -> None:
        """Run all callbacks up to a time."""
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            self.now_ms, _, do = heapq.heappop(queue)
            do()
        self.now_ms = max(self.now_ms, until_ms)
