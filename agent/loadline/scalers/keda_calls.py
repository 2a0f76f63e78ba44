"""Calls of KEDA by pool: they tell why a count that nobody asks for is not applied."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SILENT_S: Final = 120.0
"""Time without a call after which KEDA does not follow a pool. It asks every 15 s, at zero replicas every 30 s."""


class KedaCalls:
    """Times of the last calls, and open streams.

    Args:
        now: Monotonic time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since_s = now()
        self._last_s: dict[tuple[str, str], float] = {}
        self._streams: Counter[tuple[str, str]] = Counter()

    def record(self, model: str, pool: str) -> None:
        """Record a call for a pool, which must exist: callers choose the names."""
        self._last_s[model, pool] = self._now()

    @contextmanager
    def streaming(self, model: str, pool: str) -> Iterator[None]:
        """Count a stream for a pool while it is open."""
        self._streams[model, pool] += 1
        try:
            yield
        finally:
            self._streams[model, pool] -= 1
            if not self._streams[model, pool]:
                del self._streams[model, pool]
            if (model, pool) in self._last_s:
                self.record(model, pool)

    def obstacle(self, model: str, pool: str) -> str:
        """Return why KEDA does not apply the count of a pool; empty: it asks for it, or has time to begin."""
        silent_s = self._now() - self._last_s.get((model, pool), self._since_s)
        if self._streams[model, pool] or silent_s < SILENT_S:
            return ""
        remedy = "Compare the metadata of its ScaledObject, and see the log of KEDA's operator"
        return f"KEDA has not asked for its count for {SILENT_S:.0f} s or longer. {remedy}"
