"""Latency models of engines from measured sweeps: latencies, and the best throughput within an objective.

Inside the grid, TTFT and prefill throughput follow a monotone cubic curve over the prompt length. ITL and time per
token are piecewise linear over KV usage, and linear between two contexts.

Outside the grid, no model is better than the measurement:

- a shorter prompt takes as long as the shortest one; a longer prompt takes proportionally longer than the longest;
- a KV usage outside the measured range is as fast as the nearest measured one;
- a shorter context is as fast as the shortest one; with a longer context, throughput falls proportionally.
"""

from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import FloatArray, Rows
from loadline.core.engines.monotone_curve import MonotoneCurve
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep

_USAGE_STEPS: Final = 200
"""Steps of KV usage in the search for the best batch: 0.5 % of the cache; measured points are 7 % apart."""
_CACHE_MAX: Final = 1_024
"""Cached curves: one per model of a configuration."""


class BestThroughput(Struct, frozen=True):
    """Batch of the highest throughput within an objective."""

    tokens_per_s_per_gpu: float
    itl_ms: float
    kv_usage: float


class PrefillModel(Protocol):
    """Prefill performance of an engine. Lengths are in tokens; arrays may have any shape."""

    def ttft_ms(self, isl_tokens: FloatArray) -> FloatArray:
        """Return the TTFT of a prompt that does not wait, in ms."""
        ...

    def tokens_per_s_per_gpu(self, isl_tokens: FloatArray) -> FloatArray:
        """Return the prompt tokens per second that one GPU computes."""
        ...

    @property
    def pass_overhead_ms(self) -> float:
        """Fixed time of a prefill pass, in ms."""
        ...

    @property
    def ttft_min_ms(self) -> float:
        """TTFT of the shortest prompt, in ms."""
        ...


class DecodeModel(Protocol):
    """Decode performance of an engine. Contexts are in tokens, KV usage is 0..1; arrays may have any shape."""

    @property
    def max_kv_tokens(self) -> float:
        """Capacity of the engine's KV cache, in tokens."""
        ...

    def itl_ms(self, kv_usage: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """Return the inter-token latency, in ms."""
        ...

    def tokens_per_s_per_gpu(self, kv_usage: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """Return the tokens per second that one GPU generates."""
        ...

    def find_best_throughput_per_gpu(self, itl_ms: float, context_tokens: float) -> BestThroughput | None:
        """Return the batch of the highest throughput with an ITL of at most ``itl_ms``; None if there is none."""
        ...

    @property
    def itl_min_ms(self) -> float:
        """Lowest ITL of any batch, in ms."""
        ...


class PrefillCurve:
    """TTFT and prefill throughput as functions of the prompt length.

    TTFT does not decrease with the length. A bounded outlier has a proportionally higher throughput.
    """

    def __init__(self, sweep: PrefillSweep) -> None:
        bounded = sweep.bounded_ttft_ms()
        points = zip(sweep.tokens_per_s_per_gpu, sweep.ttft_ms, bounded, strict=True)
        self._ttft = MonotoneCurve(sweep.isl_tokens, bounded)
        self._rate = MonotoneCurve(sweep.isl_tokens, [rate * measured / taken for rate, measured, taken in points])
        self.isl_min, self.isl_max = sweep.isl_tokens[0], sweep.isl_tokens[-1]
        self.pass_overhead_ms = sweep.pass_overhead_ms()
        """Fixed time of a prefill pass, in ms."""
        self.ttft_min_ms = float(self.ttft_ms(np.asarray(self.isl_min)))

    def ttft_ms(self, isl_tokens: FloatArray) -> FloatArray:
        """Implement ``PrefillModel``."""
        value: FloatArray = self._ttft(isl_tokens) * np.maximum(isl_tokens / self.isl_max, 1.0)
        return value

    def tokens_per_s_per_gpu(self, isl_tokens: FloatArray) -> FloatArray:
        """Implement ``PrefillModel``."""
        value: FloatArray = self._rate(isl_tokens) * np.minimum(np.maximum(isl_tokens, 0.0) / self.isl_min, 1.0)
        return value


class DecodeSurface:
    """ITL and decode throughput as functions of KV usage and context.

    All contexts share one grid of KV usage that contains every measured point, so measured points are exact.
    """

    def __init__(self, sweep: DecodeSweep) -> None:
        rows = sweep.rows()
        self.max_kv_tokens = sweep.max_kv_tokens
        self.contexts: FloatArray = np.asarray(list(rows))
        self._usage: FloatArray = np.unique(np.concatenate([np.linspace(0.0, 1.0, _USAGE_STEPS + 1), sweep.kv_usage]))
        self._itl = self._table(sweep, rows, np.asarray(sweep.itl_ms))
        self.itl_min_ms = float(self._itl.min())
        # Interpolates the time per token, which is linear in the context, and not its inverse.
        self._seconds = 1.0 / self._table(sweep, rows, np.asarray(sweep.tokens_per_s_per_gpu))

    def itl_ms(self, kv_usage: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """Implement ``DecodeModel``."""
        return self._look_up(self._itl, kv_usage, context_tokens)

    def tokens_per_s_per_gpu(self, kv_usage: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """Implement ``DecodeModel``."""
        value: FloatArray = self._long_context_factor(context_tokens) / self._look_up(
            self._seconds, kv_usage, context_tokens
        )
        return value

    def find_best_throughput_per_gpu(self, itl_ms: float, context_tokens: float) -> BestThroughput | None:
        """Implement ``DecodeModel``."""
        context = np.asarray(context_tokens, dtype=np.float64)
        row, upper, share = self._between(context)
        itls = (1.0 - share) * self._itl[row] + share * self._itl[upper]
        seconds = (1.0 - share) * self._seconds[row] + share * self._seconds[upper]
        within = itls <= itl_ms
        if not within.any():
            return None
        # The first of equal batches is the emptiest.
        at = int(np.argmin(np.where(within, seconds, np.inf)))
        rate = float(self._long_context_factor(context) / seconds[at])
        return BestThroughput(rate, float(itls[at]), float(self._usage[at]))

    def _table(self, sweep: DecodeSweep, rows: dict[float, list[int]], values: FloatArray) -> FloatArray:
        usage = np.asarray(sweep.kv_usage)
        return np.stack([np.interp(self._usage, usage[places], values[places]) for places in rows.values()])

    def _look_up(self, table: FloatArray, kv_usage: FloatArray, context_tokens: FloatArray) -> FloatArray:
        row, upper, share = self._between(context_tokens)
        usage = np.minimum(np.maximum(kv_usage, 0.0), 1.0)
        cell = np.minimum(np.searchsorted(self._usage, usage, side="right") - 1, len(self._usage) - 2)
        along = (usage - self._usage[cell]) / (self._usage[cell + 1] - self._usage[cell])
        low = table[row, cell] + along * (table[row, cell + 1] - table[row, cell])
        high = table[upper, cell] + along * (table[upper, cell + 1] - table[upper, cell])
        value: FloatArray = low + share * (high - low)
        return value

    def _between(self, context_tokens: FloatArray) -> tuple[Rows, Rows, FloatArray]:
        """Return the rows around a context and the weight of the upper one."""
        contexts, last = self.contexts, len(self.contexts) - 1
        inside = np.minimum(np.maximum(context_tokens, contexts[0]), contexts[-1])
        row = np.searchsorted(contexts, inside, side="right") - 1
        upper = np.minimum(row + 1, last)
        width = np.where(upper > row, contexts[upper] - contexts[row], 1.0)
        return row, upper, (inside - contexts[row]) / width

    def _long_context_factor(self, context_tokens: FloatArray) -> FloatArray:
        """Return the throughput factor of a context beyond the longest measured one."""
        value: FloatArray = self.contexts[-1] / np.maximum(context_tokens, self.contexts[-1])
        return value


@lru_cache(_CACHE_MAX)
def prefill_curve(sweep: PrefillSweep) -> PrefillCurve:
    """Return the curve of a sweep, cached."""
    return PrefillCurve(sweep)


@lru_cache(_CACHE_MAX)
def decode_surface(sweep: DecodeSweep) -> DecodeSurface:
    """Return the surface of a sweep, cached."""
    return DecodeSurface(sweep)
