"""Loading of agents' configurations: a TOML file and environment variables. Errors name place, value and remedy."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import inspect

from loadline.config.engines import resolve_paths
from loadline.config.knobs import Config
from loadline.config.layers import LoadedConfig, Sources, merge_layers
from loadline.config.plugins import discover, unknown_planner
from loadline.config.renamed import remedy_for
from loadline.config.schema import config_table, file_schema
from loadline.errors import ConfigError
from loadline.toml.checking import Fields, fields_of, shown, table_errors, unwrap
from loadline.toml.lines import FileLines, key_lines
from loadline.toml.reading import parse_table, read_text

ENVIRONMENT_PREFIX: Final = "LOADLINE__"
_NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read a configuration and apply the ``LOADLINE__<SECTION>__<KEY>`` variables.

    Paths of profiles are relative to the file.

    Raises:
        ConfigError: The file cannot be read, or a value in it or in a variable is invalid.
    """
    return resolve_paths(parse(read_text(path), str(path), environ), path.parent)


def parse(text: str, name: str, environ: Mapping[str, str] = _NO_VARIABLES) -> Config:
    """Parse a configuration from TOML text; errors refer to it as ``name``.

    Raises:
        ConfigError: A value in it or in a variable is invalid.
    """
    discover()
    table = parse_table(text, name)
    variables = {}
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX):
            variables[_override(table, variable, environ[variable])] = variable
    merging, origins = merge_layers(table)
    sources = Sources(origins, FileLines(name, key_lines(text), variables))
    ConfigError.raise_all(_errors(merging, sources))
    config = msgspec.convert(config_table(merging), Config)
    return LoadedConfig(**msgspec.structs.asdict(config), sources=sources)


def _errors(merging: dict[str, Any], sources: Sources) -> Iterator[ConfigError]:
    """Yield the errors of a configuration; those of a layer once, not again for each model that it fills."""
    of_layers: set[str] = set()
    for error in table_errors(merging, file_schema(), _unknown_key):
        written = sources.written_place(error.place)
        if written == error.place:
            of_layers.add(written)
        elif written in of_layers:
            continue
        yield sources.located(error)


def _unknown_key(key: str, table: dict[str, Any], known: Fields, section: str) -> ConfigError:
    """Return the error of a key: it may be a planner that is not installed, or have been renamed."""
    if "planner" in known and (key == table.get("planner") or key in discover()):
        return ConfigError(f"{section}planner", *unknown_planner(key))
    return ConfigError(f"{section}{key}", "is not a known key here", remedy_for(key, known, section))


def _override(raw: dict[str, Any], variable: str, text: str) -> str:
    """Set the key that a variable names, and return its place: ``LOADLINE__NATS__SERVERS`` is ``nats.servers``."""
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
                raise ConfigError(part, f"is {shown(part, table)}", "Write a table.")
        else:
            remedy = f"Set {ENVIRONMENT_PREFIX}{'__'.join(path[: depth + 1]).upper()} to the whole TOML value."
            raise ConfigError(
                f"environment variable {variable}", f"addresses a key below {part}, which is not a section", remedy
            )
    return ".".join(path)


def _environment_value(text: str, info: inspect.Type) -> Any:
    """Parse the text as a TOML value; return plain text as it is, without quotes."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = document["value"] if document.keys() == {"value"} else text
    return text if isinstance(info, inspect.StrType) and not isinstance(value, str) else value
