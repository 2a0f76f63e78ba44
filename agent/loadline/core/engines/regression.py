"""Online regression of latency over load, and the load at which latency reaches an SLA.

The rules are those of Dynamo's load planner (1.0): least squares over a window of 5 to 50 samples; if the line does not
rise, the smallest load with a latency below the SLA. In addition, outliers are excluded, such as a first request that
waits for compilation: samples far from the Theil-Sen line, which tolerates up to 29 % of outliers. A sample is one
report, also of an aggregated worker, for which Dynamo takes means over an interval.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import compress
from math import fsum, inf, isfinite
from operator import mul
from typing import Final

import numpy as np
from msgspec import Struct, field

from loadline.core.engines.arrays import FloatArray, Rows

SAMPLES_MIN: Final = 5
SAMPLES_MAX: Final = 50
_OUTLIER_DEVIATIONS: Final = 6.0
"""Median absolute deviations beyond which a sample is an outlier: 4 standard deviations of normal noise."""
_ROUNDING: Final = 1e-9
"""Relative deviation below which samples are exactly on a line and none is an outlier."""


class Line(Struct, frozen=True):
    """Latency (ms) = ``intercept_ms + slope * load``."""

    slope: float
    intercept_ms: float

    def at(self, load: float) -> float:
        """Return the latency at a load, in ms, at least 0."""
        return max(0.0, self.intercept_ms + self.slope * load)


class Regression(Struct):
    """A window of samples and the line through it. The caller chooses the unit of load: tokens or blocks."""

    samples_max: int = SAMPLES_MAX
    loads: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    fitted: Line | None = None
    """Line of the current window; None if there is none or it is not computed yet."""

    def push(self, load: float, latency_ms: float) -> None:
        """Add a sample, unless load or latency is not above 0 and finite."""
        self.extend([(load, latency_ms)])

    def extend(self, samples: Iterable[tuple[float, float]]) -> None:
        """Add samples as ``push``, oldest first."""
        loads, latencies_ms = self.loads, self.latencies_ms
        for load, latency_ms in samples:
            if 0.0 < load < inf and 0.0 < latency_ms < inf:
                loads.append(load)
                latencies_ms.append(latency_ms)
                self.fitted = None
        del loads[: -self.samples_max], latencies_ms[: -self.samples_max]

    def line(self) -> Line | None:
        """Return the least-squares line without outliers; None with fewer than ``SAMPLES_MIN`` samples.

        Equal loads give the mean latency and a slope of 0.
        """
        if self.fitted is None and len(self.loads) >= SAMPLES_MIN:
            self.fitted = _least_squares(*without_outliers(self.loads, self.latencies_ms))
        return self.fitted

    def load_at(self, sla_ms: float) -> float | None:
        """Return the load at which the line reaches the SLA, at least 0; None without a line.

        If the line does not rise: the smallest load with a latency below the SLA, or else the smallest load.
        """
        line = self.line()
        if line is None:
            return None
        if line.slope > 0.0:
            load = (sla_ms - line.intercept_ms) / line.slope
            if isfinite(load):
                return max(0.0, load)
        under = [load for load, latency in zip(self.loads, self.latencies_ms, strict=True) if latency < sla_ms]
        return min(under or self.loads)


def _least_squares(loads: list[float], latencies: list[float]) -> Line:
    """Fit a line by least squares, with exact sums that do not depend on their order."""
    count = len(loads)
    load, latency = fsum(loads) / count, fsum(latencies) / count
    runs = [x - load for x in loads]
    spread = fsum(map(mul, runs, runs))
    if spread == 0.0:
        return Line(0.0, latency)
    slope = fsum(map(mul, runs, [y - latency for y in latencies])) / spread
    return Line(slope, latency - slope * load)


def without_outliers(loads: list[float], latencies: list[float]) -> tuple[list[float], list[float]]:
    """Return the samples near the Theil-Sen line, from at most ``SAMPLES_MAX`` samples."""
    slope, intercept_ms = _theil_sen(np.asarray(loads, np.float64), np.asarray(latencies, np.float64))
    deviations = [abs(y - (slope * x + intercept_ms)) for x, y in zip(loads, latencies, strict=True)]
    median = sorted(deviations)[(len(deviations) - 1) // 2]
    limit = max(_OUTLIER_DEVIATIONS * median, _ROUNDING * max(latencies))
    near = [deviation <= limit for deviation in deviations]
    return list(compress(loads, near)), list(compress(latencies, near))


def _theil_sen(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return the median slope of all pairs of samples, and the median intercept."""
    first, second = _pairs(len(x))
    runs, rises = x.take(second), y.take(second)
    runs -= x.take(first)
    rises -= y.take(first)
    if not runs.all():  # samples of the same load have no slope
        apart = runs != 0.0
        runs, rises = runs[apart], rises[apart]
    rises /= runs
    slope = _median(rises) if len(rises) else 0.0
    return slope, _median(y - slope * x)


@lru_cache(SAMPLES_MAX)
def _pairs(count: int) -> tuple[Rows, Rows]:
    return np.triu_indices(count, 1)


def _median(values: FloatArray) -> float:
    """Return the lower median. Reorders ``values``."""
    middle = (len(values) - 1) // 2
    values.partition(middle)
    return float(values[middle])
