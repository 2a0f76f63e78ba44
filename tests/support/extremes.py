"""Random values of any type, many of them at the bounds that its decoder enforces."""

import random
from collections.abc import Mapping
from functools import cache
from math import nextafter
from typing import Any, Final

import msgspec
from msgspec import Struct, inspect

from loadline.core.vocabulary.forecasts import ForecastKnobs
from loadline.core.vocabulary.scalars import LENGTH_MIN, TOKENS_MAX
from loadline.forecast.packages import available

_INTEGER_MAX: Final = 2**53
_FLOAT_MAX: Final = 1e308
_TINY: Final = (LENGTH_MIN, 2.3e-308, 5e-324)
"""The smallest length that is accepted, the smallest normal number and the smallest of all."""
_ORDINARY_MAX: Final = 4.0
"""Ordinary numbers are powers of ten up to this one."""
_KNOWN: Final = 0.8
"""Fraction of optional values that are known, and of switches that are on."""
_FITTED_IN_SECONDS: Final = frozenset({"arima", "prophet"})


class Extremes:
    """Source of random values.

    Args:
        rng: Source of randomness.
        share: Fraction of the numbers that lie at a bound; the others are ordinary.
    """

    def __init__(self, rng: random.Random, share: float) -> None:
        self.rng = rng
        self.share = share

    def fields(self, kind: type[Struct], **fixed: object) -> dict[str, Any]:
        """Return the fields of a message, in the form before its encoding; those without a value are left out."""
        found: dict[str, Any] = {}
        for field in _fields(kind):
            value = fixed[field.name] if field.name in fixed else self.value(field.type)
            if value is not None:
                found[field.encode_name] = value
        return found

    def value(self, kind: inspect.Type) -> Any:  # noqa: PLR0911 - one line for each type
        """Return a value of a type."""
        match kind:
            case inspect.Metadata():
                return self.value(kind.type)
            case inspect.UnionType():
                known = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
                return self.value(self.rng.choice(known)) if self.rng.random() < _KNOWN else None
            case inspect.BoolType():
                return self.rng.random() < _KNOWN
            case inspect.IntType():
                return self._integer(kind.ge or 0, (kind.lt - 1) if kind.lt is not None else kind.le)
            case inspect.FloatType():
                return self._number(kind.ge or 0.0, kind.le)
            case inspect.LiteralType():
                return self.rng.choice(kind.values)
            case inspect.StrType():
                return "x" * self.rng.choice([kind.min_length or 0, kind.max_length or 1])
            case inspect.DictType():
                return {}
            case inspect.StructType(cls=cls):
                return self.histogram() if cls.__name__ == "Histogram" else self.fields(cls)
        raise TypeError(f"there are no extremes of {kind}")

    def histogram(self) -> dict[str, Any]:
        """Return a histogram with rising bounds."""
        rng, number = self.rng, self.rng.choice([1, 2, 64])
        bounds = {rng.choice([0.0, LENGTH_MIN, TOKENS_MAX, 10.0 ** rng.uniform(0.0, 7.0)]) for _ in range(number)}
        counts = [self._integer(0, 3_600_000_000) for _ in range(len(bounds) + 1)]
        return {"bounds": sorted(bounds), "counts": counts}

    def _integer(self, low: int, high: int | None) -> int:
        high = _INTEGER_MAX if high is None else high
        if self.rng.random() < self.share:
            return self.rng.choice([low, min(low + 1, high), high - 1, high])
        return max(low, min(high, int(self._ordinary())))

    def _number(self, low: float, high: float | None) -> float:
        high = _FLOAT_MAX if high is None else high
        if self.rng.random() < self.share:
            return self.rng.choice([low, low, *_TINY, nextafter(high, 0.0), high, high])
        return max(low, min(high, self._ordinary() if high > 1.0 else self.rng.random()))

    def _ordinary(self) -> float:
        return float(10.0 ** self.rng.uniform(0.0, _ORDINARY_MAX)) - 1.0


def variant(rng: random.Random, kind: type[Struct], numbers: Mapping[str, Any]) -> Any:
    """Return knobs whose switches are random, and whose numbers are the given ones or the defaults."""
    found: dict[str, Any] = {}
    for field in _fields(kind):
        inner = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
        if field.name in numbers:
            found[field.name] = numbers[field.name]
            continue
        match inner:
            case inspect.LiteralType() | inspect.BoolType():
                values = inner.values if isinstance(inner, inspect.LiteralType) else (False, True)
                quick = [one for one in values if kind is not ForecastKnobs or _is_quick(one)]
                found[field.name] = rng.choice(quick)
            case inspect.StructType(cls=cls):
                found[field.name] = variant(rng, cls, numbers)
    return msgspec.convert(found, kind)


@cache
def _fields(kind: type[Struct]) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def _is_quick(value: Any) -> bool:
    """Check that a knob of forecasts names no predictor that takes seconds."""
    return value not in _FITTED_IN_SECONDS and (not isinstance(value, str) or available(value))  # type: ignore[arg-type]
