"""Distance of a mean latency from its objective, so that enough of the requests meet it."""

from functools import lru_cache
from statistics import NormalDist
from typing import Final

from loadline.core.engines.profile import ObjectiveKnobs

ATTAINMENT: Final = 0.95
"""Fraction of the requests that meet the objectives if a model does not say."""
_DEVIATIONS: Final = 2.0
"""Standard deviations between the mean of a load and the objective that ``ATTAINMENT`` takes: 1.64 of normal latencies,
which vary less than those of engines."""
_ITL_SHARE: Final = 0.8
"""Mean ITL of a decode pool of whose requests 95 % meet the objective, as a part of it."""


def attainment_of(objectives: ObjectiveKnobs) -> float:
    """Return the fraction (0..1) of requests that must meet the objectives; 0: only the mean latencies must."""
    return ATTAINMENT if objectives.attainment is None else objectives.attainment


def deviations(objectives: ObjectiveKnobs) -> float:
    """Return the distance of the mean of a latency from its objective, in standard deviations; at least 0."""
    return _DEVIATIONS * margin_ratio(objectives)


def margin_ratio(objectives: ObjectiveKnobs) -> float:
    """Return the ratio of the deviations that an attainment takes to those that ``ATTAINMENT`` takes."""
    return _margin_ratio(attainment_of(objectives))


def itl_share(objectives: ObjectiveKnobs) -> float:
    """Return the part of the objective that the mean ITL of a decode pool may be."""
    return 1.0 - (1.0 - _ITL_SHARE) * margin_ratio(objectives)


@lru_cache(maxsize=64)
def _margin_ratio(attainment: float) -> float:
    normal = NormalDist()
    return max(0.0, normal.inv_cdf(attainment) / normal.inv_cdf(ATTAINMENT)) if attainment > 0.0 else 0.0
