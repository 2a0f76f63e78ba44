"""Schema of a configuration file: the keys of ``Config``, a section for each planner, and the layers of models."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Final, get_args

from msgspec import NODEFAULT, Meta, Struct, defstruct, to_builtins
from msgspec.structs import FieldInfo, fields

from loadline.config.defaults import Layer, NamespaceKnobs
from loadline.config.knobs import Config
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners import PLANNERS, Planner
from loadline.core.state.settings import ModelKnobs

_POOL: Final = "Defaults of all pools: any key of `[[models.pools]]` except `name` and `role`."
_MODEL: Final = (
    "Defaults of models: any key or section of `[[models]]` except `name` and `pools`; the section `pool` has any key"
    " of `[[models.pools]]` except `name` and `role`. Keys set in a model or pool override them one by one."
)
_SECTIONS: Final = "planner_knobs"
"""Field of ``ModelKnobs`` with the sections of planners, which a file has in the model itself."""

_DEFAULT_PLANNER: Final = next(field.default for field in fields(ModelKnobs) if field.name == "planner")

Table = dict[str, Any]


def file_schema(planners: Iterable[type[Planner]] | None = None) -> type[Struct]:
    """Return the Struct of a configuration file, with a section for each of some planners (None: all registered)."""
    return _schema(tuple(PLANNERS.values() if planners is None else planners))


def config_table(table: Table) -> Table:
    """Convert the table of a file, after the merge of its layers, to the table of a ``Config``."""
    models = [_model_table(model) for model in table["models"]]
    namespaces = [_without(space, "defaults") for space in table.get("namespaces", ())]
    return _without(table, "defaults") | {"models": models, "namespaces": namespaces}


def file_table(config: Config) -> Table:
    """Convert a ``Config`` to the table of a file that has no layers and sets every key."""
    table: Table = _without(to_builtins(config), "sources")
    for model, knobs in zip(table["models"], config.models, strict=True):
        del model[_SECTIONS]
        model |= {name: to_builtins(knobs.knobs_of(name)) for name in PLANNERS}
    return table


def _model_table(model: Table) -> Table:
    """Return the table of a ``ModelKnobs``; guardrails that its section leaves out are those of its planner."""
    sections = {name: section for name, section in model.items() if name in PLANNERS}
    found = _without(model, *sections) | {_SECTIONS: sections}
    planner = PLANNERS.get(model.get("planner", _DEFAULT_PLANNER))
    if "guardrails" in model and planner is not None:
        found["guardrails"] = to_builtins(planner.guardrails) | model["guardrails"]
    return found


def _without(table: Table, *keys: str) -> Table:
    return {key: value for key, value in table.items() if key not in keys}


@cache
def _schema(planners: tuple[type[Planner], ...]) -> type[Struct]:
    # Sections whose keys another section repeats come first, since the reference lists keys at their first section.
    kinds = sorted(planners, key=lambda kind: (bool(kind.composed_of), len(kind.Knobs.__mro__), kind.name))
    sections = [(kind.name, Annotated[kind.Knobs, Meta(description=kind.summary)], kind.Knobs()) for kind in kinds]
    model = _struct(ModelKnobs, [*map(_field, _fields(ModelKnobs, _SECTIONS)), *sections])
    pool_defaults = _layer("PoolDefaults", _POOL, _optional(PoolKnobs, "name", "role"))
    optional = [("pool", pool_defaults, pool_defaults()), *_optional(ModelKnobs, "name", "pools", _SECTIONS)]
    defaults = _layer("DefaultKnobs", _MODEL, [*optional, *sections])
    layer = ("defaults", defaults, defaults())
    namespace = _struct(NamespaceKnobs, [*map(_field, _fields(NamespaceKnobs)), layer])
    items = {"models": model, "namespaces": namespace}
    keys = [_of_items(key, items[key[0]]) if key[0] in items else key for key in map(_field, _fields(Config))]
    before = [key[0] for key in keys].index("namespaces")
    return _struct(Config, [*keys[:before], layer, *keys[before:]])


def _struct(kind: type[Struct], keys: list[tuple[Any, ...]]) -> type[Struct]:
    """Return a Struct with other fields, and the name and the docstring of an existing one."""
    namespace = {"__doc__": kind.__doc__}
    return defstruct(kind.__name__, keys, namespace=namespace, frozen=True, forbid_unknown_fields=True)


def _layer(name: str, doc: str, keys: list[tuple[Any, ...]]) -> type[Struct]:
    return defstruct(name, keys, bases=(Layer,), namespace={"__doc__": doc}, frozen=True)


def _fields(kind: type[Struct], *without: str) -> Iterator[FieldInfo]:
    return (one for one in fields(kind) if one.name not in without)


def _optional(kind: type[Struct], *without: str) -> list[tuple[Any, ...]]:
    return [_field(one) for one in _fields(kind, *without) if not one.required]


def _field(one: FieldInfo) -> tuple[Any, ...]:
    """Convert a field to the form that ``defstruct`` takes."""
    if one.required:
        return one.name, one.type
    return one.name, one.type, one.default if one.default is not NODEFAULT else one.default_factory()


def _of_items(field: tuple[Any, ...], item: type[Struct]) -> tuple[Any, ...]:
    """Return a tuple field with another type of items."""
    name, kind, *default = field
    items: Any = tuple[item, ...]  # type: ignore[valid-type]
    return name, Annotated[items, *get_args(kind)[1:]], *default
