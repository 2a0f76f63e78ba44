"""Partition of the models into shards, the units that agents share out.

Models that draw on the same limited supply of GPUs, or on the budget over all models, are in one shard: its leader
alone decides that supply, as one agent that leads all models does. All others are spread by their names.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from loadline.core.decisions.candidacy import stable_hash
from loadline.core.planning.allocation.supplies import limits_on
from loadline.core.state.model_state import accelerator_of
from loadline.core.state.settings import ModelKnobs, Settings, Sharing

SCOPE_PREFIX: Final = "shard-"
_LAYOUT_CHARS: Final = 12
_BUDGET: Final = "*"
"""Supply of the budget over all models; no accelerator type has this name."""


def scope_of(shard: int) -> str:
    """Return the scope of a shard in leader elections."""
    return f"{SCOPE_PREFIX}{shard}"


def shard_of_model(model: str, shards: int) -> int:
    """Return the shard of a model that draws on no limited supply, or that is not configured."""
    return _shard(f"model {model}", shards)


def partition(settings: Settings) -> dict[str, int]:
    """Return the shard of each configured model."""
    shards = settings.sharing.shards
    drawn = {model.name: _supplies(settings, model) for model in settings.models}
    groups = _groups(drawn.values())
    return {
        name: _shard(f"supply {groups[supplies[0]]}", shards) if supplies else shard_of_model(name, shards)
        for name, supplies in drawn.items()
    }


def split(settings: Settings) -> list[Settings]:
    """Return the settings of each shard, in order; those of an agent that shares nothing are one shard."""
    shards = settings.sharing.shards
    if shards == 1:
        return [settings]
    shard_of = partition(settings)
    layout = layout_of(shards, shard_of)
    return [_restrict(settings, shard, shard_of, layout) for shard in range(shards)]


def layout_of(shards: int, shard_of: Mapping[str, int]) -> str:
    """Return the name of a partition: agents with different ones must not lead at the same time.

    Partitions with the same name place each model that both have in the same shard.
    """
    placed = sorted((name, shard) for name, shard in shard_of.items() if shard != shard_of_model(name, shards))
    return f"{shards} {stable_hash(msgspec.json.encode(placed).decode()).hex()[:_LAYOUT_CHARS]}"


def moved_models(old: Mapping[str, int], new: Mapping[str, int]) -> list[str]:
    """Return the models that two partitions place in different shards, by name."""
    return sorted(name for name, shard in new.items() if old.get(name, shard) != shard)


def _restrict(settings: Settings, shard: int, shard_of: Mapping[str, int], layout: str) -> Settings:
    models = tuple(model for model in settings.models if shard_of[model.name] == shard)
    names = {model.name for model in models}
    return replace(
        settings,
        scope=scope_of(shard),
        models=models,
        profiles={name: one for name, one in settings.profiles.items() if name in names},
        tpot_profiles={name: one for name, one in settings.tpot_profiles.items() if name in names},
        histories={name: one for name, one in settings.histories.items() if name in names},
        sharing=Sharing(settings.sharing.shards, layout, presence=shard == 0),
    )


def _supplies(settings: Settings, model: ModelKnobs) -> list[str]:
    """Return the limited supplies on which a model draws, by name."""
    capacity, quotas = settings.allocation.capacity, settings.quotas
    types = {accelerator_of(settings, pool).gpu_type for pool in model.pools}
    found = {supply for one in types for supply, _ in limits_on(one, model.namespace, capacity, quotas)}
    if settings.fleet.gpu_budget_max is not None or settings.fleet.gpu_budget_min:
        found.add(_BUDGET)
    return sorted(found)


def _groups(drawn: Iterable[list[str]]) -> dict[str, str]:
    """Return the first supply of the group of each supply; supplies on which one model draws are in one group."""
    first: dict[str, str] = {}

    def find(supply: str) -> str:
        while (parent := first.setdefault(supply, supply)) != supply:
            supply = parent
        return supply

    for supplies in drawn:
        for supply in supplies:
            low, high = sorted((find(supplies[0]), find(supply)))
            first[high] = low
    return {supply: find(supply) for supply in list(first)}


def _shard(text: str, shards: int) -> int:
    return int.from_bytes(stable_hash(text)[:8], "big") % shards
