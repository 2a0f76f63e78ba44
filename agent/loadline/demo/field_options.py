"""Command-line options generated from the fields of a Struct, so that none can be forgotten."""

import argparse
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from msgspec import Struct, inspect


def add_field_options(
    parser: argparse.ArgumentParser,
    title: str,
    kind: type[Struct],
    *,
    prefix: str = "",
    without: Collection[str] = (),
) -> None:
    """Add a group with an option for each field; texts are given as they are, other values in JSON."""
    group = parser.add_argument_group(title)
    for field in _fields(kind):
        if field.encode_name in without:
            continue
        described = field.type.extra_json_schema if isinstance(field.type, inspect.Metadata) else None
        text = str((described or {}).get("description", "")) or f"sets {field.encode_name}"
        group.add_argument(
            f"--{prefix}{flag_of(field.encode_name)}",
            dest=f"{prefix}{field.encode_name}",
            type=str if _holds(field.type, inspect.StrType) else _json,
            metavar="TEXT" if _holds(field.type, inspect.StrType) else "JSON",
            help=text.replace("%", "%%"),
        )


def field_values(options: argparse.Namespace, kind: type[Struct], *, prefix: str = "") -> dict[str, Any]:
    """Return the fields that options set."""
    values = {field.encode_name: getattr(options, f"{prefix}{field.encode_name}", None) for field in _fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def flag_of(name: str) -> str:
    """Return the option of a field, without the dashes before it."""
    return name.replace("_", "-")


def number_fields(kind: type[Struct], without: Collection[str] = ()) -> dict[str, type[float]]:
    """Return the fields that hold a number, with its type."""
    kinds: dict[type[inspect.Type], type[float]] = {inspect.IntType: int, inspect.FloatType: float}
    return {
        field.encode_name: number
        for field in _fields(kind)
        for held, number in kinds.items()
        if _holds(field.type, held) and field.encode_name not in without
    }


def _fields(kind: type[Struct]) -> Iterator[inspect.Field]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)  # noqa: S101 - a Struct's info is a StructType
    yield from found.fields


def _holds(kind: inspect.Type, wanted: type[inspect.Type]) -> bool:
    """Return True if values of a type are of a kind, or absent."""
    match kind:
        case inspect.Metadata(type=inner):
            return _holds(inner, wanted)
        case inspect.UnionType(types=types):
            return any(_holds(one, wanted) for one in types)
        case _:
            return isinstance(kind, wanted)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON") from error
