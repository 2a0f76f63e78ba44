"""Latency lines of an engine, learned online from its iterations.

A window of the latest samples does not determine a line while the load hardly changes. The latest samples of each
octave of load are therefore kept for an hour. A line that differs greatly from the previous one is adopted only after
several fits in a row: engines seldom change by a factor of two, but reports may be misleading for a while.
"""

from typing import Final

from msgspec import Struct, field

from loadline.core.engines.fitting import LATENCY_MIN_MS, Fit, FitRefused, fit_line
from loadline.core.engines.regression import SAMPLES_MIN, Line, without_outliers

_SAMPLES_PER_OCTAVE: Final = 5
"""Samples kept per octave of load; ten octaves hold as many as ``regression.SAMPLES_MAX``."""
_SAMPLE_AGE_MAX_MS: Final = 3_600_000
"""Age after which a sample is discarded, since the engine may have changed."""
_DOUBTED_RATIO: Final = 2.0
"""Ratio of times between two lines above which the new one is doubted."""
_DOUBTED_FITS: Final = 5
"""Consecutive fits after which a doubted line is adopted."""
_SAME_LINE_TOLERANCE: Final = 0.02
"""Relative difference below which the previous line is kept, to keep results derived from it."""

Sample = tuple[int, float, float]
"""Time in ms, load, and latency in ms."""


class LearnedLine(Struct):
    """Samples, and the last adopted line through them."""

    octaves: dict[int, list[Sample]] = field(default_factory=dict)
    line: Line | None = None
    doubts: int = 0
    problem: str = f"0 samples are too few: wait for {SAMPLES_MIN}"
    """Reason why the last fit was not adopted; empty: it was."""

    def push(self, now: int, load: float, latency_ms: float) -> None:
        """Add a sample, unless its load is below 1, its latency below ``LATENCY_MIN_MS``, or either is infinite."""
        if 1.0 <= load < float("inf") and LATENCY_MIN_MS <= latency_ms < float("inf"):
            octave = self.octaves.setdefault(int(load).bit_length(), [])
            octave.append((now, float(load), float(latency_ms)))
            del octave[:-_SAMPLES_PER_OCTAVE]

    def refit(self, now: int) -> None:
        """Fit the line again, without samples that are too old; if the fit is refused, the last line is kept."""
        for number, octave in list(self.octaves.items()):
            recent = [sample for sample in octave if now - sample[0] <= _SAMPLE_AGE_MAX_MS]
            if recent:
                self.octaves[number] = recent
            else:
                del self.octaves[number]
        samples = [sample for _, octave in sorted(self.octaves.items()) for sample in octave]
        found = _fit(samples)
        self.problem = found.problem if isinstance(found, FitRefused) else self._adopt(found, samples)

    def _adopt(self, found: Fit, samples: list[Sample]) -> str:
        """Adopt a fitted line unless it is doubted; return the problem, or an empty text."""
        loads = [load for _, load, _ in samples]
        ratio = (
            _largest_ratio(found.line, self.line, (min(loads), max(loads))) if self.line is not None else _DOUBTED_RATIO
        )
        doubted = self.line is not None and ratio > _DOUBTED_RATIO
        self.doubts = self.doubts + 1 if doubted else 0
        if doubted and self.doubts < _DOUBTED_FITS:
            return (
                f"times differ from the last line by a factor of up to {ratio:.1f}:"
                f" fit {self.doubts} of {_DOUBTED_FITS}"
            )
        self.doubts = 0
        if ratio > 1.0 + _SAME_LINE_TOLERANCE:
            self.line = found.line
        return ""


def _fit(samples: list[Sample]) -> Fit | FitRefused:
    if len(samples) < SAMPLES_MIN:
        return FitRefused(f"{len(samples)} samples are too few: wait for {SAMPLES_MIN}")
    return fit_line(*without_outliers([load for _, load, _ in samples], [latency for _, _, latency in samples]))


def _largest_ratio(one: Line, other: Line, loads: tuple[float, float]) -> float:
    """Return the largest ratio between the times of two lines over a range of loads."""
    pairs = [(one.at(load), other.at(load)) for load in loads]
    return max(max(pair) / max(min(pair), 1e-9) for pair in pairs)
