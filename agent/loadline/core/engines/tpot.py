"""Time per output token of a batch, by how many requests are in it and how many tokens each of them holds."""

from functools import lru_cache
from typing import Annotated, Final, Protocol

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from loadline.core.engines.latency_models import DecodeModel

Numbers = NDArray[np.float64]

POINTS_MAX: Final = 65_536
TOKENS_LEAST: Final = 8.0
"""Fewer tokens a request are as so many: no sweep begins below."""
_COMPILED_MAX: Final = 256
_Points = Annotated[tuple[float, ...], Meta(min_length=1, max_length=POINTS_MAX)]


class TpotModel(Protocol):
    """Gives the time per output token."""

    def tpot_ms(self, batch_requests: Numbers, tokens_per_request: Numbers) -> Numbers:
        """Of batches of so many requests with so many tokens each, in ms; always finite."""
        ...


class TpotSweep(Struct, frozen=True, cache_hash=True):
    """Measured points: batch, tokens of each request in it, and the median time per output token in ms.

    Raises:
        ValueError: The points cannot be true; the text names the point and the remedy.
    """

    batch_requests: _Points
    tokens_per_request: _Points
    tpot_ms: _Points

    def __post_init__(self) -> None:
        lengths = {len(self.batch_requests), len(self.tokens_per_request), len(self.tpot_ms)}
        if len(lengths) > 1:
            raise ValueError("its points have not all a batch, tokens and a time. Profile the engine again.")
        points = zip(self.batch_requests, self.tokens_per_request, self.tpot_ms, strict=True)
        for place, point in enumerate(points, start=1):
            if not all(0.0 < value <= 1e9 for value in point):  # noqa: PLR2004 - far above any batch, context or time
                raise ValueError(f"point {place} is {point}: not above 0, or absurd. Profile the engine again.")


class TpotSurface:
    """A sweep as a surface: straight lines between its points.

    Beyond the largest batch and the longest requests it goes on as steeply as between the last two: a load that was not
    measured is neither free nor without end.
    """

    def __init__(self, sweep: TpotSweep) -> None:
        rows: dict[float, dict[float, float]] = {}
        for batch, tokens, tpot in zip(sweep.batch_requests, sweep.tokens_per_request, sweep.tpot_ms, strict=True):
            rows.setdefault(batch, {})[tokens] = tpot
        self._batches: Numbers = np.asarray(sorted(rows))
        self._tokens: Numbers = np.asarray(sorted({tokens for row in rows.values() for tokens in row}))
        table = [
            np.interp(self._tokens, sorted(row), [row[at] for at in sorted(row)]) for _, row in sorted(rows.items())
        ]
        # A longer request and a larger batch never take less: what was measured to is noise, and would look like room.
        self._table: Numbers = np.maximum.accumulate(np.maximum.accumulate(np.stack(table), axis=0), axis=1)

    def tpot_ms(self, batch_requests: Numbers, tokens_per_request: Numbers) -> Numbers:
        """See ``TpotModel``."""
        row, upper, along = _between(self._batches, batch_requests)
        column, right, across = _between(self._tokens, tokens_per_request)
        table = self._table
        low = table[row, column] + across * (table[row, right] - table[row, column])
        high = table[upper, column] + across * (table[upper, right] - table[upper, column])
        value: Numbers = low + along * (high - low)
        return value


class ProfileTpot(Struct, frozen=True):
    """The same from what planners know of decode."""

    decode: DecodeModel

    def tpot_ms(self, batch_requests: Numbers, tokens_per_request: Numbers) -> Numbers:
        """See ``TpotModel``. A cache that is overfull takes longer in proportion: it preempts."""
        usage = batch_requests * tokens_per_request / self.decode.max_kv_tokens
        value: Numbers = self.decode.itl_ms(np.minimum(usage, 1.0), tokens_per_request) * np.maximum(usage, 1.0)
        return value


def predicted_tpot(model: TpotModel | None, batch_requests: Numbers, tokens: Numbers) -> Numbers:
    """Time per output token of batches with so many tokens in all, and one request more, in ms.

    0 of no tokens; NaN where nothing is known.
    """
    if model is None:
        return np.full(len(batch_requests), np.nan)
    batch: Numbers = np.maximum(batch_requests, 0.0) + 1.0
    each: Numbers = np.maximum(tokens / batch, TOKENS_LEAST)
    return np.where(tokens > 0.0, model.tpot_ms(batch, each), 0.0)


@lru_cache(_COMPILED_MAX)
def tpot_surface(sweep: TpotSweep) -> TpotSurface:
    """The surface of a sweep; computed once."""
    return TpotSurface(sweep)


def _between(points: Numbers, values: Numbers) -> tuple[NDArray[np.intp], NDArray[np.intp], Numbers]:
    """The points around values, and how far from the first to the second: below the first 0, beyond the last over 1."""
    last = len(points) - 1
    low = np.clip(np.searchsorted(points, values, side="right") - 1, 0, max(last - 1, 0))
    high = np.minimum(low + 1, last)
    width = np.where(high > low, points[high] - points[low], np.inf)
    return low, high, np.maximum((values - points[low]) / width, 0.0)
