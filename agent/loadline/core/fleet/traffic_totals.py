"""Running totals of the traffic of a model; an interval is the difference of two totals.

Each planner can therefore choose its intervals, and no report is counted twice or lost between two intervals.
"""

from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.samples import Bins, Histogram, TrafficSample
from loadline.core.vocabulary.status import Total, TrafficCounts

NO_BINS = Bins()
_WRAP: Final = 2**62
"""Modulus of sums, to encode them in 64 bits; differences are exact while they are smaller."""


class RunningMean(Struct, frozen=True):
    """An exact sum and the number of its values.

    With a float sum, one absurd value would make all later ones inaccurate.
    """

    thousandths: int = 0
    count: int = 0

    def plus(self, mean: float, count: int) -> "RunningMean":
        """Return the mean with ``count`` more values of mean ``mean``."""
        return RunningMean(_plus(self.thousandths, thousandths(mean * count)), _plus(self.count, count))

    def minus(self, earlier: "RunningMean") -> "RunningMean":
        """Return the mean of the values added after ``earlier``."""
        return RunningMean(_minus(self.thousandths, earlier.thousandths), _minus(self.count, earlier.count))

    @property
    def value(self) -> float | None:
        """Mean of the values; None without values."""
        return self.thousandths / (1_000 * self.count) if self.count else None

    def status(self) -> Total:
        """Return the number and the sum of the values."""
        return Total(self.count, self.thousandths / 1_000)


NO_MEAN = RunningMean()


class TrafficTotals(Struct, frozen=True):
    """Sums since the start of the agent, or over an interval."""

    observed_ms: int = 0
    """Time covered by reports, in ms; traffic at other times is unknown, not 0."""
    arrivals: int = 0
    completed: int = 0
    """Completed requests, failed ones included; the latter have no output and do not count for ``osl_tokens``."""
    isl_tokens: RunningMean = NO_MEAN
    cached_thousandths: int = 0
    """Prompt tokens of ``isl_tokens`` found in prefix caches, in thousandths of a token."""
    osl_tokens: RunningMean = NO_MEAN
    ttft_ms: RunningMean = NO_MEAN
    itl_ms: RunningMean = NO_MEAN
    isl_bins: Bins = NO_BINS
    osl_bins: Bins = NO_BINS
    ttft_attainment: RunningMean = NO_MEAN
    """Fraction of the completed requests within the TTFT objective, where frontends report it."""
    itl_attainment: RunningMean = NO_MEAN
    both_attainment: RunningMean = NO_MEAN

    def with_report(self, sample: TrafficSample, observed_ms: int) -> "TrafficTotals":
        """Return the totals with one more report and the time that it covers."""
        arrived, done = sample.arrivals, sample.completed
        return TrafficTotals(
            self.observed_ms + observed_ms,
            _plus(self.arrivals, arrived),
            _plus(self.completed, done),
            _with(self.isl_tokens, sample.isl_tokens, arrived),
            _plus(self.cached_thousandths, thousandths(cached_tokens(sample))),
            _with(self.osl_tokens, sample.osl_tokens, done),
            _with(self.ttft_ms, sample.ttft_ms, done),
            _with(self.itl_ms, sample.itl_ms, done),
            _added(self.isl_bins, sample.isl_histogram),
            _added(self.osl_bins, sample.osl_histogram),
            _with_met(self.ttft_attainment, sample.ttft_met, done),
            _with_met(self.itl_attainment, sample.itl_met, done),
            _with_met(self.both_attainment, sample.both_met, done),
        )

    def since(self, earlier: "TrafficTotals") -> "TrafficTotals":
        """Return the totals of the interval since an earlier state."""
        return TrafficTotals(
            self.observed_ms - earlier.observed_ms,
            _minus(self.arrivals, earlier.arrivals),
            _minus(self.completed, earlier.completed),
            self.isl_tokens.minus(earlier.isl_tokens),
            _minus(self.cached_thousandths, earlier.cached_thousandths),
            self.osl_tokens.minus(earlier.osl_tokens),
            self.ttft_ms.minus(earlier.ttft_ms),
            self.itl_ms.minus(earlier.itl_ms),
            _less(self.isl_bins, earlier.isl_bins),
            _less(self.osl_bins, earlier.osl_bins),
            self.ttft_attainment.minus(earlier.ttft_attainment),
            self.itl_attainment.minus(earlier.itl_attainment),
            self.both_attainment.minus(earlier.both_attainment),
        )

    def arrivals_since(self, earlier: "TrafficTotals") -> int:
        """Return the arrivals of the interval since an earlier state."""
        return _minus(self.arrivals, earlier.arrivals)

    @property
    def requests_per_s(self) -> float:
        """Rate of arrivals over the observed time; 0 without observed time."""
        return self.arrivals * 1_000.0 / self.observed_ms if self.observed_ms > 0 else 0.0

    @property
    def kv_hit_rate(self) -> float:
        """Fraction (0..1) of prompt tokens found in prefix caches; 0 if unknown."""
        return hit_rate(self.cached_thousandths, self.isl_tokens.thousandths)

    def status(self) -> TrafficCounts:
        """Return the totals for the status."""
        return TrafficCounts(
            self.arrivals,
            self.completed,
            self.isl_tokens.status(),
            self.osl_tokens.status(),
            self.ttft_ms.status(),
            self.itl_ms.status(),
            self.ttft_attainment.status(),
            self.itl_attainment.status(),
            self.both_attainment.status(),
        )


def thousandths(value: float) -> int:
    """Round to an integer number of thousandths."""
    return round(value * 1_000.0)


def _plus(total: int, more: int) -> int:
    return (total + more) % _WRAP


def _minus(total: int, earlier: int) -> int:
    return (total - earlier) % _WRAP


def cached_tokens(sample: TrafficSample) -> float:
    """Return the prompt tokens of a report found in prefix caches; 0 without a reported hit rate."""
    return (sample.kv_hit_rate or 0.0) * (sample.isl_tokens or 0.0) * sample.arrivals


def hit_rate(cached: float, tokens: float) -> float:
    """Return the ratio of cached to all prompt tokens, within 0..1; 0 without tokens."""
    return min(max(cached / tokens, 0.0), 1.0) if tokens > 0.0 else 0.0


def _with(mean: RunningMean, value: float | None, count: int) -> RunningMean:
    return mean if value is None or count <= 0 else mean.plus(value, count)


def _with_met(mean: RunningMean, met: int | None, completed: int) -> RunningMean:
    return mean if met is None or completed <= 0 else mean.plus(met / completed, completed)


def _added(bins: Bins, more: Histogram | None) -> Bins:
    """Add two histograms. If their bounds differ, return the newer one."""
    if more is None or len(more.counts) != len(more.bounds) + 1:
        return bins
    if bins.bounds != more.bounds:
        return Bins(more.bounds, more.counts)
    return Bins(bins.bounds, tuple(map(_plus, bins.counts, more.counts)))


def _less(bins: Bins, earlier: Bins) -> Bins:
    if not earlier.bounds:
        return bins
    if bins.bounds != earlier.bounds:
        return NO_BINS
    return Bins(bins.bounds, tuple(map(_minus, bins.counts, earlier.counts)))
