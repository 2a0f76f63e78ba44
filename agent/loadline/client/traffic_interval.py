"""Counts of a frontend over one interval, and the sample made from them. Pure."""

import math
from typing import Final

from loadline.core.vocabulary.samples import Histogram, TrafficSample
from loadline.core.vocabulary.scalars import LENGTH_MIN, TOKENS_MAX

# Bounds are powers of two, 1 to 1,048,576 tokens: the longest context windows in service fit.
_POWERS: Final = 21
LENGTH_BOUNDS: Final = tuple(float(2**power) for power in range(_POWERS))
"""Upper bounds of the ISL and OSL histograms, in tokens; the last count is for longer ones."""

_INTERVAL_MS_MAX: Final = 3_600_000
_MEASURE_MAX: Final = 1e12
"""Largest latency of the protocol, in ms. A mean outside its limits would have the whole report refused."""


class _Mean:
    """Running mean that ignores values that are absent, negative or not finite, and stays within the protocol."""

    __slots__ = ("_count", "_total")

    def __init__(self) -> None:
        self._total = 0.0
        self._count = 0

    def add(self, value: float | None) -> None:
        if value is not None and math.isfinite(value) and value >= 0:
            # float(): a number of NumPy would make the sum one, which cannot be sent.
            self._total += min(float(value), _MEASURE_MAX)
            self._count += 1

    def value(self) -> float | None:
        if not self._count:
            return None
        mean = self._total / self._count
        return mean if mean >= LENGTH_MIN else 0.0


class _Lengths:
    """Mean and histogram of lengths in tokens."""

    __slots__ = ("_counts", "_mean")

    def __init__(self) -> None:
        self._mean = _Mean()
        self._counts = [0] * (_POWERS + 1)

    def add(self, tokens: int) -> None:
        self._mean.add(min(tokens, TOKENS_MAX))
        self._counts[min(max(tokens - 1, 0).bit_length(), _POWERS)] += 1

    def mean(self) -> float | None:
        return self._mean.value()

    def histogram(self) -> Histogram:
        return Histogram(LENGTH_BOUNDS, tuple(self._counts))


class _CacheHits:
    """Fraction of prompt tokens found in a prefix cache; None before the first lookup."""

    __slots__ = ("_cached", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0
        self._cached = 0

    def add(self, tokens: int, cached: int) -> None:
        self._tokens += max(tokens, 0)
        self._cached += min(max(cached, 0), max(tokens, 0))

    def rate(self) -> float | None:
        return self._cached / self._tokens if self._tokens else None


class _MetCount:
    """Number of requests that met an objective; None while it is unknown for all of them."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: int | None = None

    def add(self, *, met: bool | None) -> None:
        if met is not None:
            self.count = (self.count or 0) + bool(met)


class TrafficInterval:
    """Counts since the last report."""

    __slots__ = (
        "_arrivals",
        "_both_met",
        "_completed",
        "_hits",
        "_isl",
        "_itl",
        "_itl_met",
        "_osl",
        "_ttft",
        "_ttft_met",
    )

    def __init__(self) -> None:
        self._arrivals = 0
        self._completed = 0
        self._isl = _Lengths()
        self._hits = _CacheHits()
        self._osl = _Lengths()
        self._ttft = _Mean()
        self._itl = _Mean()
        self._ttft_met = _MetCount()
        self._itl_met = _MetCount()
        self._both_met = _MetCount()

    def arrived(self, isl_tokens: int) -> None:
        """Count an arrival."""
        self._isl.add(int(isl_tokens))
        self._arrivals += 1

    def looked_up(self, isl_tokens: int, cached_tokens: int) -> None:
        """Count a lookup in the prefix cache of a worker."""
        self._hits.add(int(isl_tokens), int(cached_tokens))

    def finished(
        self,
        osl_tokens: int,
        ttft_ms: float | None,
        itl_ms: float | None,
        *,
        ttft_met: bool | None,
        itl_met: bool | None,
    ) -> None:
        """Count a finished request; None means unknown."""
        self._osl.add(int(osl_tokens))
        self._completed += 1
        self._ttft.add(ttft_ms)
        self._itl.add(itl_ms)
        self._ttft_met.add(met=ttft_met)
        self._itl_met.add(met=itl_met)
        self._both_met.add(met=None if ttft_met is None or itl_met is None else ttft_met and itl_met)

    def sample(self, sequence: int, elapsed_ms: int, *, queued: int, in_flight: int) -> TrafficSample:
        """Return the sample of the interval, with the requests that the frontend holds at its end."""
        return TrafficSample(
            sequence=sequence,
            interval_ms=min(max(elapsed_ms, 1), _INTERVAL_MS_MAX),
            arrivals=self._arrivals,
            completed=self._completed,
            queued=_held(queued),
            in_flight=_held(in_flight),
            isl_tokens=self._isl.mean(),
            kv_hit_rate=self._hits.rate(),
            osl_tokens=self._osl.mean(),
            ttft_ms=self._ttft.value(),
            itl_ms=self._itl.value(),
            ttft_met=self._ttft_met.count,
            itl_met=self._itl_met.count,
            both_met=self._both_met.count,
            isl_histogram=self._isl.histogram(),
            osl_histogram=self._osl.histogram(),
        )


def _held(requests: int) -> int:
    """Return a number of requests as an integer of Python; what is no whole number is refused later, and logged."""
    try:
        whole = max(int(requests), 0)
    except (OverflowError, TypeError, ValueError):
        return requests
    return whole if whole == max(requests, 0) else requests
