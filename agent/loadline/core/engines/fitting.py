"""Fits of the four linear latency parameters of an engine to measured times.

Lines minimise relative errors, since a sweep covers 1 to 1,000 requests and short times matter as much as long ones.
Slope and intercept are at least 0; if noise gives a negative one, the best line with that value at 0 is used. Data that
does not determine a line is refused, and so are latencies that fall with the load: a flat line through them would
promise unlimited capacity.
"""

from collections.abc import Sequence
from math import fsum
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.latency_models import decode_surface
from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.regression import Line
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep

LATENCY_MIN_MS: Final = 1e-6
"""Shortest plausible latency, 1 ns; below it, the squares of relative weights underflow."""
LOAD_RANGE_MIN: Final = 0.2
"""Smallest range of the loads, as a fraction of the largest; with less, noise determines the slope."""
FALL_MAX: Final = 0.05
"""Fall over the range of the loads, as a fraction of the mean latency, up to which a falling line is noise."""
ERROR_MAX: Final = 0.5
"""Mean relative error above which the times are not linear."""


class Fit(Struct, frozen=True):
    """A fitted line with its errors relative to the measured times."""

    line: Line
    samples: int
    mean_error: float
    largest_error: float


class FitRefused(Struct, frozen=True):
    """Reason why there is no fit, with the remedy."""

    problem: str


def fit_line(loads: Sequence[float], latencies_ms: Sequence[float]) -> Fit | FitRefused:
    """Fit the line of least relative errors whose slope and intercept are at least 0.

    Args:
        loads: Loads, above 0 and finite.
        latencies_ms: Latency at each load, finite.
    """
    if latencies_ms and min(latencies_ms) < LATENCY_MIN_MS:
        return FitRefused(
            f"{min(latencies_ms):g} ms is shorter than any latency of an engine: remove points that were not measured"
        )
    if not loads or max(loads) - min(loads) < LOAD_RANGE_MIN * max(loads):
        return FitRefused(
            f"{len(loads)} samples of nearly the same load do not determine a line: measure other loads too"
        )
    line = _relative_least_squares(loads, latencies_ms)
    if line.slope < 0.0:
        mean_ms, fall_ms = fsum(latencies_ms) / len(latencies_ms), -line.slope * (max(loads) - min(loads))
        if fall_ms > FALL_MAX * mean_ms:
            return FitRefused(
                f"latencies fall by {fall_ms / mean_ms:.0%} over the loads: measure longer, without other load"
            )
        line = Line(0.0, _relative_mean_ms(latencies_ms))
    errors = [abs(line.at(x) - y) / y for x, y in zip(loads, latencies_ms, strict=True)]
    mean_error = fsum(errors) / len(errors)
    if mean_error > ERROR_MAX:
        return FitRefused(
            f"the times deviate from the line by {mean_error:.0%} on average: measure the engine without other load"
        )
    return Fit(line, len(loads), mean_error, max(errors))


def fit_decode(sweeps: Sequence[DecodeSweep], context_tokens: float | None = None) -> Fit | FitRefused:
    """Fit the iteration time to the batch size, at one context or over all measured ones."""
    points = [point for sweep in sweeps for point in _iterations(sweep, context_tokens) if point[0] > 0.0]
    return fit_line([batch for batch, _ in points], [itl_ms for _, itl_ms in points])


def fit_prefill(sweeps: Sequence[PrefillSweep]) -> Fit | FitRefused:
    """Fit the time of a prefill pass to its tokens."""
    points = [point for sweep in sweeps for point in zip(sweep.isl_tokens, sweep.ttft_ms, strict=True)]
    return fit_line([isl for isl, _ in points], [ttft_ms for _, ttft_ms in points])


def batches_of(sweep: DecodeSweep) -> list[float]:
    """Return the batch size of each point."""
    points = zip(sweep.kv_usage, sweep.context_tokens, strict=True)
    return [usage * sweep.max_kv_tokens / context for usage, context in points]


def _iterations(sweep: DecodeSweep, context_tokens: float | None) -> list[tuple[float, float]]:
    """Return batch sizes and iteration times, as measured or interpolated to ``context_tokens``.

    Interpolation is limited to the KV usage measured at both neighbouring contexts: beyond it, the surface is constant.
    """
    if context_tokens is None:
        return list(zip(batches_of(sweep), sweep.itl_ms, strict=True))
    rows = sweep.rows()
    below = max((context for context in rows if context <= context_tokens), default=min(rows))
    above = min((context for context in rows if context >= context_tokens), default=max(rows))
    neighbours = [[sweep.kv_usage[place] for place in rows[context]] for context in (below, above)]
    usage_min, usage_max = max(map(min, neighbours)), min(map(max, neighbours))
    usage = np.unique([one for row in neighbours for one in row if usage_min <= one <= usage_max])
    itl_ms = decode_surface(sweep).itl_ms(usage, np.full_like(usage, context_tokens))
    batches = usage * sweep.max_kv_tokens / context_tokens
    return list(zip(batches.tolist(), itl_ms.tolist(), strict=True))


def linear_times(decode: Fit, prefill: Fit) -> LinearTimes:
    """Return the linear parameters of a decode and a prefill fit."""
    return LinearTimes(decode.line.intercept_ms, decode.line.slope, prefill.line.intercept_ms, prefill.line.slope)


def _relative_mean_ms(latencies_ms: Sequence[float]) -> float:
    """Return the constant of least relative errors."""
    return fsum(1.0 / y for y in latencies_ms) / fsum(1.0 / (y * y) for y in latencies_ms)


def _relative_least_squares(loads: Sequence[float], latencies_ms: Sequence[float]) -> Line:
    samples = list(zip(loads, latencies_ms, strict=True))
    weights = [1.0 / (y * y) for y in latencies_ms]
    total_weight = fsum(weights)
    load = fsum(weight * x for weight, x in zip(weights, loads, strict=True)) / total_weight
    latency_ms = _relative_mean_ms(latencies_ms)
    spread = fsum(weight * (x - load) ** 2 for weight, x in zip(weights, loads, strict=True))
    joint = fsum(weight * (x - load) * (y - latency_ms) for weight, (x, y) in zip(weights, samples, strict=True))
    slope = joint / spread
    if latency_ms < slope * load:
        return Line(fsum(x / y for x, y in samples) / fsum((x / y) ** 2 for x, y in samples), 0.0)
    return Line(slope, latency_ms - slope * load)
