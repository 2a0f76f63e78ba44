"""Values of planners from other packages: numbers of NumPy are converted, what no snapshot can hold is refused."""

from collections.abc import Set as AbstractSet
from math import isfinite
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.planning.planner import Planner
from loadline.core.vocabulary.reasons import Reason, Recommendation, RoleDemand
from loadline.core.vocabulary.scalars import COUNT_MAX

StructT = TypeVar("StructT", bound=Struct)


def plain_recommendation(found: Any, pools: AbstractSet[str]) -> Recommendation:
    """Return the recommendation of a planner for these pools, with plain numbers; demands are left out if not finite.

    Raises:
        TypeError: It is none, or holds an object that cannot be encoded.
        ValueError: A field has another type, a number is not finite, a reason lacks a number of its sentence, or a pool
            or a count is impossible.
    """
    if not isinstance(found, Recommendation):
        raise TypeError(f"plan() returned {type(found).__name__}; it must return a Recommendation")
    plain = plain_copy(replace(found, demands=tuple(filter(_is_finite, found.demands))), Recommendation)
    unknown = sorted({*plain.targets, *plain.victims, *plain.unneeded, *plain.lasting} - pools)
    if unknown:
        raise ValueError(f"plan() names pool {unknown[0]!r}; the pools are {', '.join(sorted(pools))}")
    for says, counts in (
        ("recommends {} workers for", plain.targets),
        ("names {} unneeded workers of", plain.unneeded),
        ("names {} lasting workers of", plain.lasting),
    ):
        for pool, count in counts.items():
            if not 0 <= count <= COUNT_MAX:
                raise ValueError(f"plan() {says.format(count)} {pool}; a count is 0 to {COUNT_MAX}")
    for reason in plain.reasons:
        _check_sentence(reason)
    return plain


def _is_finite(need: RoleDemand) -> bool:
    """Return True if an allocation can use a demand; without one, it uses the targets of the pools."""
    return all(map(isfinite, (need.demand, *need.capacities.values())))


def _check_sentence(reason: Reason) -> None:
    try:
        reason.sentence()
    except KeyError as missing:
        raise ValueError(f"plan() gives reason {reason.code} without its number {missing}") from missing


def plain_copy(found: object, kind: type[StructT]) -> StructT:
    """Return a copy of what a planner returned, with plain numbers.

    Raises:
        TypeError: It holds an object that cannot be encoded.
        ValueError: It is of another type, or a number is not finite.
    """
    return msgspec.json.decode(encode_plain(found), type=kind)


def state_fault(planner: Planner) -> Exception | None:
    """Return why a planner cannot be encoded, as for a snapshot; None if it can."""
    try:
        encode_plain(planner)
    except Exception as fault:  # noqa: BLE001 - its fields may be of any class
        return fault
    return None


def plain_number(value: Any) -> bool | int | float:
    """Return a number or truth value of NumPy as one of Python, for encoders.

    Raises:
        TypeError: It is neither.
    """
    is_scalar = hasattr(value, "item") and not hasattr(value, "__len__")  # an import of NumPy would take 12 MB
    plain = value.item() if is_scalar else value
    if isinstance(plain, int | float):
        return plain
    raise TypeError(f"a planner returned or keeps a value of type {type(value).__name__}, which no snapshot can hold")


encode_plain: Final = msgspec.json.Encoder(enc_hook=plain_number).encode
"""Encoder of what a planner returns or keeps, to JSON, which has neither NaN nor infinity."""
