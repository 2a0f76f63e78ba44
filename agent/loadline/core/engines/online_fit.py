"""The two lines of an engine, learned from its iterations as they happen: of decode by batch, of prefill by tokens.

A load that hardly changes says nothing of a line, and a window of the last samples knows no other. So the last few
samples of each octave of load are kept, for an hour. A line that is far from the one before is believed when it is
found again and again: engines seldom change twofold, but what they report may be of something else for a while.
"""

from typing import Final

from msgspec import Struct, field

from loadline.core.engines.fitting import LATENCY_MIN_MS, Fit, FitRefused, fit_line
from loadline.core.engines.regression import SAMPLES_MIN, Line, without_outliers

_EACH: Final = 5
"""Samples of an octave: half of ten octaves' are as many as a regression has elsewhere."""
_KEPT_MS: Final = 3_600_000
"""Longer ago an engine may have been another one."""
_FAR: Final = 2.0
"""A line that gives times so many times those of the line before is doubted."""
_DOUBTS: Final = 5
"""Times that it must be found, in as many looks, until it is believed all the same."""
_MOVED: Final = 0.02
"""Lines that differ by less are the same: what follows from them need not be reckoned anew."""

Sample = tuple[int, float, float]
"""When it was taken, in ms; load, and latency in ms."""


class LearnedLine(Struct):
    """The samples, and the last good line through them."""

    octaves: dict[int, list[Sample]] = field(default_factory=dict)
    line: Line | None = None
    doubts: int = 0
    problem: str = f"0 samples are too few: wait for {SAMPLES_MIN}"
    """Why there is no new line; empty: nothing."""

    def push(self, now: int, load: float, latency_ms: float) -> None:
        """Add a sample; one that is below a load of 1, below ``LATENCY_MIN_MS`` or without end says nothing."""
        if 1.0 <= load < float("inf") and LATENCY_MIN_MS <= latency_ms < float("inf"):
            octave = self.octaves.setdefault(int(load).bit_length(), [])
            octave.append((now, float(load), float(latency_ms)))
            del octave[:-_EACH]

    def refit(self, now: int) -> None:
        """Draw the line anew; where that cannot be done the last good one stays."""
        for number, octave in list(self.octaves.items()):
            kept = [sample for sample in octave if now - sample[0] <= _KEPT_MS]
            if kept:
                self.octaves[number] = kept
            else:
                del self.octaves[number]
        samples = [sample for _, octave in sorted(self.octaves.items()) for sample in octave]
        found = _fitted(samples)
        self.problem = found.problem if isinstance(found, FitRefused) else self._judged(found, samples)

    def _judged(self, found: Fit, samples: list[Sample]) -> str:
        loads = [load for _, load, _ in samples]
        off = _apart(found.line, self.line, (min(loads), max(loads))) if self.line is not None else _FAR
        doubted = self.line is not None and off > _FAR
        self.doubts = self.doubts + 1 if doubted else 0
        if doubted and self.doubts < _DOUBTS:
            return f"the times are up to {off:.1f} times those of before: seen {self.doubts} times of {_DOUBTS}"
        self.doubts = 0
        if off > 1.0 + _MOVED:
            self.line = found.line
        return ""


def _fitted(samples: list[Sample]) -> Fit | FitRefused:
    if len(samples) < SAMPLES_MIN:
        return FitRefused(f"{len(samples)} samples are too few: wait for {SAMPLES_MIN}")
    return fit_line(*without_outliers([load for _, load, _ in samples], [latency for _, _, latency in samples]))


def _apart(one: Line, other: Line, loads: tuple[float, float]) -> float:
    """The times of the slower line by those of the faster one, at the load where they differ most."""
    pairs = [(one.at(load), other.at(load)) for load in loads]
    return max(max(pair) / max(min(pair), 1e-9) for pair in pairs)
