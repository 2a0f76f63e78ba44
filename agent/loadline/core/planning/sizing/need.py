"""Workers that an estimate needs."""

from math import ceil
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.reasons import Reason

ROUNDING: Final = 0.05
"""Part of a worker that is not worth another one."""


class Need(Struct, frozen=True):
    """Workers that an estimate needs, with the reason."""

    workers: float
    reason: Reason


def whole(workers: float) -> int:
    """Round up, except for a small part of a worker; at least 1."""
    return max(1, ceil(workers - ROUNDING))
