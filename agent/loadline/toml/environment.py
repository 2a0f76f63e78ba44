"""Environment variables that replace values of a file. Errors name the variable and the remedy."""

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, inspect

from loadline.errors import ConfigError
from loadline.toml.checking import Fields, fields_of, shown, unwrap

ENVIRONMENT_PREFIX: Final = "LOADLINE__"


def variables_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ``LOADLINE__<SECTION>__<KEY>`` variables, in order."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(ENVIRONMENT_PREFIX)}


def apply_variables(
    table: dict[str, Any],
    kind: type[Struct],
    variables: Mapping[str, str],
    remedy_for: Callable[[str, Fields, str], str],
) -> dict[str, str]:
    """Set the keys that variables name; return what errors call each variable, by the place that it sets.

    ``LOADLINE__NATS__SERVERS`` sets ``nats.servers``.

    Args:
        table: Table of a file, which is changed.
        kind: Struct of the file.
        variables: Variables by name; a value is one of TOML, or text without quotes.
        remedy_for: Remedy for an unknown key, from the key, the known fields, and the path of the section.

    Raises:
        ConfigError: A variable names no key.
    """
    return {_override(table, kind, name, text, remedy_for): _called(name) for name, text in variables.items()}


def _called(variable: str) -> str:
    return f"environment variable {variable}"


def _override(
    table: dict[str, Any], kind: type[Struct], variable: str, text: str, remedy_for: Callable[[str, Fields, str], str]
) -> str:
    """Set the key that a variable names, and return its place."""
    fields, path = fields_of(kind), variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
    for depth, part in enumerate(path):
        if part not in fields:
            remedy = remedy_for(part, fields, "".join(f"{section}." for section in path[:depth]))
            problem = f"names no key: {part}" if part else "has an empty part, as __ separates section and key"
            raise ConfigError(_called(variable), problem, remedy)
        info = unwrap(fields[part].type)
        if depth == len(path) - 1:
            table[part] = _value(text, info)
        elif isinstance(info, inspect.StructType):
            table = table.setdefault(part, {})
            fields = fields_of(info.cls)
            if not isinstance(table, dict):
                raise ConfigError(part, f"is {shown(part, table)}", "Write a table.")
        else:
            remedy = f"Set {ENVIRONMENT_PREFIX}{'__'.join(path[: depth + 1]).upper()} to the whole TOML value."
            raise ConfigError(_called(variable), f"addresses a key below {part}, which is not a section", remedy)
    return ".".join(path)


def _value(text: str, info: inspect.Type) -> Any:
    """Parse the text as a TOML value; return plain text as it is, without quotes."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = document["value"] if document.keys() == {"value"} else text
    return text if isinstance(info, inspect.StrType) and not isinstance(value, str) else value
