"""What a pool is kept to whatever its planner says: the rails slow no one down on the way there."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.reasons import ReasonCode

_NO_MOST: Final = 2**31


class Bound(Struct, frozen=True):
    """The counts that a pool is kept between, and why."""

    code: ReasonCode
    least: int = 0
    most: int = _NO_MOST
    numbers: dict[str, float] = {}
    """For the sentence of the code."""


NO_BOUNDS: Final[Mapping[str, Bound]] = MappingProxyType({})
