"""How long workers take to come after they were asked for, learned from those that came."""

from typing import Final

from msgspec import Struct, field

from loadline.core.belief.pool import Pool

KEPT: Final = 8
"""Times that are remembered; the longest of them is planned with."""


class StartUps(Struct):
    """The last few times from a decision until all of its workers were ready."""

    times_ms: list[int] = field(default_factory=list)
    filled_ms: dict[str, int] = field(default_factory=dict)
    """Pool -> the last such moment that was noted."""

    def note(self, pool: Pool) -> None:
        """See whether the workers that were last asked for have come."""
        filled_ms = pool.filled_at_ms
        if filled_ms < 0 or filled_ms == self.filled_ms.get(pool.name) or filled_ms < pool.grown_at_ms:
            return
        self.filled_ms[pool.name] = filled_ms
        self.times_ms.append(filled_ms - pool.grown_at_ms)
        del self.times_ms[:-KEPT]

    def longest(self, default_ms: int) -> int:
        """The longest of them, in ms; the default before the first."""
        return max(self.times_ms, default=default_ms)
