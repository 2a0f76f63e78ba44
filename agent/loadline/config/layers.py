"""Layers of a configuration: built-in defaults < ``[defaults]`` < ``[[namespaces]]`` < ``[[service_classes]]`` < model.

Layers are merged as tables, key by key, before validation: a model can override a layer with 0 or false, and an unset
key is never mistaken for a set one. The origin of every merged value is recorded for error messages.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from loadline.config.knobs import Config
from loadline.errors import ConfigError
from loadline.toml.lines import FileLines

SECTIONS: Final = ("defaults", "namespaces", "service_classes")
_SEPARATOR: Final = re.compile(r"[.\[]")

Table = dict[str, Any]


class Origin(Struct, frozen=True):
    """Origin of a value that was merged from a layer."""

    layer: str
    place: str
    value: Any


class Sources(Struct, frozen=True):
    """Origins of the values of a configuration."""

    origins: dict[str, Origin] = {}
    """Origins by the place of the merged value."""
    file: FileLines = FileLines()

    def written_place(self, place: str) -> str:
        """Return the place of a value in the layer that it comes from; without a layer, its own."""
        for key in (place, *(place[: match.start()] for match in reversed(list(_SEPARATOR.finditer(place))))):
            if key in self.origins:
                return f"{self.origins[key].place}{place[len(key) :]}"
        return place

    def shown_place(self, place: str) -> str:
        """Return a place for people: a place in a model after the one in the layer that its value comes from."""
        written = self.written_place(place)
        return place if written == place else f"{written} (of {place})"

    def where(self, place: str) -> str:
        """Return the file and line of a value, or the environment variable that sets it."""
        return self.file.where(self.written_place(place))

    def located(self, error: ConfigError) -> ConfigError:
        """Return an error in the merged configuration with its place for people, file and line."""
        return ConfigError(self.shown_place(error.place), error.problem, error.remedy, self.where(error.cause))


class LoadedConfig(Config, frozen=True):
    """Configuration of a file."""

    sources: Sources = Sources()


def sources_of(config: Config) -> Sources:
    """Return where the values of a configuration come from."""
    return config.sources if isinstance(config, LoadedConfig) else Sources()


def merge_layers(table: Table) -> tuple[Table, dict[str, Origin]]:
    """Fill the models of a configuration from its layers, in place.

    Returns:
        The table, with the layers first so that they are validated before the models; and the origins of the merged
        values by their places.

    Raises:
        ConfigError: The defaults of a namespace set the namespace of its models.
    """
    origins: dict[str, Origin] = {}
    _refuse_namespaces_in_namespaces(table)
    models = table.get("models")
    for index, model in enumerate(models if isinstance(models, list) else ()):
        if isinstance(model, dict):
            target_place, layers = f"models[{index}]", list(_of_model(table, model))
            for place, section, layer in layers:
                filler = _Filler(place, origins)
                if section:
                    filler.fill_section(model, target_place, section, layer)
                else:
                    filler.fill_model(model, target_place, layer)
    first = {key: table[key] for key in SECTIONS if key in table}
    return first | table, origins


def _refuse_namespaces_in_namespaces(table: Table) -> None:
    spaces = table.get("namespaces")
    for index, space in enumerate(spaces if isinstance(spaces, list) else ()):
        if isinstance(space, dict) and "namespace" in _table(space, "defaults"):
            place = f"namespaces[{index}].defaults.namespace"
            raise ConfigError(
                place, "cannot be set in the defaults of a namespace", "Remove it, or set it in the models."
            )


def _of_model(table: Table, model: Table) -> Iterator[tuple[str, str, Table]]:
    """Yield the layers below a model, highest precedence first: place, section (empty: the model itself) and keys."""
    defaults = _table(table, "defaults")
    place, space = _named(table, "namespaces", model.get("namespace", defaults.get("namespace", "default")))
    below = [(f"{place}.defaults", _table(space, "defaults")), ("defaults", defaults)]
    name = next((one["service_class"] for one in (model, *(one for _, one in below)) if "service_class" in one), "")
    place, service = _named(table, "service_classes", name)
    own = _table(_table(service, "models"), model.get("name"))
    yield f"{place}.models.{model.get('name')}", "objectives", own
    yield place, "", {key: service[key] for key in ("priority", "objectives") if key in service}
    yield from ((layer_place, "", layer) for layer_place, layer in below)


class _Filler:
    """Merges one layer into tables."""

    def __init__(self, layer: str, origins: dict[str, Origin]) -> None:
        self._layer = layer
        self._origins = origins

    def fill_model(self, model: Table, target_place: str, table: Table) -> None:
        """Merge the layer into a model and its pools."""
        self._fill(model, target_place, {key: value for key, value in table.items() if key != "pool"}, self._layer)
        pools = model.get("pools")
        for index, pool in enumerate(pools if isinstance(pools, list) else ()):
            if isinstance(pool, dict):
                self._fill(pool, f"{target_place}.pools[{index}]", _table(table, "pool"), f"{self._layer}.pool")

    def fill_section(self, model: Table, target_place: str, section: str, table: Table) -> None:
        """Merge the layer into one section of a model."""
        own = model.setdefault(section, {}) if table else None
        if isinstance(own, dict):
            self._fill(own, f"{target_place}.{section}", table, self._layer)

    def _fill(self, own: Table, target_place: str, table: Table, layer_place: str) -> None:
        """Set the keys that the table does not set itself, and record their origins."""
        for key, value in table.items():
            if isinstance(value, dict):
                if key not in own:
                    self._origins[f"{target_place}.{key}"] = Origin(self._layer, f"{layer_place}.{key}", value)
                inner = own.setdefault(key, {})
                if isinstance(inner, dict):
                    self._fill(inner, f"{target_place}.{key}", value, f"{layer_place}.{key}")
            elif key not in own:
                own[key] = value
                self._origins[f"{target_place}.{key}"] = Origin(self._layer, f"{layer_place}.{key}", value)


def _named(table: Table, section: str, name: object) -> tuple[str, Table]:
    """Find a table by name in a list of tables; return its place and the table."""
    tables = table.get(section)
    for index, one in enumerate(tables if isinstance(tables, list) else ()):
        if isinstance(one, dict) and one.get("name") == name:
            return f"{section}[{index}]", one
    return section, {}


def _table(table: Table, key: object) -> Table:
    found = table.get(key) if isinstance(key, str) else None
    return found if isinstance(found, dict) else {}
