"""Comparison of answers with expected outputs, by the matchers that the vector files describe."""

from collections.abc import Iterable
from typing import Any

BOUNDS = {"min", "max", "gt", "lt", "not"}
ONE_OF = "_one_of"


def difference(expected: Any, got: Any, tolerance: float, place: str = "out", *, near_ms: float = 0.0) -> str | None:
    """Describe the first difference between an answer and the expected output; None if they match.

    Numbers compare with a relative tolerance, times in ms (keys in ``_ms``) also by ``near_ms``, dicts by the expected
    keys alone, lists item by item. A number must lie within a dict of bounds. The key ``x_one_of`` lists the possible
    values of ``x``.
    """
    if isinstance(expected, dict) and not (expected and BOUNDS.issuperset(expected)):
        if not isinstance(got, dict):
            return f"{place}: {got!r} is no object"
        alike = {key: one for key, one in expected.items() if not key.endswith(ONE_OF)}
        members = ((one, got.get(key, "missing"), tolerance, f"{place}.{key}") for key, one in alike.items())
        choices = ((key, many) for key, many in expected.items() if key.endswith(ONE_OF))
        others = (_none_of(many, got, tolerance, place, key, near_ms=near_ms) for key, many in choices)
        return _first(members, near_ms) or next(filter(None, others), None)
    if isinstance(expected, list):
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            return f"{place}: {got!r} is not {expected!r}"
        pairs = enumerate(zip(expected, got, strict=True))
        return _first(((one, other, tolerance, f"{place}[{number}]") for number, (one, other) in pairs), near_ms)
    near = near_ms if place.endswith("_ms") else 0.0
    return None if _equal(expected, got, tolerance, near) else f"{place}: {got!r} is not {expected!r}"


def _none_of(
    many: list[Any], got: dict[str, Any], tolerance: float, place: str, key: str, *, near_ms: float
) -> str | None:
    found, where = got.get(key.removesuffix(ONE_OF), "missing"), f"{place}.{key}"
    wrong = [difference(one, found, tolerance, where, near_ms=near_ms) for one in many]
    return None if None in wrong else f"{where}: {found!r} is none of {many!r}"


def _first(pairs: Iterable[tuple[Any, Any, float, str]], near_ms: float) -> str | None:
    return next((found for found in (difference(*pair, near_ms=near_ms) for pair in pairs) if found), None)


def _equal(expected: Any, got: Any, tolerance: float, near: float) -> bool:
    if isinstance(expected, dict):
        return _within(expected, got)
    if _is_number(expected) and _is_number(got):
        return bool(abs(got - expected) <= max(near, tolerance * max(abs(got), abs(expected))))
    return type(expected) is type(got) and bool(expected == got)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _within(bounds: dict[str, Any], got: Any) -> bool:
    if "not" in bounds and got == bounds["not"]:
        return False
    if not bounds.keys() - {"not"}:
        return True
    return _is_number(got) and bool(
        bounds.get("min", got) <= got <= bounds.get("max", got)
        and ("gt" not in bounds or got > bounds["gt"])
        and ("lt" not in bounds or got < bounds["lt"])
    )
