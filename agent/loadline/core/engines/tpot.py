"""Time per output token (TPOT) of a batch, by its requests and the tokens of each."""

from functools import lru_cache
from typing import Annotated, Final, Protocol

import numpy as np
from msgspec import Meta, Struct

from loadline.core.engines.arrays import FloatArray, Rows
from loadline.core.engines.latency_models import DecodeModel

POINTS_MAX: Final = 65_536
TOKENS_MIN: Final = 8.0
"""Smallest tokens per request; sweeps do not begin below."""
_CACHE_MAX: Final = 256
_Points = Annotated[tuple[float, ...], Meta(min_length=1, max_length=POINTS_MAX)]


class TpotModel(Protocol):
    """Model of the time per output token."""

    def tpot_ms(self, batch_requests: FloatArray, tokens_per_request: FloatArray) -> FloatArray:
        """Return the TPOT of batches of requests with ``tokens_per_request`` tokens each, in ms; always finite."""
        ...


class TpotSweep(Struct, frozen=True, cache_hash=True):
    """Measured points: batch, tokens of each request, and median TPOT in ms.

    Raises:
        ValueError: A point is implausible; the text names point and remedy.
    """

    batch_requests: _Points
    tokens_per_request: _Points
    tpot_ms: _Points

    def __post_init__(self) -> None:
        lengths = {len(self.batch_requests), len(self.tokens_per_request), len(self.tpot_ms)}
        if len(lengths) > 1:
            raise ValueError("some points lack a batch, tokens or a time. Profile the engine again.")
        points = zip(self.batch_requests, self.tokens_per_request, self.tpot_ms, strict=True)
        for place, point in enumerate(points, start=1):
            if not all(0.0 < value <= 1e9 for value in point):  # noqa: PLR2004 - far above any batch, context or time
                raise ValueError(f"point {place} is {point}: not above 0, or implausible. Profile the engine again.")


class _Axis:
    """Ascending points of one axis of a surface, with what a lookup needs of them."""

    def __init__(self, points: FloatArray) -> None:
        self._points = points
        self._inner = points[1:-1]
        self.step = min(len(points) - 1, 1)
        """Places from a point to the next one."""
        self._widths: FloatArray = np.diff(points, append=np.inf)  # a single point has no other one beside it

    def between(self, values: FloatArray) -> tuple[Rows, FloatArray]:
        """Return the points below values and the relative distance to the next: 0 below all, over 1 beyond all."""
        low: Rows = self._inner.searchsorted(values, side="right")
        return low, np.maximum((values - self._points[low]) / self._widths[low], 0.0)


class TpotSurface:
    """Bilinear surface through a sweep.

    Beyond the largest batch and the longest requests it extrapolates the last slope.
    """

    def __init__(self, sweep: TpotSweep) -> None:
        rows: dict[float, dict[float, float]] = {}
        for batch, tokens, tpot in zip(sweep.batch_requests, sweep.tokens_per_request, sweep.tpot_ms, strict=True):
            rows.setdefault(batch, {})[tokens] = tpot
        lengths: FloatArray = np.asarray(sorted({tokens for row in rows.values() for tokens in row}))
        self._batches, self._tokens = _Axis(np.asarray(sorted(rows))), _Axis(lengths)
        table = [np.interp(lengths, sorted(row), [row[at] for at in sorted(row)]) for _, row in sorted(rows.items())]
        # TPOT does not decrease with length or batch: measured decreases are noise and would look like free capacity.
        self._table: FloatArray = np.maximum.accumulate(np.maximum.accumulate(np.stack(table), axis=0), axis=1).ravel()
        self._lengths = len(lengths)

    def tpot_ms(self, batch_requests: FloatArray, tokens_per_request: FloatArray) -> FloatArray:
        """Implement ``TpotModel``."""
        row, along = self._batches.between(batch_requests)
        column, across = self._tokens.between(tokens_per_request)
        lower: Rows = row * self._lengths + column
        low = self._along_tokens(lower, across)
        high = self._along_tokens(lower + self._batches.step * self._lengths, across)
        value: FloatArray = low + along * (high - low)
        return value

    def _along_tokens(self, places: Rows, across: FloatArray) -> FloatArray:
        left = self._table[places]
        value: FloatArray = left + across * (self._table[places + self._tokens.step] - left)
        return value


class ProfileTpot(Struct, frozen=True):
    """TPOT model derived from a decode model."""

    decode: DecodeModel

    def tpot_ms(self, batch_requests: FloatArray, tokens_per_request: FloatArray) -> FloatArray:
        """Implement ``TpotModel``. Beyond a full cache, TPOT rises in proportion, since requests are preempted."""
        usage = batch_requests * tokens_per_request / self.decode.max_kv_tokens
        value: FloatArray = self.decode.itl_ms(np.minimum(usage, 1.0), tokens_per_request) * np.maximum(usage, 1.0)
        return value


def predicted_tpot(model: TpotModel | None, batch_requests: FloatArray, tokens: FloatArray) -> FloatArray:
    """Return the TPOT of batches with one more request and ``tokens`` tokens in total, in ms.

    0 without tokens; NaN without a model.
    """
    if model is None:
        return np.full(len(batch_requests), np.nan)
    batch: FloatArray = np.maximum(batch_requests, 0.0) + 1.0
    each: FloatArray = np.maximum(tokens / batch, TOKENS_MIN)
    return np.where(tokens > 0.0, model.tpot_ms(batch, each), 0.0)


@lru_cache(_CACHE_MAX)
def tpot_surface(sweep: TpotSweep) -> TpotSurface:
    """Return the surface of a sweep, cached."""
    return TpotSurface(sweep)
