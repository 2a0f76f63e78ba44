"""Lulls of a load that are too short for its workers to serve another load meanwhile.

A worker that moves to another pool serves there after an exchange: the time until it counts as unneeded, and the
start-up of the one that takes its place. When the lull ends, the way back takes as long. Two models whose loads
alternate each 90 s, on GPUs for their mean load, had 33 % of the requests in time with exchanges of 55 s, and have 90 %
with fixed workers. Waves of five minutes a half have 92 % with exchanges, and 83 % without.
"""

from math import sqrt
from typing import Final

from msgspec import Struct

from loadline.core.planning.demand.arrival_rate import ArrivalRate

_RATE_S: Final = 15
"""Time over which the rate is averaged."""
_CHANCE: Final = 4.0
"""Standard errors of the peak, for Poisson arrivals, by which a lull is below it: few arrivals vary like waves."""
_DEEP: Final = 2.0 / 3.0
"""Part of the peak at which a lull begins."""
_RISEN: Final = 0.8
"""Part of the peak that the load had before it, if it is seen to rise."""
_EXCHANGES: Final = 3
"""Exchanges that a lull must outlast to be worth them. Two models on 12 GPUs, waves of 120 and 200 s a half, exchanges
of 55 s: with 2, 46 and 69 % of the requests are in time, with 3, 62 and 68 %; with 4, waves of 300 s have 88 instead of
91 %."""


class LoadLulls(Struct):
    """Peak of a load, and the present and the last lull below it."""

    peak_per_s: float = 0.0
    """Highest rate since the last lull."""
    lowest_per_s: float = 0.0
    """Lowest rate of the present lull."""
    since_ms: int = -1
    """Unix ms at which the present lull began; -1: there is none."""
    short_ms: int = 0
    """Length of the last lull if it was too short for exchanges; 0: it was not."""
    risen_from_per_s: float = 0.0
    """Lowest rate before the peak; 0: no rate was observed."""

    def update(self, arrivals: ArrivalRate, start_up_ms: int, unneeded_ms: int, now: int) -> None:
        """Begin or end a lull by the present rate, unless that is not observed.

        Args:
            arrivals: Arrivals of the load.
            start_up_ms: Time until a new worker is ready.
            unneeded_ms: Time without need after which a worker may go elsewhere.
            now: Unix time in ms.
        """
        rate = arrivals.observed(now - 1_000 * _RATE_S, now)
        if rate is None:
            return
        if self.since_ms < 0:
            self.peak_per_s, self.risen_from_per_s = max(self.peak_per_s, rate), self.risen_from_per_s or rate
            chance = _CHANCE * sqrt(self.peak_per_s / _RATE_S)
            if rate <= min(_DEEP * self.peak_per_s, self.peak_per_s - chance) < self.peak_per_s:
                self.since_ms, self.lowest_per_s = now, rate
            return
        self.lowest_per_s = min(self.lowest_per_s, rate)
        lasted_ms, longest_ms = now - self.since_ms, _EXCHANGES * (start_up_ms + unneeded_ms)
        if lasted_ms > longest_ms:
            self._begin_anew(rate, 0, rate)
        elif rate > (self.lowest_per_s + self.peak_per_s) / 2.0:
            # A lull of half a start-up is chance, and no worker is exchanged for it.
            is_lull = 2 * lasted_ms > start_up_ms and (self._is_peak_known or 2 * lasted_ms <= longest_ms)
            self._begin_anew(rate, lasted_ms if is_lull else self.short_ms, self.lowest_per_s)

    @property
    def _is_peak_known(self) -> bool:
        """Return True if the load was seen to rise to the peak.

        Otherwise a lull may be twice as long as it looks, as a wave that is observed from its middle has a lower peak:
        of waves of 300 s a half it was 184 s, which cost 9 % of the requests in 15 min.
        """
        return self.risen_from_per_s <= _RISEN * self.peak_per_s

    def _begin_anew(self, rate: float, short_ms: int, risen_from_per_s: float) -> None:
        self.peak_per_s, self.since_ms, self.short_ms = rate, -1, short_ms
        self.risen_from_per_s = risen_from_per_s
