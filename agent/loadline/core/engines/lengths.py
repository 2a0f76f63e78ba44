"""Length distributions of prompts and outputs.

Long prompts take more than their share of prefill time, and long outputs stay longer in the batch. Capacity is computed
over the reported histogram, or at the mean length without one.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import compress, pairwise
from math import fsum, isfinite, log
from operator import ge, mul
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.latency_models import PrefillModel
from loadline.core.vocabulary.samples import Bins, Histogram
from loadline.core.vocabulary.scalars import LENGTH_MIN

_OVERFLOW_FACTOR: Final = 1.5
"""Assumed length of requests above the last bound, as a multiple of it."""
_TENTHS: Final = 10
_CACHE_MAX: Final = 1_024
"""Cached sets of bounds; frontends do not change theirs."""
_HIT_RATE_MAX: Final = 0.95
"""Largest fraction of a prompt that is assumed to be in the prefix cache; the cap is that of Dynamo 1.6."""


class LengthDistribution(Struct, frozen=True):
    """Ascending lengths in tokens, and the fraction of requests with each; fractions sum to 1."""

    tokens: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean length."""
        return self.mean_of(self.tokens)

    @property
    def mean_square(self) -> float:
        """Mean of the squared lengths."""
        return fsum(map(mul, map(mul, self.tokens, self.tokens), self.shares))

    @property
    def variability(self) -> float:
        """``(1 + cv^2) / 2`` of the length: 0.5 if it is constant, 1 if it is exponential."""
        tokens = max(self.mean, 1.0)
        return max(0.5, 0.5 * self.mean_square / (tokens * tokens))

    def mean_of(self, values: Sequence[float]) -> float:
        """Return the mean of a function of the length, given its value at each length."""
        return fsum(map(mul, values, self.shares))

    def scaled(self, factor: float) -> "LengthDistribution":
        """Return the distribution with every length multiplied by ``factor``, above 0."""
        return (
            self if factor == 1.0 else LengthDistribution(tuple(token * factor for token in self.tokens), self.shares)
        )


def constant_length(tokens: float) -> LengthDistribution:
    """Return the distribution of a constant length."""
    return LengthDistribution((tokens,), (1.0,))


def exponential_length(tokens: float) -> LengthDistribution:
    """Return an exponential distribution with this mean, as tenths of the requests at their medians.

    Prompts of chats vary about as much, and a mean alone does not tell. The medians are scaled to the mean.
    """
    quantiles = [-log(1.0 - (tenth + 0.5) / _TENTHS) for tenth in range(_TENTHS)]
    scale = tokens * _TENTHS / fsum(quantiles)
    return LengthDistribution(tuple(scale * one for one in quantiles), (1.0 / _TENTHS,) * _TENTHS)


def lengths_from_histogram(histogram: Histogram | Bins, mean_tokens: float | None = None) -> LengthDistribution | None:
    """Return the distribution of a histogram.

    Args:
        histogram: Counts by upper bound. Requests are assigned to the middle of their bin.
        mean_tokens: Mean of the same requests, if known; lengths are scaled to it.

    Returns:
        None if the histogram is empty, its bounds are not ascending from ``LENGTH_MIN``, bounds and counts do not
        match, or no factor scales its lengths to the mean.
    """
    middles, counts = _middles(histogram.bounds), histogram.counts
    total = sum(counts)
    if not middles or not total or len(counts) != len(middles):
        return None
    shares = tuple(count / total for count in counts if count)
    measured = LengthDistribution(tuple(compress(middles, counts)), shares)
    factor = mean_tokens / measured.mean if mean_tokens else 1.0
    return measured.scaled(factor) if isfinite(factor) and factor > 0.0 else None


@lru_cache(_CACHE_MAX)
def _middles(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Return the assumed length of each bin; empty if bounds are not ascending from ``LENGTH_MIN``."""
    edges = (0.0, *bounds)
    if not bounds or bounds[0] < LENGTH_MIN or any(map(ge, edges, bounds)):
        return ()
    return (*((low + high) / 2.0 for low, high in pairwise(edges)), bounds[-1] * _OVERFLOW_FACTOR)


def mixed_prefill_throughput(model: PrefillModel, isl: LengthDistribution) -> float:
    """Return the prompt tokens per second that one GPU computes of a mix of lengths: its tokens divided by their time.

    0 if the mix has no tokens.
    """
    tokens = np.asarray(isl.tokens)
    rates = model.tokens_per_s_per_gpu(tokens).tolist()
    seconds = fsum(
        token / rate * share for token, rate, share in zip(isl.tokens, rates, isl.shares, strict=True) if rate > 0.0
    )
    return isl.mean / seconds if seconds > 0.0 else 0.0


def mean_decode_context(isl: LengthDistribution, osl: LengthDistribution) -> float:
    """Return the mean context of the requests of a running batch, in tokens.

    A request stays in the batch for the length of its output, so long outputs weigh more: the mean number of generated
    tokens is ``E[osl^2] / (2 E[osl])``, half the mean output only for equal lengths.
    """
    mean = osl.mean
    generated = osl.mean_square / (2.0 * mean) if mean > 0.0 else 0.0
    return isl.mean + generated


def computed_isl(isl_tokens: float, hit_rate: float) -> float:
    """Return the prompt tokens to compute if the fraction ``hit_rate`` (0..1) is in the prefix cache.

    The rule is that of Dynamo 1.6: an unknown rate (NaN) counts as 0, and a high one as 0.95.
    """
    rate = min(max(hit_rate, 0.0), _HIT_RATE_MAX) if isfinite(hit_rate) else 0.0
    return isl_tokens * (1.0 - rate)
