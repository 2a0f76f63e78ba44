"""Lengths of prompts and outputs as a distribution: what the mean hides.

Long prompts take more than their share of the time, and long outputs stay longer in the batch. Where a frontend
reports a histogram, capacity is counted over it; where it does not, all requests have the mean length.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import compress, pairwise
from math import fsum
from operator import ge, mul
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from loadline.core.engines.latency_models import PrefillModel
from loadline.core.vocabulary.samples import Histogram

Numbers = NDArray[np.float64]

_OVERFLOW: Final = 1.5
"""What is above the last bound is taken for this many times it: nothing is known but that it is longer."""
_BOUNDS_MAX: Final = 1_024
"""Of bins, whose middles are kept: frontends do not change theirs."""


class LengthDistribution(Struct, frozen=True):
    """Lengths in tokens, rising, and the share of requests that have each; the shares sum to 1."""

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

    def mean_of(self, values: Sequence[float]) -> float:
        """Mean of something of which there is a value for each length."""
        return fsum(map(mul, values, self.shares))

    def scaled(self, factor: float) -> "LengthDistribution":
        """Every length multiplied by ``factor``, which is above 0."""
        return (
            self if factor == 1.0 else LengthDistribution(tuple(token * factor for token in self.tokens), self.shares)
        )


def constant_length(tokens: float) -> LengthDistribution:
    """Every request has this length."""
    return LengthDistribution((tokens,), (1.0,))


def lengths_from_histogram(histogram: Histogram, mean_tokens: float | None = None) -> LengthDistribution | None:
    """The distribution that a histogram reports.

    Args:
        histogram: Counts by upper bound. Requests stand in the middle of their bin.
        mean_tokens: The mean of the same requests, where it is known: lengths are scaled to have it.

    Returns:
        None where the histogram is empty, or its bounds do not rise from above 0, or bounds and counts do not match.
    """
    middles, counts = _middles(histogram.bounds), histogram.counts
    total = sum(counts)
    if not middles or not total or len(counts) != len(middles):
        return None
    shares = tuple(count / total for count in counts if count)
    measured = LengthDistribution(tuple(compress(middles, counts)), shares)
    return measured.scaled(mean_tokens / measured.mean if mean_tokens else 1.0)


@lru_cache(_BOUNDS_MAX)
def _middles(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Where the requests of each bin stand, and those above the last bound; empty where bounds do not rise."""
    edges = (0.0, *bounds)
    if not bounds or any(map(ge, edges, bounds)):
        return ()
    return (*((low + high) / 2.0 for low, high in pairwise(edges)), bounds[-1] * _OVERFLOW)


def mixed_prefill_throughput(model: PrefillModel, isl: LengthDistribution) -> float:
    """Prompt tokens a second that one GPU computes of such a mix: its tokens by the time that they take.

    0 where the mix has no tokens.
    """
    tokens = np.asarray(isl.tokens)
    rates = model.tokens_per_s_per_gpu(tokens).tolist()
    seconds = fsum(
        token / rate * share for token, rate, share in zip(isl.tokens, rates, isl.shares, strict=True) if rate > 0.0
    )
    return isl.mean / seconds if seconds > 0.0 else 0.0


def mean_decode_context(isl: LengthDistribution, osl: LengthDistribution) -> float:
    """Mean context of the requests of a running batch, in tokens.

    A request is in the batch as long as its output lasts, so long outputs weigh more than their number: the mean of
    what is generated so far is ``E[osl^2] / (2 E[osl])``, which is half the mean only where all are alike.
    """
    mean = osl.mean
    generated = osl.mean_square / (2.0 * mean) if mean > 0.0 else 0.0
    return isl.mean + generated
