"""What an engine can do, from measured sweeps: latencies, and the best throughput within an objective.

Inside the grid: TTFT and throughput of a prompt along a smooth curve that never turns between two points; of a batch,
lines between the points of a context, and between two contexts the ITL and the time of a token in proportion.

Outside the grid nothing is claimed that is better than what was measured:

- a shorter prompt takes as long as the shortest; a longer one, longer in proportion;
- KV usage beyond the fullest and emptiest measured batch is as that batch;
- a shorter context is as the shortest; with a longer one throughput falls in proportion.
"""

from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from loadline.core.engines.monotone_curve import MonotoneCurve
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep

Numbers = NDArray[np.float64]

_CELLS: Final = 200
"""Steps of KV usage in the search for the best: measured points are 0.07 apart, and 0.5 % of the cache is little."""
_COMPILED_MAX: Final = 1_024
"""Curves that are kept: one for each model of a configuration."""


class BestThroughput(Struct, frozen=True):
    """The batch of highest throughput within an objective."""

    tokens_per_s_per_gpu: float
    itl_ms: float
    kv_usage: float


class PrefillModel(Protocol):
    """What planners ask of prefill. Lengths in tokens; arrays of any shape."""

    def ttft_ms(self, isl_tokens: Numbers) -> Numbers:
        """Time to the first token of a prompt that does not wait, in ms."""
        ...

    def tokens_per_s_per_gpu(self, isl_tokens: Numbers) -> Numbers:
        """Prompt tokens a second that one GPU computes."""
        ...

    @property
    def pass_overhead_ms(self) -> float:
        """What every pass takes, however little is in it, in ms."""
        ...

    @property
    def ttft_min_ms(self) -> float:
        """The TTFT of the shortest prompt, in ms."""
        ...


class DecodeModel(Protocol):
    """What planners ask of decode. Contexts in tokens, KV usage 0..1; arrays of any shape."""

    @property
    def max_kv_tokens(self) -> float:
        """Tokens that the KV cache of an engine holds."""
        ...

    def itl_ms(self, kv_usage: Numbers, context_tokens: Numbers) -> Numbers:
        """Time between two tokens of a request, in ms."""
        ...

    def tokens_per_s_per_gpu(self, kv_usage: Numbers, context_tokens: Numbers) -> Numbers:
        """Tokens a second that one GPU generates."""
        ...

    def find_best_throughput_per_gpu(self, itl_ms: float, context_tokens: float) -> BestThroughput | None:
        """The batch of highest throughput whose ITL is at most ``itl_ms``; None: no batch reaches it."""
        ...

    @property
    def itl_min_ms(self) -> float:
        """The ITL below which there is no batch of any requests, in ms."""
        ...


class PrefillCurve:
    """TTFT and throughput by the length of the prompt.

    TTFT never falls with the length; where an outlier of the measurement is bounded, its throughput rises by as much.
    """

    def __init__(self, sweep: PrefillSweep) -> None:
        bounded = sweep.bounded_ttft_ms()
        points = zip(sweep.tokens_per_s_per_gpu, sweep.ttft_ms, bounded, strict=True)
        self._ttft = MonotoneCurve(sweep.isl_tokens, bounded)
        self._rate = MonotoneCurve(sweep.isl_tokens, [rate * measured / taken for rate, measured, taken in points])
        self.isl_min, self.isl_max = sweep.isl_tokens[0], sweep.isl_tokens[-1]
        self.pass_overhead_ms = sweep.pass_overhead_ms()
        """See ``PrefillModel``."""
        self.ttft_min_ms = float(self.ttft_ms(np.asarray(self.isl_min)))

    def ttft_ms(self, isl_tokens: Numbers) -> Numbers:
        """See ``PrefillModel``."""
        value: Numbers = self._ttft(isl_tokens) * np.maximum(isl_tokens / self.isl_max, 1.0)
        return value

    def tokens_per_s_per_gpu(self, isl_tokens: Numbers) -> Numbers:
        """See ``PrefillModel``."""
        value: Numbers = self._rate(isl_tokens) * np.minimum(np.maximum(isl_tokens, 0.0) / self.isl_min, 1.0)
        return value


class DecodeSurface:
    """ITL and throughput by KV usage and context.

    All contexts share one grid of KV usage that holds every measured point, so measured points are met exactly.
    """

    def __init__(self, sweep: DecodeSweep) -> None:
        rows = sweep.rows()
        self.max_kv_tokens = sweep.max_kv_tokens
        self.contexts: Numbers = np.asarray(list(rows))
        self._usage: Numbers = np.unique(np.concatenate([np.linspace(0.0, 1.0, _CELLS + 1), sweep.kv_usage]))
        self._itl = self._table(sweep, rows, np.asarray(sweep.itl_ms))
        self.itl_min_ms = float(self._itl.min())
        # Between contexts the time of a token is proportional to the context, so it is what is interpolated.
        self._seconds = 1.0 / self._table(sweep, rows, np.asarray(sweep.tokens_per_s_per_gpu))

    def itl_ms(self, kv_usage: Numbers, context_tokens: Numbers) -> Numbers:
        """See ``DecodeModel``."""
        return self._look_up(self._itl, kv_usage, context_tokens)

    def tokens_per_s_per_gpu(self, kv_usage: Numbers, context_tokens: Numbers) -> Numbers:
        """See ``DecodeModel``."""
        value: Numbers = self._beyond(context_tokens) / self._look_up(self._seconds, kv_usage, context_tokens)
        return value

    def find_best_throughput_per_gpu(self, itl_ms: float, context_tokens: float) -> BestThroughput | None:
        """See ``DecodeModel``."""
        context = np.asarray(context_tokens, dtype=np.float64)
        row, upper, share = self._between(context)
        itls = (1.0 - share) * self._itl[row] + share * self._itl[upper]
        seconds = (1.0 - share) * self._seconds[row] + share * self._seconds[upper]
        within = itls <= itl_ms
        if not within.any():
            return None
        # Of equals the first: the emptiest batch that does it.
        at = int(np.argmin(np.where(within, seconds, np.inf)))
        rate = float(self._beyond(context) / seconds[at])
        return BestThroughput(rate, float(itls[at]), float(self._usage[at]))

    def _table(self, sweep: DecodeSweep, rows: dict[float, list[int]], values: Numbers) -> Numbers:
        usage = np.asarray(sweep.kv_usage)
        return np.stack([np.interp(self._usage, usage[places], values[places]) for places in rows.values()])

    def _look_up(self, table: Numbers, kv_usage: Numbers, context_tokens: Numbers) -> Numbers:
        row, upper, share = self._between(context_tokens)
        usage = np.minimum(np.maximum(kv_usage, 0.0), 1.0)
        cell = np.minimum(np.searchsorted(self._usage, usage, side="right") - 1, len(self._usage) - 2)
        along = (usage - self._usage[cell]) / (self._usage[cell + 1] - self._usage[cell])
        low = table[row, cell] + along * (table[row, cell + 1] - table[row, cell])
        high = table[upper, cell] + along * (table[upper, cell + 1] - table[upper, cell])
        value: Numbers = low + share * (high - low)
        return value

    def _between(self, context_tokens: Numbers) -> tuple[NDArray[np.intp], NDArray[np.intp], Numbers]:
        """The two rows around a context, and the share of the upper one."""
        contexts, last = self.contexts, len(self.contexts) - 1
        inside = np.minimum(np.maximum(context_tokens, contexts[0]), contexts[-1])
        row = np.searchsorted(contexts, inside, side="right") - 1
        upper = np.minimum(row + 1, last)
        width = np.where(upper > row, contexts[upper] - contexts[row], 1.0)
        return row, upper, (inside - contexts[row]) / width

    def _beyond(self, context_tokens: Numbers) -> Numbers:
        """What is left of the throughput at a context that is longer than any measured."""
        value: Numbers = self.contexts[-1] / np.maximum(context_tokens, self.contexts[-1])
        return value


@lru_cache(_COMPILED_MAX)
def prefill_curve(sweep: PrefillSweep) -> PrefillCurve:
    """The curve of a sweep; computed once."""
    return PrefillCurve(sweep)


@lru_cache(_COMPILED_MAX)
def decode_surface(sweep: DecodeSweep) -> DecodeSurface:
    """The surface of a sweep; computed once."""
    return DecodeSurface(sweep)
