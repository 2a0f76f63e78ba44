"""How far from the mean the ITL of a request is where prompts hold it up, as they do in aggregated engines.

Prompts arrive by chance, and a short output is over before that evens out. Where ``p`` prompts arrive in the time of a
token and take ``s`` ms each, the variance of the mean ITL of ``n`` tokens is ``p * E[s^2] / n``, that of a compound
Poisson sum.
"""

from functools import lru_cache
from math import fsum, sqrt
from statistics import NormalDist
from typing import Final

from loadline.core.engines.lengths import LengthDistribution

_NORMAL: Final = NormalDist()
_HALVINGS: Final = 40
_KEPT_MAX: Final = 1_024


@lru_cache(_KEPT_MAX)
def stall_quantile(osl: LengthDistribution, share: float) -> float:
    """By how many standard deviations of a single token at most a ``share`` (0..1) of such outputs is above the mean.

    0 up to a share of one half, which the mean keeps.
    """
    if share <= 0.5:  # noqa: PLR2004 - the median is the mean
        return 0.0
    low, high = 0.0, _NORMAL.inv_cdf(share)  # outputs of one token
    roots = [sqrt(max(tokens, 1.0)) for tokens in osl.tokens]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        within = fsum(part * _NORMAL.cdf(middle * root) for root, part in zip(roots, osl.shares, strict=True))
        low, high = (middle, high) if within < share else (low, middle)
    return high
