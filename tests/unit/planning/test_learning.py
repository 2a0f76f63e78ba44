"""Learned parameters: export, storage by the leader, and import by its successor."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from loadline.core.controller import Controller
from loadline.core.planning.planners.static import StaticKnobs, StaticPlanner
from loadline.core.rounds.learned_state import SAVE_INTERVAL_MS, ingest, save
from loadline.core.vocabulary.effects import SaveLearned
from loadline.core.vocabulary.events import LearnedChanged, LearnedRead
from loadline.core.vocabulary.learned import DATA_BYTES_MAX, LearnedState
from loadline.core.vocabulary.rejections import Rejection
from loadline.ports import StoreChange, StoreEntry, StoreSnapshot, Write
from loadline.runtime.registry import RegistryTranslator
from loadline.wire.codec import Rejected, encode
from tests.support.controller_world import ControllerWorld, booted
from tests.support.memory import KEYS, MemoryStore, effect_runner

KNOWN = LearnedState(start_ups_ms={"decode": [40_000, 50_000]})


class LearningPlanner(StaticPlanner):
    """Planner that imports any valid parameters."""

    learned: bytes | None = None

    def export_learned(self) -> bytes | None:
        return self.learned

    def import_learned(self, data: bytes) -> None:
        if data == b"poison":
            raise ZeroDivisionError
        if data != b"nonsense":
            self.learned = data


def learning_planner(learned: bytes | None = None) -> LearningPlanner:
    return LearningPlanner(StaticKnobs(), learned=learned)


def start_ups(world: ControllerWorld) -> dict[str, list[int]]:
    return {pool.name: pool.start_ups_ms for pool in world.controller.state.fleet.models["m"].pools.values()}


def saved(world: ControllerWorld, planner: LearningPlanner | None = None) -> list[SaveLearned]:
    """Return what a leader would write after another second."""
    world.now += 1_000
    return save({"m": planner or learning_planner()}, "all", world.controller.state, world.now)


def test_a_leader_writes_an_observed_start_up_time_once() -> None:
    world = booted()
    world.run(10)
    world.kv = 0.99
    world.run(600)
    assert [e for e in world.effects if isinstance(e, SaveLearned)] == [], "no worker is ready yet"
    world.register("decode", "d3")
    took = start_ups(world)["decode"]
    assert len(took) == 1
    effects = [e for e in world.run(2) if isinstance(e, SaveLearned)]
    lease = world.controller.state.leadership.lease_id
    assert effects == [SaveLearned("m", LearnedState(start_ups_ms={"decode": took}), "all", lease)]
    world.handle(LearnedChanged("m", effects[0].learned))
    assert [e for e in world.run(120) if isinstance(e, SaveLearned)] == []


def test_a_failed_write_is_retried_after_a_minute() -> None:
    world = booted()
    world.run(10)
    world.controller.state.fleet.models["m"].pools["decode"].start_ups_ms = [7_000]
    first = world.now
    times = []
    for _ in range(130):
        times += [world.now - first for effect in world.run(1) if isinstance(effect, SaveLearned)]
    assert len(times) == 3
    assert all(later - sooner >= SAVE_INTERVAL_MS for sooner, later in pairwise(times))


def test_a_standby_writes_nothing() -> None:
    world = booted()
    world.run(10)
    world.controller.state.fleet.models["m"].pools["decode"].start_ups_ms = [7_000]
    world.controller.state.leadership.phase = "follower"  # a leader would write, as in the test above
    effects = [world.controller.handle([], world.now + n * 1_000) for n in range(200)]
    assert not [one for turn in effects for one in turn if isinstance(one, SaveLearned)]


def test_an_agent_uses_the_stored_start_up_time() -> None:
    world = ControllerWorld()
    world.controller.handle([LearnedRead({"m": KNOWN, "gone": KNOWN})], world.now)
    assert start_ups(world) == {"prefill": [], "decode": [40_000, 50_000]}
    assert world.controller.state.fleet.models["m"].pools["decode"].start_up_ms(1) == 50_000
    assert list(world.controller.state.stored) == ["gone", "m"], "later settings may use it"


def test_a_start_up_time_is_limited_to_the_deadline() -> None:
    world = ControllerWorld()
    world.controller.handle([LearnedRead({"m": LearnedState(start_ups_ms={"decode": [10**12], "no": [1]})})], world.now)
    assert start_ups(world)["decode"] == [600_000]


def test_a_follower_takes_over_stored_parameters_and_a_leader_does_not() -> None:
    world = booted()
    world.run(10)
    pool = world.controller.state.fleet.models["m"].pools["decode"]
    pool.start_ups_ms = [1_000]
    world.handle(LearnedChanged("m", KNOWN))
    assert pool.start_ups_ms == [1_000]
    world.controller.state.leadership.phase = "resigned"
    world.controller.handle([LearnedChanged("m", KNOWN)], world.now)
    assert pool.start_ups_ms == [40_000, 50_000]


def test_deleted_parameters_are_written_again() -> None:
    world = booted()
    world.run(10)
    world.handle(LearnedRead({"m": KNOWN}))
    assert not [e for e in world.run(70) if isinstance(e, SaveLearned)]
    world.handle(LearnedChanged("m", None))
    [effect] = [e for e in world.run(5) if isinstance(e, SaveLearned)]
    assert effect.learned == KNOWN


def test_a_planner_imports_once_and_from_its_own_kind_only() -> None:
    world = ControllerWorld()
    state = world.controller.state
    state.stored = {"m": LearnedState(planner="static", data=b"learned")}
    planner = learning_planner()
    ingest(state, {"m": planner}, ["m"])
    assert planner.learned == b"learned"
    trained = learning_planner(b"better")
    ingest(state, {"m": trained}, ["m"])
    assert trained.learned == b"better"
    assert "learned_ignored" not in state.counters
    state.stored = {"m": LearnedState(planner="queueing", data=b"learned")}
    other = learning_planner()
    ingest(state, {"m": other}, ["m"])
    assert (other.learned, state.counters["learned_ignored"]) == (None, 1)


@pytest.mark.parametrize("data", [b"nonsense", b"poison"])
def test_unusable_parameters_are_counted_and_ignored(data: bytes) -> None:
    world = ControllerWorld()
    world.controller.state.stored = {"m": LearnedState(start_ups_ms={"decode": [5]}, planner="static", data=data)}
    ingest(world.controller.state, {"m": learning_planner()}, ["m"])
    assert world.controller.state.counters["learned_ignored"] == 1
    assert start_ups(world)["decode"] == [5]


def test_parameters_not_learned_again_stay_stored() -> None:
    world = booted()
    world.controller.state.stored = {"m": LearnedState(planner="queueing", data=b"of another planner")}
    assert saved(world) == []
    [effect] = saved(world, learning_planner(b"mine"))
    assert (effect.learned.planner, effect.learned.data) == ("static", b"mine")


def test_oversized_parameters_are_not_written() -> None:
    world = booted()
    assert saved(world, learning_planner(b"x" * (DATA_BYTES_MAX + 1))) == []
    assert world.controller.state.counters["learned_too_large"] == 1
    assert saved(world, learning_planner(b"x" * DATA_BYTES_MAX)) != []


def test_a_snapshot_contains_learned_parameters() -> None:
    world = booted()
    world.handle(LearnedRead({"m": KNOWN}))
    restored = Controller(world.settings)
    restored.restore(world.controller.snapshot())
    assert restored.state.stored == {"m": KNOWN}


def report_learned(act: Callable[[RegistryTranslator], None]) -> tuple[list[object], list[Rejected]]:
    events: list[object] = []
    refused: list[Rejected] = []
    act(RegistryTranslator(KEYS, "all", events.append, refused.append))
    return [one for one in events if isinstance(one, (LearnedRead, LearnedChanged))], refused


def entry(value: bytes) -> StoreEntry:
    return StoreEntry(KEYS.learned("meta/llama"), value, 1, 2)


def test_the_registry_reports_stored_parameters() -> None:
    good = entry(encode(KNOWN))
    assert report_learned(lambda one: one.on_snapshot(StoreSnapshot([good], 2))) == (
        [LearnedRead({"meta/llama": KNOWN})],
        [],
    )
    changed = report_learned(
        lambda one: one.on_changes([StoreChange(good.key, good, 2), StoreChange(good.key, None, 3)])
    )
    assert changed == ([LearnedChanged("meta/llama", KNOWN), LearnedChanged("meta/llama", None)], [])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", Rejection.MALFORMED),
        (b"{", Rejection.MALFORMED),
        (b"[]", Rejection.INVALID),
        (b'{"version":2}', Rejection.INVALID),
        (b'{"start_ups_ms":{"d":[-1]}}', Rejection.INVALID),
        (b'{"data":"?"}', Rejection.INVALID),
        (msgspec.json.encode({"data": b"x" * (DATA_BYTES_MAX + 1)}), Rejection.INVALID),
        (b" " * 2_000_000, Rejection.OVERSIZED),
    ],
)
def test_unreadable_parameters_are_rejected(value: bytes, reason: Rejection) -> None:
    events, refused = report_learned(lambda one: one.on_snapshot(StoreSnapshot([entry(value)], 2)))
    assert events == [LearnedRead({})]
    assert [one.reason for one in refused] == [reason]
    bad = entry(value)
    events, refused = report_learned(lambda one: one.on_changes([StoreChange(bad.key, bad, 2)]))
    assert events == [LearnedChanged("meta/llama", None)]
    assert [one.reason for one in refused] == [reason]


def test_nothing_is_written_before_the_stored_value_is_read() -> None:
    world = booted()
    world.controller.state.registry_read = False
    assert saved(world, learning_planner(b"mine")) == []
    world.controller.state.registry_read = True
    assert saved(world, learning_planner(b"mine")) != []


def test_only_the_current_leader_writes_and_an_unreachable_store_is_ignored() -> None:
    async def scenario() -> None:
        store, emitted = MemoryStore(), list[object]()
        runner = effect_runner(emitted.append, store)
        lease = await store.grant(10)
        await store.commit([], [Write(KEYS.leader("all"), b"a", lease)])
        for former_or_own, written in ((lease - 1, []), (lease, [encode(KNOWN)])):
            await runner.perform(SaveLearned("m", KNOWN, "all", former_or_own))
            assert [one.value for one in (await store.read(KEYS.learned("m"))).entries] == written
        store.set_partitioned(partitioned=True)
        await runner.perform(SaveLearned("m", LearnedState(), "all", lease))
        assert emitted == []

    asyncio.run(scenario())
