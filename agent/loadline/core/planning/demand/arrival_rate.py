"""Arrival rate of a model, forecast over the start-up time of a worker.

The forecast reacts within a second to a change beyond chance, unless it is a rise like others that have ended soon, and
extrapolates only a rise that has lasted: it must show in each of the last two lead times, or clearly in each half of
the last one, and within the latest of these about as much as within the one before. A step shows within one of them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import inf, sqrt
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.demand.bursts import Bursts, Rise

_SECONDS_MAX: Final = 400
"""Samples kept; three lead times of two minutes."""
_SPREAD_SAMPLES: Final = 120
_SPREAD_MIN: Final = 10
"""Differences from which on the spread of the arrivals is estimated; before, they count as a Poisson process."""
_SPREAD_MAX: Final = 30.0
_BEFORE: Final = 30
"""Samples that a window is compared with."""
_CHANGE_WINDOWS: Final = ((1, 6.0), (2, 5.0), (4, 4.5), (8, 4.5))
"""Samples of a window, and the standard errors from which on its difference is a change."""
_CHANGE_MIN: Final = 0.15
"""Smallest relative change."""
_UNEVEN: Final = 3.0
"""Ratio of the rises of two windows from which on they are a step in one of them."""
_STILL: Final = 0.25
"""Part of the rise of a window that its second half shows if it goes on."""
_FADING: Final = 0.35
"""Part of the rise within the window before that the last one shows if it goes on: after a step it shows chance. With
0.5, chance is a rise in 0.6 % instead of 1.5 % of the seconds after a step from 5/s to 20/s, but rises that slow down
are seen later."""
_CHANCE: Final = 1.5
_CHANCE_OF_CHANGE: Final = 2.5
"""Standard errors of the level that are chance, and of one that has just changed."""
_CHANGE_ARRIVALS: Final = 100
"""Arrivals that confirm a change: of fewer, normal errors underrate the rare bursts of a Poisson process."""
_LEAD_MIN_MS: Final = 20_000
_WINDOW_MIN_MS: Final = 30_000
"""Window of a likely rise for shorter lead times: extrapolations of shorter windows are mostly chance."""
_CHANCE_OF_RISE: Final = 4.0
"""Standard errors by which a window is higher than the one before it in a likely rise. With 2.0, chance keeps workers
after most steps, since each second of the hold counts: 3 % more GPU-hours. With 5.5, a ramp is seen too late."""


class _RiseTest(Struct, frozen=True):
    """Conditions under which three windows in a row show a rise, and neither a step nor chance."""

    errors: float
    """Standard errors of a window, by which each is higher than the one before it."""
    errors_within: float
    """The same from the first half of the last window to its second one."""
    ratio_max: float
    """Ratio of the last window to the first one, from which on it is a step. A step is in all windows after it."""


_LEAD: Final = _RiseTest(1.5, 0.0, inf)
_HALF_LEAD: Final = _RiseTest(3.0, 3.0, 3.0)
"""Tests of windows of a lead time, and of half of it, which are noisier and show the half of a step more often."""


class ArrivalRate(Struct, dict=True):
    """Arrivals per sample of about a second, with the last change of their rate.

    A plan asks for the same levels and spread several times, so they are kept until the next sample, and running sums
    give 20 means a second. They are no fields: a snapshot does not have them.
    """

    at_ms: list[int] = field(default_factory=list)
    observed_ms: list[int] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    unchanged: int = 0
    """Number of latest samples since the last change of the rate."""
    spreads: list[float] = field(default_factory=list)
    """Squared differences of successive rates, relative to their sum: 1 on average for Poisson arrivals."""
    bursts: Bursts = field(default_factory=Bursts)
    rise: Rise | None = None
    """Rise that may be a burst, and is not in the level yet; None if there is none."""

    def add(self, interval: TrafficTotals, lead_ms: int, cost_of_miss: float, now: int) -> None:
        """Add the traffic since the last sample; without observed time it is ignored.

        Args:
            interval: The traffic.
            lead_ms: Time in ms until a worker requested now is ready, for which a rise must last to count.
            cost_of_miss: Cost of a late request in requests, by which frequent bursts count nevertheless.
            now: Unix time in ms.
        """
        if interval.observed_ms <= 0:
            return
        self._forget_derived()
        rate = interval.requests_per_s
        if self.at_ms:
            before = self.arrivals[-1] * 1_000.0 / self.observed_ms[-1]
            self.spreads.append((rate - before) ** 2 / max(0.5, rate + before))
            del self.spreads[:-_SPREAD_SAMPLES]
        observed_sums, arrival_sums = self._sums
        self.at_ms.append(now)
        self.observed_ms.append(interval.observed_ms)
        self.arrivals.append(interval.arrivals)
        observed_sums.append(observed_sums[-1] + interval.observed_ms)
        arrival_sums.append(arrival_sums[-1] + interval.arrivals)
        if len(self.at_ms) > _SECONDS_MAX:
            for values in (self.at_ms, self.observed_ms, self.arrivals, observed_sums, arrival_sums):
                del values[0]
        self.unchanged = min(self.unchanged + 1, len(self.at_ms))
        self.bursts.update(self._mean_since, now)
        if self.rise is None:
            self._detect_change()
        elif self.rise not in self.bursts.rises:  # it was a burst
            ended = self.bursts.ended[-1]
            self._start_anew(ended.began_ms + ended.duration_ms, ended.began_ms)
            self.rise = None
        if self.rise is not None and self.bursts.provides_for(self.rise, lead_ms, cost_of_miss, now):
            self._start_anew(self.rise.began_ms, self.rise.began_ms)
            self.rise = None

    def forecast(self, lead_ms: int, samples: int, now: int) -> float:
        """Return the only one of ``forecasts``."""
        return self.forecasts(lead_ms, (samples,), now)[0]

    def forecasts(self, lead_ms: int, samples: Sequence[int], now: int) -> list[float]:
        """Return the rates (1/s) to provide for in ``lead_ms``: level, rise, and half a standard error; 0 if unknown.

        Args:
            lead_ms: Time from now in ms.
            samples: For each rate, the largest number of samples that its level is the mean of.
            now: Unix time in ms.
        """
        if not self.unchanged:
            return [0.0] * len(samples)
        spread, window_ms = self._present_spread, max(lead_ms, _LEAD_MIN_MS)
        rise, found = self._rise(window_ms, spread, now), []
        for count in samples:
            level, seconds = self._credible_level(count)
            risen = rise * (lead_ms + seconds * 500.0) / window_ms
            found.append(level + risen + 0.5 * sqrt(level * spread / seconds))
        return found

    def observed(self, from_ms: int, until_ms: int) -> float | None:
        """Return the rate (1/s) from one time to another; None if less than half of the time was observed."""
        start, end = (bisect_right(self.at_ms, at_ms) for at_ms in (from_ms, until_ms))
        rate, seconds = self._mean(start, end)
        return rate if 2_000.0 * seconds >= until_ms - from_ms else None

    def error(self, samples: int) -> float:
        """Return the standard error of the level over up to so many samples, relative to it; 0 if unknown."""
        level, seconds = self._level(samples)
        return sqrt(self._present_spread / (level * seconds)) if level else 0.0

    def likely_growth(self, lead_ms: int, samples: int, now: int) -> float:
        """Return the ratio of the arrivals in ``lead_ms`` to their level, if they go on to rise; 1 if they do not rise.

        Unlike a forecast, it asks for a rise in two windows only, which a step may show, too: enough to keep a worker.
        Nothing before the last change of the rate counts: a ramp after a fall is seen before the windows are past it.

        Args:
            lead_ms: Time from now in ms.
            samples: Largest number of samples that the level is the mean of.
            now: Unix time in ms.
        """
        level, seconds = self._level(samples)
        observed_sums, _ = self._sums
        unchanged_ms = observed_sums[-1] - observed_sums[-1 - self.unchanged]
        window_ms = min(max(lead_ms, _WINDOW_MIN_MS), unchanged_ms // 2)
        if not level or window_ms < _LEAD_MIN_MS:
            return 1.0
        rise = self._rise_within(now, 2 * window_ms)
        chance = _CHANCE_OF_RISE * sqrt(2.0 * level * self._present_spread * 1_000.0 / window_ms)
        if rise <= chance or self._rise_within(now, window_ms) <= _STILL * rise:
            return 1.0
        return 1.0 + rise * (lead_ms + seconds * 500.0) / window_ms / level

    def certain(self, samples: int) -> float:
        """Return the part of a forecast by up to so many samples that is not chance, for Poisson arrivals."""
        level, seconds = self._level(samples)
        return 1.0 if self._is_doubtful(samples) else _certain(level * seconds, _CHANCE)

    def _is_doubtful(self, samples: int) -> bool:
        """Return True if the level has changed within so many samples, by few arrivals: some changes are chance."""
        count = min(samples, self.unchanged)
        return count < samples and sum(self.arrivals[-count:]) < _CHANGE_ARRIVALS

    @cached_property
    def _sums(self) -> tuple[list[int], list[int]]:
        """Observed ms and arrivals before each sample and after the last one, from any start."""
        return list(accumulate(self.observed_ms, initial=0)), list(accumulate(self.arrivals, initial=0))

    @cached_property
    def _levels(self) -> dict[int, tuple[float, float]]:
        return {}

    @cached_property
    def _credible_levels(self) -> dict[int, tuple[float, float]]:
        return {}

    @cached_property
    def _present_spread(self) -> float:
        return self._spread(0)

    def _level(self, samples: int) -> tuple[float, float]:
        """Return the rate over up to so many samples since the last change, and the observed seconds."""
        end = len(self.at_ms) if self.rise is None else bisect_right(self.at_ms, self.rise.began_ms)
        count = max(1, min(samples, self.unchanged - (len(self.at_ms) - end)))
        found = self._levels.get(count)
        if found is None:
            found = self._levels[count] = self._mean(end - count, end)
        return found

    def _credible_level(self, samples: int) -> tuple[float, float]:
        """Return the level, of which a rise by few arrivals counts only as far as it is not chance."""
        found = self._credible_levels.get(samples)
        if found is None:
            found = self._credible_levels[samples] = self._without_chance(samples)
        return found

    def _without_chance(self, samples: int) -> tuple[float, float]:
        level, seconds = self._level(samples)
        if self._is_doubtful(samples):
            overall, _ = self._mean(max(0, len(self.at_ms) - samples), len(self.at_ms))
            level = min(level, max(overall, level * _certain(level * seconds, _CHANCE_OF_CHANGE)))
        return level, seconds

    def _mean(self, start: int, end: int) -> tuple[float, float]:
        """Return the rate over the samples ``[start, end)``, and the observed seconds."""
        if not 0 <= start < end:
            return 0.0, 0.0
        observed_sums, arrival_sums = self._sums
        observed = observed_sums[end] - observed_sums[start]
        return (arrival_sums[end] - arrival_sums[start]) * 1_000.0 / observed, observed / 1_000.0

    def _spread(self, latest: int) -> float:
        """Return the variance of the arrivals relative to a Poisson process, without the ``latest`` differences."""
        spreads = self.spreads[: len(self.spreads) - latest]
        if len(spreads) < _SPREAD_MIN:
            return 1.0
        return max(1.0, min(_SPREAD_MAX, sum(spreads) / len(spreads)))

    def _detect_change(self) -> None:
        """Find the shortest window whose rate differs from that before it, and start anew with it."""
        end = len(self.at_ms)
        for window, errors in _CHANGE_WINDOWS:
            if self.unchanged < window + 3:
                return
            rate, seconds = self._mean(end - window, end)
            base, before_s = self._mean(max(end - self.unchanged, end - window - _BEFORE), end - window)
            if abs(rate - base) <= _CHANGE_MIN * base:
                continue
            error = sqrt(max(base, 1.0) * self._spread(window) * (1.0 / seconds + 1.0 / before_s))
            if abs(rate - base) <= errors * error:
                continue
            if rate < base:
                self._start_anew(self.at_ms[end - window - 1], self.at_ms[end - window - 1])
            else:
                certain = rate * _certain(rate * seconds, _CHANCE)  # the first seconds of a rise are the highest
                self.rise = Rise(self.at_ms[end - window - 1], (max(certain, base) + base) / 2.0)
                self.bursts.begin(self.rise)
            return

    def _start_anew(self, level_ms: int, spread_ms: int) -> None:
        """Let the level begin after a time, and forget how the arrivals have varied since another one."""
        self._forget_derived()
        self.unchanged = max(1, len(self.at_ms) - bisect_right(self.at_ms, level_ms))
        del self.spreads[-(len(self.at_ms) - bisect_right(self.at_ms, spread_ms)) - 1 :]

    def _forget_derived(self) -> None:
        """Forget what follows from the samples, except for their sums."""
        sums = self._sums
        self.__dict__.clear()
        self._sums = sums

    def _mean_since(self, from_ms: int) -> float:
        """Return the rate (1/s) since a time."""
        return self._mean(bisect_right(self.at_ms, from_ms), len(self.at_ms))[0]

    def _rise(self, window_ms: int, spread: float, now: int) -> float:
        """Return the rise (1/s) per window that the last two windows show, or clearly the last two halves; else 0."""
        whole = self._lasting_rise(window_ms, _LEAD, spread, now)
        return max(whole, 2.0 * self._lasting_rise(window_ms // 2, _HALF_LEAD, spread, now))

    def _lasting_rise(self, window_ms: int, test: _RiseTest, spread: float, now: int) -> float:
        """Return the rise (1/s) per window that the last two windows and the latest halves show; 0 if there is none."""
        starts = [bisect_right(self.at_ms, now - k * window_ms) for k in (3, 2, 1, 0)]
        second, second_s = self._mean(starts[1], starts[2])
        last, last_s = self._mean(starts[2], starts[3])
        if min(second_s, last_s) < 0.8 * window_ms / 1_000.0:
            return 0.0
        error = sqrt(2.0 * max(last, 1.0) * spread / last_s)
        noise = test.errors * error
        if last - second <= noise:
            return 0.0  # as nearly always
        first, first_s = self._mean(starts[0], starts[1])
        rise, most = sorted((last - second, second - first))
        within, before = (self._rise_within(now - k * window_ms, window_ms) for k in (0, 1))
        known = first_s >= 0.8 * window_ms / 1_000.0 and last < test.ratio_max * first
        still = max(_STILL * rise, _FADING * before, test.errors_within * error)
        lasts = known and rise > noise and most < _UNEVEN * rise and within > still
        return rise if lasts else 0.0

    def _rise_within(self, until_ms: int, window_ms: int) -> float:
        """Return the rise (1/s) from the first half of a window to its second one."""
        start, half, end = (bisect_right(self.at_ms, until_ms - k * window_ms // 2) for k in (2, 1, 0))
        return self._mean(half, end)[0] - self._mean(start, half)[0]


def _certain(arrivals: float, errors: float) -> float:
    """Return the part of some arrivals that so many standard errors leave."""
    return max(0.0, 1.0 - errors / sqrt(arrivals)) if arrivals else 1.0
