"""Differences between two configurations, key by key; models, pools and other named tables are matched by name."""

import json
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.config.knobs import Config
from loadline.config.schema import file_table
from loadline.toml.secrets import redacted

FIXED: Final = ("agent", "nats", "etcd", "http", "journal", "otel", "tensorboard", "runtime", "leadership", "sharing")
"""Sections that take effect only when the agent starts."""
_MERGED: Final = ("service_classes",)
"""Layers, whose values are merged into the models."""


class KeyChange(Struct, frozen=True):
    """Key whose value differs; values are shortened JSON, or ``none`` if the key is absent."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        """Format the change as a line for a log."""
        return f"{self.key}: {self.old} -> {self.new}"


def key_changes(old: Config, new: Config) -> list[KeyChange]:
    """Return all keys that differ, sorted by name. A model that only one of them has is one key, not its 300."""
    common = {model.name for model in old.models} & {model.name for model in new.models}
    before, after = _leaf_values(old, common), _leaf_values(new, common)
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return [KeyChange(key, _shown(key, before.get(key)), _shown(key, after.get(key))) for key in keys]


def keep_fixed(old: Config, new: Config) -> Config:
    """Return the new configuration with the old values of the fixed sections."""
    return replace(new, **{section: getattr(old, section) for section in FIXED})


def _leaf_values(config: Config, common: AbstractSet[str]) -> dict[str, Any]:
    others = {f"models.{model.name}": "configured" for model in config.models if model.name not in common}
    return dict(_leaves(_effective(config, common), "")) | others


def _effective(config: Config, common: AbstractSet[str]) -> dict[str, Any]:
    shown = (model for model in config.models if model.name in common)
    models = tuple(replace(model, guardrails=model.effective_guardrails) for model in shown)
    table = file_table(replace(config, models=models))
    return {key: value for key, value in table.items() if key not in _MERGED}


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple) and value and all(isinstance(one, dict) and "name" in one for one in value):
        value = {one["name"]: one for one in value}
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, f"{place}.{key}" if place else key)
    elif value not in ([], ()):
        yield place, value


def _shown(key: str, value: Any) -> str:
    return "none" if value is None else redacted(key, json.dumps(value, ensure_ascii=False))
