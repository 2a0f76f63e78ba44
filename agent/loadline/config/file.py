"""Loading of agents' configurations: a TOML file and environment variables. Errors name place, value and remedy."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from loadline.config.engines import resolve_paths
from loadline.config.knobs import Config
from loadline.config.layers import LoadedConfig, Sources, merge_layers
from loadline.config.plugins import discover, unknown_planner
from loadline.config.renamed import remedy_for
from loadline.config.schema import config_table, file_schema
from loadline.errors import ConfigError
from loadline.toml.checking import Fields, table_errors
from loadline.toml.environment import apply_variables, variables_in
from loadline.toml.lines import FileLines, key_lines
from loadline.toml.reading import parse_table, read_text

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
    replaced = apply_variables(table, file_schema(), variables_in(environ), remedy_for)
    merging, origins = merge_layers(table)
    sources = Sources(origins, FileLines(name, key_lines(text), replaced))
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
