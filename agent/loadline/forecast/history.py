"""Series of intervals from requests or from shorter intervals, for warm starts and backtests.

An interval without requests is idle: 0 requests, and the lengths of the previous interval. One without data is unknown.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from loadline.core.vocabulary.forecasts import POINTS_MAX, History, Series


class LoadInterval(Struct, frozen=True):
    """Requests and mean lengths of one interval; None if there is no data."""

    requests: float | None
    isl_tokens: float | None
    osl_tokens: float | None


def bin_requests(arrivals: Iterable[tuple[float, float, float]], interval_s: float, duration_s: float) -> History:
    """Count requests ``(arrival_s, isl, osl)``, in any order, by interval; drop a partial interval at the end.

    Keeps the newest 4,096 intervals.
    """
    count = math.floor(duration_s / interval_s + 1e-9)
    requests, isl, osl = [0] * count, [0.0] * count, [0.0] * count
    for arrival_s, isl_tokens, osl_tokens in arrivals:
        at = int(arrival_s / interval_s)
        if at < count:
            requests[at] += 1
            isl[at] += isl_tokens
            osl[at] += osl_tokens
    return _history([_mean(*sums) for sums in zip(requests, isl, osl, strict=True)], round(interval_s * 1_000))


def merge_intervals(intervals: Sequence[LoadInterval], width_ms: int, group_size: int = 1) -> History:
    """Merge groups of intervals into one each, which is unknown if a part is unknown."""
    groups = [intervals[at : at + group_size] for at in range(0, len(intervals) - group_size + 1, group_size)]
    return _history([_sum(group) for group in groups], width_ms * group_size)


def _history(intervals: list[LoadInterval], interval_ms: int) -> History:
    kept = intervals[-POINTS_MAX:]
    end_ms = len(intervals) * interval_ms
    isl: list[float | None] = []
    osl: list[float | None] = []
    for one in kept:
        idle = one.requests == 0 and bool(isl)  # an interval before the first request has no lengths
        isl.append(isl[-1] if idle else one.isl_tokens)
        osl.append(osl[-1] if idle else one.osl_tokens)
    requests, isl_tokens, osl_tokens = (
        Series(tuple(values), interval_ms, end_ms) for values in ([one.requests for one in kept], isl, osl)
    )
    return History(requests, isl_tokens, osl_tokens)


def _mean(requests: int, isl: float, osl: float) -> LoadInterval:
    if not requests:
        return LoadInterval(0.0, None, None)
    return LoadInterval(float(requests), isl / requests, osl / requests)


def _sum(parts: Sequence[LoadInterval]) -> LoadInterval:
    """Merge intervals into one with weighted mean lengths, unknown if a length that counts is unknown."""
    counts = [part.requests for part in parts]
    if None in counts:
        return LoadInterval(None, None, None)
    requests = sum(count for count in counts if count)
    return LoadInterval(requests, *(_weighted(parts, name, requests) for name in ("isl_tokens", "osl_tokens")))


def _weighted(parts: Sequence[LoadInterval], name: str, requests: float) -> float | None:
    tokens = 0.0
    for part in parts:
        mean: float | None = getattr(part, name)
        if part.requests:
            if mean is None:
                return None
            tokens += part.requests * mean
    return tokens / requests if requests else None
