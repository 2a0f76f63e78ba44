"""Checking of TOML tables against Structs. Errors name the place, the value and the remedy."""

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, inspect

from loadline.errors import ConfigError
from loadline.toml.lines import FileLines, key_lines
from loadline.toml.reading import parse_table, read_text
from loadline.toml.secrets import redacted

Table = dict[str, Any]
Fields = Mapping[str, inspect.Field]
UnknownKey = Callable[[str, Table, Fields, str], ConfigError]
"""Maker of the error of an unknown key, from the key, its table, the known fields and the path of the table."""
S = TypeVar("S", bound=Struct)
_INTEGER_MAX: Final = 2**53
"""Largest integer up to which all integers are exact in every JSON reader."""
_SUGGESTIONS_MAX: Final = 3
_INDEX: Final = re.compile(r"\[\d+\]")
_PATTERNS: Final = {
    r"^[^\x00-\x1f\x7f]+\Z": " without control characters",
    r"^[^\x00-\x1f\x7f]*\Z": " without control characters",
    r"^[^\x00]*\Z": " without a NUL",
    r"^[A-Za-z0-9_.-]+\Z": " of letters, digits, dots, - and _",
    r"^[A-Za-z0-9_-]+\Z": " of letters, digits, - and _",
}


def unknown_key(key: str, _table: Table, known: Fields, section: str) -> ConfigError:
    """Return an error that names the section of the key, or suggests the most similar key."""
    return ConfigError(f"{section}{key}", "is not a known key here", misplaced(key, known) or did_you_mean(key, known))


def misplaced(key: str, known: Fields) -> str:
    """Return the remedy for a key that belongs to a section of this table; empty if it does not."""
    sections = [name for name, field in known.items() if key in _fields_below(field.type)]
    return f"It is a key of {_listed(sections)}." if 0 < len(sections) <= _SUGGESTIONS_MAX else ""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return the remedy for an unknown word: the known ones that contain it, the most similar one, or all of them."""
    longer = [one for one in sorted(known) if f"_{word}_" in f"_{one}_"]
    close = longer if 0 < len(longer) <= _SUGGESTIONS_MAX else get_close_matches(word, known, n=1)
    return f"Did you mean {_listed(close)}?" if close else f"Known are: {', '.join(sorted(known))}."


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _fields_below(kind: inspect.Type) -> Collection[str]:
    """Return the keys of a table, or of each table of a list; none for another type."""
    info = unwrap(kind)
    inner = unwrap(info.item_type) if isinstance(info, inspect.VarTupleType) else info
    return fields_of(inner.cls) if isinstance(inner, inspect.StructType) else ()


def load_as(kind: type[S], path: Path, finish: Callable[[S], S]) -> S:
    """Read a TOML file into a Struct.

    Args:
        kind: Type of the Struct.
        path: Path of the file.
        finish: Checks values against each other and returns them as they are used; raises ConfigError.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid; it has the line of the value.
    """
    text = read_text(path)
    table, lines = parse_table(text, str(path)), FileLines(str(path), key_lines(text))
    try:
        return finish(checked(table, kind))
    except ConfigError as error:
        ConfigError.raise_all(map(lines.located, error.errors))
        raise


def checked(table: Table, kind: type[S]) -> S:
    """Convert a table to a Struct.

    Raises:
        ConfigError: A key is unknown or a value is invalid; its place is the key. It names all of them.
    """
    ConfigError.raise_all(table_errors(table, kind))
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
    above, least, most, below = map(_limit, (kind.gt, kind.ge, kind.le, kind.lt))
    if least and most:
        return f" from {least} to {most}"
    low = f"{least} or more" if least else f"above {above}" if above else ""
    high = f"at most {most}" if most else f"below {below}" if below else ""
    return ", ".join(["", *filter(None, (low, high))])


def _limit(value: float | None) -> str:
    """Return a limit as text; empty without one."""
    if value is None or isinstance(value, int):
        return "" if value is None else str(value)
    return f"{value:.10g}"


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


def table_errors(
    table: Table, kind: type[Struct], unknown: UnknownKey = unknown_key, place: str = ""
) -> Iterator[ConfigError]:
    """Check a table key by key, and yield an error for each key that is unknown or missing, and each invalid value.

    Args:
        table: The table.
        kind: Struct that it must fit.
        unknown: Maker of the error of an unknown key.
        place: Path of the table with a final dot; empty for the top level.
    """
    fields = fields_of(kind)
    types = _annotations_of(kind)
    for key, value in table.items():
        if key not in fields:
            yield unknown(key, table, fields, place)
        else:
            yield from _value_errors(value, fields[key], types[key], unknown, f"{place}{key}")
    unknown_keys = table.keys() - fields.keys()
    for field in fields.values():
        # A misspelt key is one error, not a second one of the key that it should be.
        if field.required and field.name not in table and not get_close_matches(field.name, unknown_keys):
            yield ConfigError(f"{place}{field.name}", "is missing", _remedy(f"{place}{field.name}", field.type))


def _value_errors(
    value: Any, field: inspect.Field, annotation: Any, unknown: UnknownKey, place: str
) -> Iterator[ConfigError]:
    info = unwrap(field.type)
    found = list(_inner_errors(value, info, unknown, place))
    if found:
        yield from found
        return
    exact = not isinstance(value, int | float) or abs(value) <= _INTEGER_MAX  # false for NaN, too
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        if isinstance(info, inspect.StructType) and isinstance(value, dict):
            # Its own error message is the problem, a colon and the remedy.
            problem, _, remedy = str(error).partition(": ")
            yield ConfigError(place, problem, f"{remedy[:1].upper()}{remedy[1:]}.")
            return
        wrong, accepted = {place: value}, field.type
        if isinstance(info, inspect.DictType) and isinstance(value, dict):
            entries = {f"{place}.{name}": one for name, one in value.items() if not _fits({name: one}, annotation)}
            wrong, accepted = (entries, info.value_type) if entries else (wrong, accepted)
        for here, one in wrong.items():
            yield ConfigError(here, f"is {shown(here, one)}", _remedy(here, accepted))
    else:
        if not exact:
            remedy = f"Write {accepted_values(field.type)}, finite and at most 2^53."
            yield ConfigError(place, f"is {shown(place, value)}", remedy)


def _fits(value: Any, annotation: Any) -> bool:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


def _inner_errors(value: Any, info: inspect.Type, unknown: UnknownKey, place: str) -> Iterator[ConfigError]:
    """Yield the errors of a table, or of the elements of a list or of a table of names."""
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        yield from table_errors(value, info.cls, unknown, f"{place}.")
    elif isinstance(info, inspect.VarTupleType) and isinstance(value, list):
        if info.max_length is not None and len(value) > info.max_length:
            yield ConfigError(place, f"has {len(value)} entries", f"Write {accepted_values(info)}.")
            return
        elements = {f"{place}[{index}]": one for index, one in enumerate(value)}
        yield from _element_errors(elements, info.item_type, unknown)
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        elements = {f"{place}.{name}": one for name, one in value.items()}
        yield from _element_errors(elements, info.value_type, unknown)


def _element_errors(elements: Mapping[str, Any], kind: inspect.Type, unknown: UnknownKey) -> Iterator[ConfigError]:
    """Yield the errors of elements by their places, such as those of tables without a required key."""
    struct = unwrap(kind)
    if not isinstance(struct, inspect.StructType):
        return
    for place, one in elements.items():
        if isinstance(one, dict):
            yield from table_errors(one, struct.cls, unknown, f"{place}.")
        else:
            yield ConfigError(place, f"is {shown(place, one)}", f"Write {accepted_values(kind)}.")


def _remedy(place: str, kind: inspect.Type) -> str:
    """Return the accepted values of a key, for a list of tables with the header of each."""
    listed = isinstance(unwrap(kind), inspect.VarTupleType) and _fields_below(kind)
    header = f", headed [[{_INDEX.sub('', place)}]]" if listed else ""
    return f"Write {accepted_values(kind)}{header}."


def shown(place: str, value: Any) -> str:
    """Return a value for an error, redacted if it may contain a login."""
    if isinstance(value, dict):
        return "a table"
    return redacted(place, repr(value) if not isinstance(value, bool) else str(value).lower())
