"""Feeds of the shards of one agent: keys reach the shard of their model, and reports are followed by model."""

import asyncio

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.partition import partition
from loadline.core.state.settings import ModelKnobs, Settings, Sharing
from loadline.core.vocabulary.events import BusConnectionChanged
from loadline.ports import StoreChange, StoreEntry
from loadline.runtime.feeds import KeyRouter
from loadline.runtime.reports import Reports
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryBus

KEYS = Keys("default")
SHARDS = 4
MODELS = ("m", "n", "meta/llama")
SETTINGS = Settings(
    "a",
    "all",
    tuple(ModelKnobs(name, (PoolKnobs("p", "aggregated"),), planner="static") for name in MODELS),
    sharing=Sharing(SHARDS),
)


def concerned(key: str) -> list[int]:
    router = KeyRouter(KEYS, SETTINGS)
    return [shard for shard, changes in enumerate(router.split([StoreChange(key, None, 1)])) if changes]


def test_keys_of_a_model_concern_its_shard() -> None:
    for model, shard in partition(SETTINGS).items():
        for key in (KEYS.worker(model, "p", "w"), KEYS.decision(model), KEYS.pause(model), KEYS.learned(model)):
            assert concerned(key) == [shard]


def test_keys_of_a_model_that_is_not_configured_concern_one_shard() -> None:
    assert len(concerned(KEYS.worker("other", "p", "w"))) == 1


def test_keys_of_leaders_and_agents_concern_all_shards() -> None:
    for key in (KEYS.leader("shard-1"), KEYS.epoch("shard-1"), KEYS.agent("a"), KEYS.layout):
        assert concerned(key) == list(range(SHARDS))


def test_keys_that_cannot_be_decoded_concern_one_shard() -> None:
    assert concerned(f"{KEYS.workers}a%zz/p/w") == [0]


def test_removed_models_keep_their_shard() -> None:
    router = KeyRouter(KEYS, SETTINGS)
    before = router.placed
    router.update(Settings("a", "all", SETTINGS.models[:1], sharing=Sharing(SHARDS)))
    assert router.placed == before


def test_entries_are_divided_without_loss_and_in_order() -> None:
    router = KeyRouter(KEYS, SETTINGS)
    entries = [StoreEntry(KEYS.worker(model, "p", worker), b"", 1, 1) for worker in "ab" for model in MODELS]
    parts = router.split(entries)
    assert sorted(entry.key for part in parts for entry in part) == sorted(entry.key for entry in entries)
    assert all(part == [entry for entry in entries if entry in part] for part in parts)


def test_a_shard_hears_of_its_bus_while_reports_reach_it() -> None:
    events: list[BusConnectionChanged] = []
    frames: list[str] = []

    async def scenario() -> None:
        bus, subjects = MemoryBus(), Subjects("loadline")
        reports = Reports(bus, subjects, lambda read: frames.extend(subject for subject, _ in read), events.append)
        reports.connection_changed(connected=True)
        assert not events
        await reports.follow(["m", "n"])
        assert events == [BusConnectionChanged(connected=True)]
        reports.connection_changed(connected=False)
        reports.connection_changed(connected=True)
        await reports.follow(["n"])
        assert [event.connected for event in events] == [True, False, True]
        await reports.follow([])
        assert [event.connected for event in events] == [True, False, True, False]

    asyncio.run(scenario())


def test_the_last_of_several_calls_counts() -> None:
    async def scenario() -> None:
        bus, subjects = MemoryBus(), Subjects("loadline")
        events: list[BusConnectionChanged] = []
        reports = Reports(bus, subjects, lambda _frames: None, events.append)
        reports.connection_changed(connected=True)
        await asyncio.gather(reports.follow(["m"]), reports.follow(["m", "n"]), reports.follow([]))
        assert events in ([], [BusConnectionChanged(connected=True), BusConnectionChanged(connected=False)])

    asyncio.run(scenario())
