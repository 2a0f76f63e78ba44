"""The partition of models into shards: one shard for each limited supply, and stable places."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.state.partition import layout_of, moved_models, partition, shard_of_model, split
from loadline.core.state.settings import ModelKnobs, Settings, Sharing

TYPES = ("a", "b", "c", "free")
SHARDS = 16
FLEETS = st.dictionaries(
    st.text("mnop", min_size=1, max_size=3), st.lists(st.sampled_from(TYPES), min_size=1, max_size=2), min_size=1
)


def settings(fleet: dict[str, list[str]]) -> Settings:
    """Return settings in which all types but ``free`` are limited; ``fleet`` has the types of each model's pools."""
    models = tuple(
        ModelKnobs(
            name,
            tuple(PoolKnobs(f"p{index}", "aggregated", accelerator=kind) for index, kind in enumerate(types)),
            planner="static",
        )
        for name, types in fleet.items()
    )
    return Settings(
        "agent",
        "all",
        models,
        accelerators=tuple(AcceleratorKnobs(kind) for kind in TYPES),
        allocation=AllocationKnobs({"a": 4, "b": 4, "c": 4}),
        sharing=Sharing(SHARDS),
    )


@given(FLEETS)
def test_each_limited_supply_is_decided_by_one_shard(fleet: dict[str, list[str]]) -> None:
    found = partition(settings(fleet))
    assert found.keys() == fleet.keys()
    for kind in TYPES[:-1]:
        assert len({found[name] for name, types in fleet.items() if kind in types}) <= 1


@given(FLEETS)
def test_other_models_are_spread_by_their_names(fleet: dict[str, list[str]]) -> None:
    found = partition(settings(fleet))
    for name, types in fleet.items():
        if set(types) == {"free"}:
            assert found[name] == shard_of_model(name, SHARDS)


@given(FLEETS)
def test_the_order_of_models_changes_nothing(fleet: dict[str, list[str]]) -> None:
    assert partition(settings(dict(reversed(fleet.items())))) == partition(settings(fleet))


@given(FLEETS, FLEETS)
def test_partitions_with_the_same_layout_agree(one: dict[str, list[str]], other: dict[str, list[str]]) -> None:
    first, second = partition(settings(one)), partition(settings(other))
    if moved_models(first, second):
        assert layout_of(SHARDS, first) != layout_of(SHARDS, second)


def test_another_number_of_shards_is_another_layout() -> None:
    assert layout_of(4, {"m": 1}) != layout_of(5, {"m": 1})


def test_a_budget_over_all_models_is_decided_by_one_shard() -> None:
    fleet = {name: ["free"] for name in "mnopqrs"}
    assert len(set(partition(settings(fleet)).values())) > 1
    for knobs in (FleetKnobs(gpu_budget_max=8), FleetKnobs(gpu_budget_min=8)):
        assert len(set(partition(replace(settings(fleet), fleet=knobs)).values())) == 1


def test_a_quota_is_decided_by_one_shard() -> None:
    fleet = {name: ["free"] for name in "mnopqrs"}
    found = partition(replace(settings(fleet), quotas={"default": {"free": 8}}))
    assert len(set(found.values())) == 1


def test_settings_are_split_without_loss() -> None:
    whole = settings({name: ["free"] for name in "mnopqrs"})
    parts = split(whole)
    assert [part.scope for part in parts] == [f"shard-{shard}" for shard in range(SHARDS)]
    assert sorted(model.name for part in parts for model in part.models) == list("mnopqrs")
    assert [part.sharing.presence for part in parts] == [True] + [False] * (SHARDS - 1)
    assert {part.sharing.layout for part in parts} == {layout_of(SHARDS, partition(whole))}


def test_settings_of_one_shard_stay_as_they_are() -> None:
    whole = replace(settings({"m": ["a"]}), sharing=Sharing())
    assert split(whole) == [whole]
