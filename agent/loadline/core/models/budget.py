"""Counts of one or two pools within a band of GPUs.

The arithmetic is that of Dynamo's planners. The ceiling is hard. The floor is relaxed by the widest worker where there
is a ceiling too: steps of unequal width cannot meet every total. Shares stay in proportion both ways.
"""

from typing import Final

from msgspec import Struct

INFEASIBLE: Final = 0
"""The count of every pool when not even the least counts fit below the ceiling."""


class Share(Struct, frozen=True):
    """A pool's claim on the GPUs."""

    replicas: int
    gpus: int
    """Of one worker."""
    least: int = 1
    """Replicas that it always gets."""

    @property
    def total(self) -> int:
        """GPUs in all."""
        return self.replicas * self.gpus


class Band(Struct, frozen=True):
    """The GPUs that all pools together may have; None: no such bound."""

    floor: int | None = None
    ceiling: int | None = None

    def tolerance(self, *widths: int) -> int:
        """GPUs by which the floor may be missed: the width of the widest worker, where there is a ceiling too."""
        return widest(*widths) if self.floor is not None and self.ceiling is not None else 0

    def above(self, gpus: int) -> bool:
        """Whether that many are too many."""
        return self.ceiling is not None and gpus > self.ceiling

    def holds(self, gpus: int, tolerance: int = 0) -> bool:
        """Whether that many are neither too many nor too few."""
        return not self.above(gpus) and (self.floor is None or gpus >= self.floor - tolerance)

    def full(self, gpus: int) -> bool:
        """Whether there is no room for one more."""
        return self.ceiling is not None and gpus >= self.ceiling

    def spent(self, gpus: int) -> bool:
        """Whether there is none to give away."""
        return self.floor is not None and gpus <= self.floor


def widest(*widths: int) -> int:
    """The widest worker; widths that are not above 0 are unknown."""
    return max((width for width in widths if width > 0), default=0)


def fit_pair(prefill: Share, decode: Share, band: Band) -> tuple[int, int]:
    """Both counts, shrunk below the ceiling or grown to the floor in proportion.

    Returns:
        The counts as they are where a width is unknown, the band holds them, or the floor cannot be met below the
        ceiling; ``INFEASIBLE`` for both where not even the least counts fit below the ceiling.
    """
    asked = (prefill.replicas, decode.replicas)
    if prefill.gpus <= 0 or decode.gpus <= 0:
        return asked
    gpus = prefill.total + decode.total
    if band.ceiling is not None and gpus > band.ceiling:
        return _shrunk(prefill, decode, gpus, band.ceiling)
    if band.floor is None or band.holds(gpus, band.tolerance(prefill.gpus, decode.gpus)):
        return asked
    grown = _grown(prefill, decode, gpus, band.floor, band.ceiling)
    return asked if band.above(grown[0] * prefill.gpus + grown[1] * decode.gpus) else grown


def fit_single(pool: Share, band: Band) -> int:
    """The count of the only pool; see ``fit_pair``."""
    if pool.gpus <= 0:
        return pool.replicas
    if band.ceiling is not None and pool.total > band.ceiling:
        return INFEASIBLE if pool.least * pool.gpus > band.ceiling else max(pool.least, band.ceiling // pool.gpus)
    if band.floor is None or band.holds(pool.total, band.tolerance(pool.gpus)):
        return pool.replicas
    grown = max(pool.least, ceil_div(band.floor, pool.gpus))
    # The floor is missed rather than the ceiling exceeded.
    fits = grown if band.ceiling is None else min(grown, band.ceiling // pool.gpus)
    return fits if fits >= max(pool.least, pool.replicas) else pool.replicas


def ceil_div(numerator: int, denominator: int) -> int:
    """Quotient, rounded up."""
    return -(-numerator // denominator)


def _shrunk(prefill: Share, decode: Share, gpus: int, ceiling: int) -> tuple[int, int]:
    if prefill.least * prefill.gpus + decode.least * decode.gpus > ceiling:
        return INFEASIBLE, INFEASIBLE
    most = (ceiling - decode.least * decode.gpus) // prefill.gpus
    first = max(prefill.least, min(most, prefill.replicas * ceiling // gpus))
    return first, max(decode.least, (ceiling - first * prefill.gpus) // decode.gpus)


def _grown(prefill: Share, decode: Share, gpus: int, least: int, ceiling: int | None) -> tuple[int, int]:
    if gpus <= 0:
        first = max(prefill.least, ceil_div(least, 2 * prefill.gpus))
    else:
        first = max(prefill.least, ceil_div(prefill.replicas * least, gpus))
    rest = max(0, least - first * prefill.gpus)
    second = max(decode.least, ceil_div(rest, decode.gpus))
    if second >= decode.replicas:
        return first, second
    # The wide steps of prefill reach the floor alone: that is no reason to take from decode.
    second = decode.replicas
    if ceiling is not None:
        first = min(first, (ceiling - second * decode.gpus) // prefill.gpus)
    return max(prefill.replicas, first), second
