"""Bursts: rises of the arrivals that end before a worker requested for them is ready.

Some traffic is steady but for these: the multimodal requests that ServeGen describes come four times as fast for some
seconds, 18 times an hour. A worker that is requested then serves nothing of the burst. It serves the next one if the
pool keeps it, which costs more than it saves where bursts are rare, so a rise counts once it lasts longer than these.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

_KEPT: Final = 32
"""Rises that are remembered."""
_OPEN_MAX: Final = 8
_LASTING_MS: Final = 400_000
"""Age from which on a rise is no burst, whatever the start-up time."""
_MEAN_MS: Final = (10_000, 60_000)
_MEAN_ARRIVALS: Final = 100.0
"""Shortest and longest time whose mean tells whether a rise has ended, and the arrivals that it should hold: a rise of
few arrivals would seem to end by chance."""
_WAIT_MAX_MS: Final = 15_000
"""Age from which on each rise counts: a step after many bursts must not wait for as long as a start-up takes."""
_SIMILAR: Final = 0.5
"""Part of the rate of a rise that others must have had to be compared with it."""
_LASTING_SHARE: Final = 0.25
"""Least part of the rises that have lasted, from which on another is expected to."""
_LATE_SHARE: Final = 0.5
"""Part of a burst that is late without workers for it: a queue of less than the TTFT objective takes the rest."""


class Rise(Struct, frozen=True):
    """A rise of the arrivals."""

    began_ms: int
    half_per_s: float
    """Requests/s halfway from those before it to those that it has at least: it has ended when they are below."""


class EndedRise(Struct, frozen=True, array_like=True):
    """A rise that has ended, or has lasted so long that it is no burst."""

    began_ms: int
    half_per_s: float
    age_ms: int
    """Its age when it was known to have ended."""
    duration_ms: int


class Bursts(Struct):
    """The latest rises, and how long they lasted."""

    ended: list[EndedRise] = field(default_factory=list)
    rises: list[Rise] = field(default_factory=list)
    """Rises that have not ended."""

    def begin(self, rise: Rise) -> None:
        """Add a rise."""
        self.rises.append(rise)
        del self.rises[:-_OPEN_MAX]

    def update(self, mean_since: Callable[[int], float], now: int) -> None:
        """End the rises that are over.

        A mean falls below half of a rise once half of its time is after it.

        Args:
            mean_since: Function from a time to the mean of the arrivals since then, in requests/s.
            now: Unix time in ms.
        """
        lasting = []
        for rise in self.rises:
            age_ms, (least_ms, most_ms) = now - rise.began_ms, _MEAN_MS
            enough_ms = round(1_000.0 * _MEAN_ARRIVALS / max(rise.half_per_s, 1.0))
            mean_ms = min(age_ms, most_ms, max(least_ms, enough_ms))
            if age_ms >= _LASTING_MS or mean_since(now - mean_ms) < rise.half_per_s:
                self.ended.append(EndedRise(rise.began_ms, rise.half_per_s, age_ms, age_ms - mean_ms // 2))
            else:
                lasting.append(rise)
        del self.ended[:-_KEPT]
        self.rises = lasting

    def provides_for(self, rise: Rise, lead_ms: int, cost_of_miss: float, now: int) -> bool:
        """Return True if to request workers for a rise: it is expected to last, or bursts are worth keeping workers.

        Workers that only serve bursts are idle between them. They save ``cost_of_miss`` requests for each one that is
        late without them, which is about half of a burst, so they are worth it if bursts take more than a part ``2 /
        cost_of_miss`` of the time.

        Args:
            rise: A rise that has not ended.
            lead_ms: Time in ms until a worker requested now is ready.
            cost_of_miss: Cost of a late request in requests.
            now: Unix time in ms.
        """
        age_ms = now - rise.began_ms
        similar = [one for one in self.ended if one.half_per_s >= _SIMILAR * rise.half_per_s]
        older = [one for one in similar if one.age_ms > age_ms]
        lasted = sum(one.age_ms >= min(_LASTING_MS, age_ms + lead_ms) for one in older)
        if age_ms >= _WAIT_MAX_MS or 1 + lasted >= _LASTING_SHARE * (1 + len(older)):
            return True
        burst_ms = sum(one.duration_ms for one in similar if one.age_ms < lead_ms)
        return _LATE_SHARE * cost_of_miss * burst_ms > now - similar[0].began_ms
