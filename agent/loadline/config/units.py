"""Warnings about times that cannot be meant in milliseconds, and were probably written in seconds."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields

from loadline.config.knobs import Config
from loadline.core.engines.profile import LinearKnobs, ObjectiveKnobs
from loadline.core.planning.planners import PLANNERS

_TTFT_MIN_MS: Final = 10.0
"""Shortest TTFT objective that can be meant: a prompt crosses network, queue and at least one pass."""
_ITL_MIN_MS: Final = 1.0
"""Shortest ITL objective that can be meant: the fastest engines reach 1,000 tokens/s for one request."""
_PASS_MIN_MS: Final = 0.5
"""Shortest iteration of one request, and pass of 1,000 tokens, that an engine can have."""
_PROMPT_TOKENS: Final = 1_000
_TIME_MAX_MS: Final = 1_000
"""A time below it is probably in seconds if it is also below this part of its default."""
_DEFAULT_PART: Final = 100


def unit_warnings(config: Config) -> Iterator[str]:
    """Yield warnings about times that are far below what can be meant."""
    for section in ("leadership", "decisions", "drain", "fleet", "allocation"):
        yield from _time_warnings(getattr(config, section), section)
    for index, model in enumerate(config.models):
        place = f"models[{index}]"
        kind = PLANNERS[model.planner]
        if model.objectives is not None:
            yield from _objective_warnings(model.objectives, f"{place}.objectives", kind.needs.objectives)
        for name, knobs in (("guardrails", model.guardrails), ("migration", model.migration), (kind.name, model.knobs)):
            yield from _time_warnings(knobs, f"{place}.{name}")
        for at, pool in enumerate(model.pools):
            here = f"{place}.pools[{at}]"
            yield from _time_warnings(pool, here)
            if pool.linear is not None:
                yield from _linear_warnings(pool.linear, f"{here}.linear")


def _time_warnings(knobs: Any, place: str) -> Iterator[str]:
    """Yield warnings about the keys of a Struct that end in ``_ms``, compared with their defaults."""
    for field in fields(knobs) if isinstance(knobs, Struct) else ():
        here, value = f"{place}.{field.name}", getattr(knobs, field.name)
        if isinstance(value, Struct):
            yield from _time_warnings(value, here)
        elif field.name.endswith("_ms") and _is_far_below(value, field.default):
            yield f"{here}: {value} ms is {_seconds(value)}. Its default is {field.default}."


def _is_far_below(value: Any, default: Any) -> bool:
    return (
        isinstance(value, int) and isinstance(default, int) and 0 < value < min(_TIME_MAX_MS, default / _DEFAULT_PART)
    )


def _objective_warnings(objectives: ObjectiveKnobs, place: str, used: frozenset[str]) -> Iterator[str]:
    for key, low_ms in (("ttft_ms", _TTFT_MIN_MS), ("itl_ms", _ITL_MIN_MS)):
        value = getattr(objectives, key)
        if key in used and value < low_ms:
            yield f"{place}.{key}: no engine answers within {value:g} ms, which is {_seconds(value)}."


def _linear_warnings(linear: LinearKnobs, place: str) -> Iterator[str]:
    for low, high, factor, what in (
        ("alpha", "beta", 1, "an iteration of one request"),
        ("gamma", "delta", _PROMPT_TOKENS, f"a pass of {_PROMPT_TOKENS:,} tokens"),
    ):
        time_ms = getattr(linear, low) + getattr(linear, high) * factor
        if 0.0 < time_ms < _PASS_MIN_MS:
            yield (
                f"{place}: {what} would take {time_ms:.3g} ms, which no engine reaches: {low} and {high} seem to be in "
                f"seconds. Write milliseconds: {low} = {getattr(linear, low) * 1_000:g}, "
                f"{high} = {getattr(linear, high) * 1_000:g}."
            )


def _seconds(value: float) -> str:
    return f"probably meant in seconds. Write milliseconds: {value * 1_000:g}"
