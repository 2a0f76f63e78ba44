"""Everything that frontends have reported of a model, summed up: an interval is the difference of two totals.

So each planner has intervals of its own, of any length, and no report is counted twice or lost between two of them.
"""

from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.samples import Histogram, TrafficSample

NO_BINS = Histogram((), ())
_WRAP: Final = 2**62
"""Sums go round here: what is encoded has 64 bits, and a difference is right as long as it is smaller itself."""


class RunningMean(Struct, frozen=True):
    """A sum and how many values it is of.

    The sum is exact: of floats the small ones would be lost beside one that is absurd, for as long as the agent runs.
    """

    thousandths: int = 0
    count: int = 0

    def plus(self, mean: float, count: int) -> "RunningMean":
        """With ``count`` more values of this mean."""
        return RunningMean(_plus(self.thousandths, thousandths(mean * count)), _plus(self.count, count))

    def minus(self, earlier: "RunningMean") -> "RunningMean":
        """Only what came after."""
        return RunningMean(_minus(self.thousandths, earlier.thousandths), _minus(self.count, earlier.count))

    @property
    def value(self) -> float | None:
        """The mean; None of no values."""
        return self.thousandths / (1_000 * self.count) if self.count else None


NO_MEAN = RunningMean()


class TrafficTotals(Struct, frozen=True):
    """Sums since the agent began to listen, or over an interval."""

    observed_ms: int = 0
    """Time in which some frontend was heard: what is not heard is not known, and no time without requests."""
    arrivals: int = 0
    completed: int = 0
    """With what failed: it has no output, which says nothing of how long outputs are."""
    isl_tokens: RunningMean = NO_MEAN
    cached_thousandths: int = 0
    """Of a prompt token, that prefix caches had, of those in ``isl_tokens``."""
    osl_tokens: RunningMean = NO_MEAN
    ttft_ms: RunningMean = NO_MEAN
    itl_ms: RunningMean = NO_MEAN
    isl_bins: Histogram = NO_BINS
    osl_bins: Histogram = NO_BINS

    def with_report(self, sample: TrafficSample, heard_ms: int) -> "TrafficTotals":
        """With one more report, and the time that was heard until then."""
        arrived, done = sample.arrivals, sample.completed
        return TrafficTotals(
            self.observed_ms + heard_ms,
            _plus(self.arrivals, arrived),
            _plus(self.completed, done),
            _with(self.isl_tokens, sample.isl_tokens, arrived),
            _plus(self.cached_thousandths, thousandths(cached_tokens(sample))),
            _with(self.osl_tokens, sample.osl_tokens, done),
            _with(self.ttft_ms, sample.ttft_ms, done),
            _with(self.itl_ms, sample.itl_ms, done),
            _added(self.isl_bins, sample.isl_histogram),
            _added(self.osl_bins, sample.osl_histogram),
        )

    def since(self, earlier: "TrafficTotals") -> "TrafficTotals":
        """What came after an earlier state of the same totals."""
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
        )

    @property
    def requests_per_s(self) -> float:
        """Rate of arrivals over the time that was heard; 0 of none."""
        return self.arrivals * 1_000.0 / self.observed_ms if self.observed_ms > 0 else 0.0

    @property
    def kv_hit_rate(self) -> float:
        """Share (0..1) of the prompt tokens that prefix caches had; 0 where nobody says."""
        return hit_rate(self.cached_thousandths, self.isl_tokens.thousandths)


def thousandths(value: float) -> int:
    """As a whole number of thousandths."""
    return round(value * 1_000.0)


def _plus(total: int, more: int) -> int:
    return (total + more) % _WRAP


def _minus(total: int, earlier: int) -> int:
    return (total - earlier) % _WRAP


def cached_tokens(sample: TrafficSample) -> float:
    """Prompt tokens of the arrivals of a report that prefix caches had. A frontend that says nothing had no hits."""
    return (sample.kv_hit_rate or 0.0) * (sample.isl_tokens or 0.0) * sample.arrivals


def hit_rate(cached: float, tokens: float) -> float:
    """Cached by all prompt tokens; 0 of none."""
    return min(max(cached / tokens, 0.0), 1.0) if tokens > 0.0 else 0.0


def _with(mean: RunningMean, value: float | None, count: int) -> RunningMean:
    return mean if value is None or count <= 0 else mean.plus(value, count)


def _added(bins: Histogram, more: Histogram | None) -> Histogram:
    """Both together. Frontends agree on their bounds, or the newest counts alone."""
    if more is None or len(more.counts) != len(more.bounds) + 1:
        return bins
    if bins.bounds != more.bounds:
        return more
    return Histogram(bins.bounds, tuple(map(_plus, bins.counts, more.counts)))


def _less(bins: Histogram, earlier: Histogram) -> Histogram:
    if not earlier.bounds:
        return bins
    if bins.bounds != earlier.bounds:
        return NO_BINS
    return Histogram(bins.bounds, tuple(map(_minus, bins.counts, earlier.counts)))
