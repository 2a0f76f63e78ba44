"""Spread of the ITL between requests of aggregated engines, where prefill passes stall decode.

Prompts arrive at random, and a short output does not average over many of them. If ``p`` prompts arrive per token and
stall it for ``s`` ms each, the mean ITL over ``n`` tokens has the variance ``p * E[s^2] / n`` of a compound Poisson
sum.
"""

from functools import lru_cache
from math import fsum, sqrt
from statistics import NormalDist
from typing import Final

from loadline.core.engines.lengths import LengthDistribution

_NORMAL: Final = NormalDist()
_BISECTIONS: Final = 40
_CACHE_MAX: Final = 1_024


@lru_cache(_CACHE_MAX)
def stall_quantile(osl: LengthDistribution, share: float) -> float:
    """Return the quantile ``share`` (0..1) of the mean ITL, in standard deviations of a single token above the mean.

    Uses the normal approximation, mixed over the output lengths; 0 for a share of at most 0.5.
    """
    if share <= 0.5:  # noqa: PLR2004 - the median is the mean
        return 0.0
    low, high = 0.0, _NORMAL.inv_cdf(share)  # outputs of one token
    roots = [sqrt(max(tokens, 1.0)) for tokens in osl.tokens]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        within = fsum(part * _NORMAL.cdf(middle * root) for root, part in zip(roots, osl.shares, strict=True))
        low, high = (middle, high) if within < share else (low, middle)
    return high
