"""Requests drawn from rate series, which give requests and mean lengths by bins of time."""

import random

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import FloatArray, Randomness
from loadline.traces.bins import Bin, read_bins
from loadline.traces.csv_table import CsvTable
from loadline.traces.line_reader import LineReader
from loadline.traces.selection import Selection, too_many_requests
from loadline.traces.trace import REQUESTS_MAX, TOKENS_MAX, Arrival, RateKnobs

_STEPS_MIN = 1_000  # lower bound on a batch, so that few bursty requests do not need many rounds


class _Part(Struct, frozen=True):
    """Part of a bin within the window."""

    end_s: float
    requests: float
    """Expected requests, scaled."""
    isl_tokens: float
    osl_tokens: float


def draw(table: CsvTable, knobs: RateKnobs, seed: int) -> Selection:
    """Draw requests with the rates and mean lengths of a series, reproducibly from the seed.

    Raises:
        DataError: A column is missing, a row is wrong, data is missing, no request is in the window, or too many are.
    """
    lines = table.lines
    bins = read_bins(table)
    start_s, end_s = knobs.start_s, min(knobs.start_s + (knobs.duration_s or float("inf")), bins[-1].end_s)
    if start_s >= end_s:
        raise lines.error(f"the series ends at {end_s:.0f} s, before the start at {start_s:g} s", "Start within it.")
    parts = [_part(one, knobs, end_s, lines) for one in bins if one.end_s > start_s and one.start_s < end_s]
    edges_s = np.array([start_s, *(one.end_s for one in parts)])
    expected = np.array([0.0, *(one.requests for one in parts)]).cumsum()
    if expected[-1] > REQUESTS_MAX:
        raise too_many_requests(lines, f"{expected[-1]:.0f} requests, more than {REQUESTS_MAX}, are")
    rng = np.random.Generator(np.random.PCG64(random.Random(f"{seed}:rates").getrandbits(128)))  # noqa: S311
    due = _renewal_points(float(expected[-1]), knobs.cv if knobs.process == "gamma" else 1.0, rng)
    if due.size == 0:
        raise lines.error("there are no requests", "Take a wider window or a larger scale.")
    arrival_s = np.round(np.interp(due, expected, edges_s) - start_s, 6)
    part = np.searchsorted(expected, due, side="right") - 1
    isl = _lengths(np.array([one.isl_tokens for one in parts])[part], knobs.length_cv, rng)
    osl = _lengths(np.array([one.osl_tokens for one in parts])[part], knobs.length_cv, rng)
    arrivals = [Arrival(*one) for one in zip(arrival_s.tolist(), isl, osl, strict=True)]
    return Selection(arrivals, end_s - start_s)


def _part(one: Bin, knobs: RateKnobs, end_s: float, lines: LineReader) -> _Part:
    end_s = min(one.end_s, end_s)
    if one.requests is None and knobs.gaps == "error":
        remedy = "Skip gaps to count it as empty, or select a window without it."
        raise lines.error(f"there is no data from {one.start_s:g} s to {one.end_s:g} s", remedy, one.line)
    if not one.requests:
        return _Part(end_s, 0.0, 1.0, 1.0)
    share = (end_s - max(one.start_s, knobs.start_s)) / (one.end_s - one.start_s)
    isl_tokens, osl_tokens = one.isl_tokens or knobs.isl_tokens, one.osl_tokens or knobs.osl_tokens
    if isl_tokens is None or osl_tokens is None:
        column, option = ("mean_isl", "isl_tokens") if isl_tokens is None else ("mean_osl", "osl_tokens")
        raise lines.error(f"{column} is blank", f"Set {option}, the mean for bins without one.", one.line)
    return _Part(end_s, one.requests * share * knobs.scale, isl_tokens, osl_tokens)


def _renewal_points(total: float, cv: float, rng: Randomness) -> FloatArray:
    """Draw a renewal process up to ``total`` with mean interval 1 and coefficient of variation ``cv`` (1: Poisson).

    Points are in expected requests, not seconds, so that one process serves all rates.
    """
    shape, reached, drawn = cv**-2, 0.0, [np.empty(0)]
    while reached < total:
        points = reached + rng.gamma(shape, 1 / shape, _STEPS_MIN + int(total - reached)).cumsum()
        drawn.append(points)
        reached = float(points[-1])
    points = np.concatenate(drawn)
    return points[points < total]


def _lengths(means: FloatArray, cv: float, rng: Randomness) -> list[int]:
    """Draw lognormal lengths around the means, in whole tokens."""
    variance = np.log1p(cv**2)
    drawn = means * rng.lognormal(-variance / 2, variance**0.5, means.size) if cv else means
    lengths: list[int] = np.clip(np.rint(drawn), 1, TOKENS_MAX).astype(np.int64).tolist()
    return lengths
