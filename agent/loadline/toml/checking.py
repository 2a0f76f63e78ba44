"""Checking of TOML tables against Structs. Errors name the place, the value and the remedy."""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, inspect

from loadline.errors import ConfigError
from loadline.toml.reading import read_table
from loadline.toml.secrets import redacted

Table = dict[str, Any]
UnknownKey = Callable[[str, Table, Collection[str], str], ConfigError]
"""Maker of the error of an unknown key, from the key, its table, the known keys and the path of the table."""
S = TypeVar("S", bound=Struct)
_INTEGER_MAX: Final = 2**53
"""Largest integer up to which all integers are exact in every JSON reader."""
_PATTERNS: Final = {
    r"^[^\x00-\x1f\x7f]+$": " without control characters",
    r"^[A-Za-z0-9_.-]+$": " of letters, digits, dots, - and _",
    r"^[A-Za-z0-9_-]+$": " of letters, digits, - and _",
}


def unknown_key(key: str, _table: Table, known: Collection[str], section: str) -> ConfigError:
    """Return an error that suggests the most similar key."""
    return ConfigError(f"{section}{key}", "is not a known key here", did_you_mean(key, known))


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return the remedy for an unknown word: the most similar known one, or the list of all known ones."""
    close = get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(sorted(known))}."


def load_as(kind: type[S], path: Path) -> S:
    """Read a TOML file into a Struct.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    return checked(read_table(path), kind)


def checked(table: Table, kind: type[S]) -> S:
    """Convert a table to a Struct.

    Raises:
        ConfigError: A key is unknown or a value is invalid; its place is the key.
    """
    check(table, kind)
    return msgspec.convert(table, kind)


def accepted_values(kind: inspect.Type) -> str:
    """Describe the accepted values of a type, such as ``a whole number from 1 to 4096``."""
    match kind:
        case inspect.Metadata():
            text = accepted_values(kind.type)
        case inspect.UnionType():
            text = accepted_values(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.BoolType():
            text = "true or false"
        case inspect.LiteralType():
            text = "one of " + ", ".join(str(value) or '""' for value in kind.values)
        case inspect.IntType():
            text = "a whole number" + _span(kind)
        case inspect.FloatType():
            text = "a number" + _span(kind)
        case inspect.StrType():
            text = "text" + _shape(kind)
        case inspect.VarTupleType():
            most = "or more" if kind.max_length is None else f"to {kind.max_length}"
            text = f"a list of {kind.min_length or 0} {most}, each {accepted_values(kind.item_type)}"
        case inspect.DictType():
            text = f"a table of names, each with {accepted_values(kind.value_type)}"
        case _:
            text = "a table"
    return text


def _span(kind: inspect.IntType | inspect.FloatType) -> str:
    low = f"{kind.ge:.10g} or more" if kind.ge is not None else f"above {kind.gt:.10g}" if kind.gt is not None else ""
    high = f"at most {kind.le:.10g}" if kind.le is not None else f"below {kind.lt:.10g}" if kind.lt is not None else ""
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge:.10g} to {kind.le:.10g}"
    return ", ".join(["", *filter(None, (low, high))])


def _shape(kind: inspect.StrType) -> str:
    length = f" of {kind.min_length or 0} to {kind.max_length} characters" if kind.max_length else ""
    return length + (_PATTERNS.get(kind.pattern) or f" that matches {kind.pattern}" if kind.pattern else "")


def unwrap(kind: inspect.Type) -> inspect.Type:
    """Strip the description and the optional None from a type."""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        else:
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind


@functools.cache
def fields_of(kind: type[Struct]) -> Mapping[str, inspect.Field]:
    """Return the fields of a Struct by name, with their types."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)  # noqa: S101 - a Struct's info is a StructType
    return {field.name: field for field in info.fields}


@functools.cache
def _annotations_of(kind: type[Struct]) -> Mapping[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def check(table: Table, kind: type[Struct], unknown: UnknownKey = unknown_key, place: str = "") -> None:
    """Check a table key by key, so that an error can name the key.

    Args:
        table: The table.
        kind: Struct that it must fit.
        unknown: Maker of the error of an unknown key.
        place: Path of the table with a final dot; empty for the top level.

    Raises:
        ConfigError: A key is unknown or missing, or a value is invalid.
    """
    fields = fields_of(kind)
    types = _annotations_of(kind)
    for key, value in table.items():
        if key not in fields:
            raise unknown(key, table, fields, place)
        _check_value(value, fields[key], types[key], unknown, f"{place}{key}")
    for field in fields.values():
        if field.required and field.name not in table:
            raise ConfigError(f"{place}{field.name}", "is missing", f"Write {accepted_values(field.type)}.")


def _check_value(value: Any, field: inspect.Field, annotation: Any, unknown: UnknownKey, place: str) -> None:
    info = unwrap(field.type)
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        check(value, info.cls, unknown, f"{place}.")
        _check_whole(value, info.cls, place)
        return
    _check_elements(value, info, unknown, place)
    exact = not isinstance(value, int | float) or (math.isfinite(value) and abs(value) <= _INTEGER_MAX)
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        if isinstance(info, inspect.DictType) and isinstance(value, dict):
            _check_entries(value, info, annotation, place)
        raise ConfigError(place, f"is {shown(place, value)}", f"Write {accepted_values(field.type)}.") from error
    if not exact:
        raise ConfigError(
            place, f"is {shown(place, value)}", f"Write {accepted_values(field.type)}, finite and at most 2^53."
        )


def _check_elements(value: Any, info: inspect.Type, unknown: UnknownKey, place: str) -> None:
    """Check the Structs in a list or in a table of names."""
    if isinstance(info, inspect.VarTupleType) and isinstance(value, list):
        if info.max_length is not None and len(value) > info.max_length:
            raise ConfigError(place, f"has {len(value)} entries", f"Write {accepted_values(info)}.")
        element, named = info.item_type, {f"[{index}]": one for index, one in enumerate(value)}
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        element, named = info.value_type, {f".{name}": one for name, one in value.items()}
    else:
        return
    kind = unwrap(element)
    if isinstance(kind, inspect.StructType) and all(isinstance(one, dict) for one in named.values()):
        for name, one in named.items():
            check(one, kind.cls, unknown, f"{place}{name}.")


def _check_entries(value: Table, info: inspect.DictType, annotation: Any, place: str) -> None:
    """Check the entries of a table of names, so that an error can name the entry."""
    for name, one in value.items():
        try:
            msgspec.convert({name: one}, annotation)
        except msgspec.ValidationError as error:
            here = f"{place}.{name}"
            raise ConfigError(here, f"is {shown(here, one)}", f"Write {accepted_values(info.value_type)}.") from error


def _check_whole(value: Table, kind: type[Struct], place: str) -> None:
    """Check a Struct as a whole; its own error message is the problem, a colon and the remedy."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, remedy = str(error).partition(": ")
        raise ConfigError(place, problem, f"{remedy[:1].upper()}{remedy[1:]}.") from error


def shown(place: str, value: Any) -> str:
    """Return a value for an error, redacted if it may contain a login."""
    return redacted(place, repr(value) if not isinstance(value, bool) else str(value).lower())
