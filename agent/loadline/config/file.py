"""Loading of TOML files and environment variables into Structs. Errors name the place, the value and the remedy."""

import functools
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, inspect

from loadline.config.engines import resolve_paths
from loadline.config.knobs import Config
from loadline.config.layers import LayeredConfig, merge_layers, origin_place
from loadline.config.plugins import discover, unknown_planner
from loadline.config.regular_file import open_regular, os_error_text
from loadline.config.renamed import remedy_for
from loadline.config.schema import config_table, file_schema
from loadline.config.secrets import redacted
from loadline.errors import ConfigError

FILE_BYTES_MAX: Final = 1_048_576
ENVIRONMENT_PREFIX: Final = "LOADLINE__"
_INTEGER_MAX: Final = 2**53
"""Largest integer up to which all integers are exact in every JSON reader."""
_PATTERNS: Final = {
    r"^[^\x00-\x1f\x7f]+$": " without control characters",
    r"^[A-Za-z0-9_.-]+$": " of letters, digits, dots, - and _",
    r"^[A-Za-z0-9_-]+$": " of letters, digits, - and _",
}
# Our deepest key has 4 parts. The parser's memory grows with their square: 20,000 parts take 1.6 GB.
_KEY_PARTS_MAX: Final = 32
_KEY_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_LONG_KEY: Final = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_KEY_PART}[ \t]*\.[ \t]*){{{_KEY_PARTS_MAX}}}")
S = TypeVar("S", bound=Struct)
_NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read a configuration and apply the ``LOADLINE__<SECTION>__<KEY>`` variables.

    Paths of profiles are relative to the file.

    Raises:
        ConfigError: The file cannot be read, or a value in it or in a variable is invalid.
    """
    return resolve_paths(parse(_read(path), str(path), environ), path.parent)


def parse(text: str, name: str, environ: Mapping[str, str] = _NO_VARIABLES) -> Config:
    """Parse a configuration from TOML text; errors refer to it as ``name``.

    Raises:
        ConfigError: A value in it or in a variable is invalid.
    """
    discover()
    table = _table(text, name)
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX):
            _override(table, variable, environ[variable])
    merging, origins = merge_layers(table)
    try:
        _check(merging, file_schema(), "")
    except ConfigError as error:
        raise ConfigError(origin_place(error.place, origins), error.problem, error.remedy) from error
    config = msgspec.convert(config_table(merging), Config)
    return LayeredConfig(**msgspec.structs.asdict(config), origins=origins) if origins else config


def load_as(kind: type[S], path: Path) -> S:
    """Read a TOML file into a Struct.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    return checked(read_table(path), kind)


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: It cannot be read.
    """
    return _table(_read(path), str(path))


def _read(path: Path) -> str:
    try:
        with open_regular(path) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            str(path), f"cannot be read: {os_error_text(error)}", "Give the path of a TOML file."
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(str(path), f"is larger than {FILE_BYTES_MAX} bytes", "Give the path of a TOML file.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}", "is not UTF-8", "Save the file as UTF-8.") from error


def _table(text: str, name: str) -> dict[str, Any]:
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError(f"{name}, line {line}", f"has a key of more than {_KEY_PARTS_MAX} parts", "Shorten the key.")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{name}, line {place[1]}, column {place[2]}" if place else f"{name}, line {len(text.splitlines())}"
        problem = str(error).partition(" (at ")[0]
        raise ConfigError(
            where, f"is not TOML: {problem}", "Correct the line; https://toml.io describes the format."
        ) from error
    except RecursionError as error:
        raise ConfigError(name, "is nested too deeply", "Write a flat file of sections and keys.") from error


def checked(table: dict[str, Any], kind: type[S]) -> S:
    """Convert a table to a Struct.

    Raises:
        ConfigError: A key is unknown or a value is invalid; its place is the key.
    """
    _check(table, kind, "")
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


def _check(table: dict[str, Any], kind: type[Struct], place: str) -> None:
    """Check a table key by key, so that an error can name the key."""
    fields = fields_of(kind)
    types = _annotations_of(kind)
    for key, value in table.items():
        if key not in fields:
            if "planner" in fields and (key == table.get("planner") or key in discover()):
                raise ConfigError(f"{place}planner", *unknown_planner(key))
            raise ConfigError(f"{place}{key}", "is not a known key here", remedy_for(key, fields, place))
        _check_value(value, fields[key], types[key], f"{place}{key}")
    for field in fields.values():
        if field.required and field.name not in table:
            raise ConfigError(f"{place}{field.name}", "is missing", f"Write {accepted_values(field.type)}.")


def _check_value(value: Any, field: inspect.Field, annotation: Any, place: str) -> None:
    info = unwrap(field.type)
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        _check(value, info.cls, f"{place}.")
        _check_whole(value, info.cls, place)
        return
    _check_elements(value, info, place)
    exact = not isinstance(value, int | float) or (math.isfinite(value) and abs(value) <= _INTEGER_MAX)
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        if isinstance(info, inspect.DictType) and isinstance(value, dict):
            _check_entries(value, info, annotation, place)
        raise ConfigError(place, f"is {_shown(place, value)}", f"Write {accepted_values(field.type)}.") from error
    if not exact:
        raise ConfigError(
            place, f"is {_shown(place, value)}", f"Write {accepted_values(field.type)}, finite and at most 2^53."
        )


def _check_elements(value: Any, info: inspect.Type, place: str) -> None:
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
            _check(one, kind.cls, f"{place}{name}.")


def _check_entries(value: dict[str, Any], info: inspect.DictType, annotation: Any, place: str) -> None:
    """Check the entries of a table of names, so that an error can name the entry."""
    for name, one in value.items():
        try:
            msgspec.convert({name: one}, annotation)
        except msgspec.ValidationError as error:
            here = f"{place}.{name}"
            raise ConfigError(here, f"is {_shown(here, one)}", f"Write {accepted_values(info.value_type)}.") from error


def _check_whole(value: dict[str, Any], kind: type[Struct], place: str) -> None:
    """Check a Struct as a whole; its own error message is the problem, a colon and the remedy."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, remedy = str(error).partition(": ")
        raise ConfigError(place, problem, f"{remedy[:1].upper()}{remedy[1:]}.") from error


def _shown(place: str, value: Any) -> str:
    return redacted(place, repr(value) if not isinstance(value, bool) else str(value).lower())


def _override(raw: dict[str, Any], variable: str, text: str) -> None:
    """Set the key that a variable names: ``LOADLINE__NATS__SERVERS`` is ``servers`` in ``[nats]``."""
    table, fields, path = raw, fields_of(file_schema()), variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
    for depth, part in enumerate(path):
        if part not in fields:
            remedy = remedy_for(part, fields, "".join(f"{section}." for section in path[:depth]))
            raise ConfigError(f"environment variable {variable}", f"names no key: {part}", remedy)
        info = unwrap(fields[part].type)
        if depth == len(path) - 1:
            table[part] = _environment_value(text, info)
        elif isinstance(info, inspect.StructType):
            table = table.setdefault(part, {})
            fields = fields_of(info.cls)
            if not isinstance(table, dict):
                raise ConfigError(part, f"is {_shown(part, table)}", "Write a table.")
        else:
            remedy = f"Set {ENVIRONMENT_PREFIX}{'__'.join(path[: depth + 1]).upper()} to the whole TOML value."
            raise ConfigError(
                f"environment variable {variable}", f"addresses a key below {part}, which is not a section", remedy
            )


def _environment_value(text: str, info: inspect.Type) -> Any:
    """Parse the text as a TOML value; return plain text as it is, without quotes."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = document["value"] if document.keys() == {"value"} else text
    return text if isinstance(info, inspect.StrType) and not isinstance(value, str) else value
