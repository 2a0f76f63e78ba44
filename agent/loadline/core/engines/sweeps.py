"""Measured sweeps of an engine: prefill over prompt lengths, decode over KV usage and context.

In files, the fields have the names of Dynamo's profiler. Implausible points are refused here, for all sources.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Annotated, Final

from msgspec import Meta, Struct

POINTS_MIN: Final = 2
POINTS_MAX: Final = 100_000
"""Largest number of points; a profiler measures a few dozen."""

_VALUE_MIN: Final = 1e-6
_VALUE_MAX: Final = 1e12
"""Bounds of plausible values in any unit, which keep computations finite."""
_PROFILE_AGAIN: Final = "Profile the engine again"
_REMOVE_POINT: Final = "Profile the engine again, or take the point out of all keys"

Points = Annotated[tuple[float, ...], Meta(max_length=POINTS_MAX)]


class PrefillSweep(
    Struct,
    frozen=True,
    cache_hash=True,
    rename={
        "isl_tokens": "prefill_isl",
        "ttft_ms": "prefill_ttft",
        "tokens_per_s_per_gpu": "prefill_thpt_per_gpu",
    },
):
    """Prefill of single prompts, by ascending length.

    Raises:
        ValueError: A point is implausible; the text names key, point and remedy.
    """

    isl_tokens: Points
    ttft_ms: Points
    tokens_per_s_per_gpu: Points

    def __post_init__(self) -> None:
        keys = {
            "prefill_isl": self.isl_tokens,
            "prefill_ttft": self.ttft_ms,
            "prefill_thpt_per_gpu": self.tokens_per_s_per_gpu,
        }
        _check_numbers(keys)
        _check_lengths(keys)
        _check_above_zero(keys, *keys)
        _check_rising("prefill_isl", self.isl_tokens, range(len(self.isl_tokens)))

    def bounded_ttft_ms(self) -> tuple[float, ...]:
        """Return the TTFT, made non-decreasing in the length.

        A point that is slower than a longer prompt is an outlier; the time of the longer prompt bounds it.
        """
        return tuple(accumulate(reversed(self.ttft_ms), min))[::-1]

    def pass_overhead_ms(self) -> float:
        """Return the fixed time of a pass: the intercept of the first two points, at least 0."""
        isl, ttft = self.isl_tokens, self.bounded_ttft_ms()
        return max(ttft[0] - isl[0] * (ttft[1] - ttft[0]) / (isl[1] - isl[0]), 0.0)


class DecodeSweep(
    Struct,
    frozen=True,
    cache_hash=True,
    rename={
        "kv_usage": "x_kv_usage",
        "context_tokens": "y_context_length",
        "itl_ms": "z_itl",
        "tokens_per_s_per_gpu": "z_thpt_per_gpu",
    },
):
    """Decode of batches of equal requests, by KV usage (0..1) and context.

    KV usage ascends among the points of one context.

    Raises:
        ValueError: A point is implausible; the text names key, point and remedy.
    """

    kv_usage: Points
    context_tokens: Points
    itl_ms: Points
    tokens_per_s_per_gpu: Points
    max_kv_tokens: float

    def __post_init__(self) -> None:
        keys = {
            "x_kv_usage": self.kv_usage,
            "y_context_length": self.context_tokens,
            "z_itl": self.itl_ms,
            "z_thpt_per_gpu": self.tokens_per_s_per_gpu,
        }
        whole = {**keys, "max_kv_tokens": (self.max_kv_tokens,)}
        _check_numbers(whole)
        _check_lengths(keys)
        _check_above_zero(whole, "y_context_length", "z_itl", "z_thpt_per_gpu", "max_kv_tokens")
        for place, usage in enumerate(self.kv_usage):
            if usage > 1.0:
                raise ValueError(
                    f"point {place + 1} of key 'x_kv_usage' is {usage}: more than the whole cache. "
                    "Write the fraction of the cache in use, 0 to 1."
                )
        for places in self.rows().values():
            _check_rising("x_kv_usage", [self.kv_usage[place] for place in places], places)

    def rows(self) -> dict[float, list[int]]:
        """Return the indexes of the points of each context, by ascending context."""
        places = sorted(range(len(self.context_tokens)), key=self._context)
        return {context: list(group) for context, group in groupby(places, self._context)}

    @property
    def _context(self) -> Callable[[int], float]:
        return self.context_tokens.__getitem__


def _check_numbers(keys: dict[str, tuple[float, ...]]) -> None:
    for key, values in keys.items():
        if not values:
            raise ValueError(f"key {key!r} is empty. {_PROFILE_AGAIN}.")
        for place, value in enumerate(values):
            if not 0.0 <= value <= _VALUE_MAX:
                raise ValueError(
                    f"point {place + 1} of key {key!r} is {value}: not finite, or not within 0 and {_VALUE_MAX:g}. "
                    f"{_REMOVE_POINT}."
                )


def _check_lengths(keys: dict[str, tuple[float, ...]]) -> None:
    sizes = {key: len(values) for key, values in keys.items()}
    if len(set(sizes.values())) > 1 or min(sizes.values()) < POINTS_MIN:
        found = ", ".join(f"{key!r} has {size}" for key, size in sizes.items())
        raise ValueError(f"{found}: they need equally many points, at least {POINTS_MIN}. {_PROFILE_AGAIN}.")


def _check_above_zero(keys: dict[str, tuple[float, ...]], *named: str) -> None:
    for key in named:
        for place, value in enumerate(keys[key]):
            if value < _VALUE_MIN:
                raise ValueError(
                    f"point {place + 1} of key {key!r} is {value:g}: below the minimum of {_VALUE_MIN:g}. "
                    f"{_PROFILE_AGAIN}."
                )


def _check_rising(key: str, values: Sequence[float], places: Sequence[int]) -> None:
    for place, (before, value) in zip(places[1:], pairwise(values), strict=True):
        if value <= before:
            raise ValueError(
                f"point {place + 1} of key {key!r} is {value} after {before}: it must rise. "
                "Sort the points, all keys alike, or profile the engine again."
            )
