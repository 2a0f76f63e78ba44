"""Rounds of migration: in which turn they take place, and when commands are allowed."""

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.controller import Controller
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.events import (
    AnyEvent,
    BusConnectionChanged,
    CampaignLost,
    LeaderChanged,
    PauseChanged,
    RegistryRead,
    SettingsChanged,
    ShutdownRequested,
)
from tests.support.migration_world import SLOTS, MigrationWorld, pairs

LOAD = MigrationKnobs(
    policies=("decode_load",),
    decode_load_threshold=0.5,
    load_balance_threshold=0.3,
)


def test_a_report_causes_commands_in_its_turn() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 400)
    world.join("b", 0)
    world.now += 1
    assert pairs(world.handle(world.report("a", 900, 5))) == [("a", "b")]


def test_a_new_worker_receives_at_once() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 900, 5)
    world.now += 1
    assert pairs(world.join("new", 0, 0)) == [("a", "new")]


def test_a_report_without_a_change_commands_nothing() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 400)
    world.join("b", 0)
    assert world.advance(5_000) == []


def test_a_destination_receives_from_one_source_in_a_turn() -> None:
    world = MigrationWorld(replace(LOAD, req_select_value=0.0))
    world.join("a", 590, 5)
    world.join("b", 400, 5)
    world.join("c", 400, 5)
    assert pairs(world.handle(world.report("b", 0, 0), world.report("c", 600, 5))) == [("c", "b")]


def disconnected(world: MigrationWorld) -> None:
    world.handle(BusConnectionChanged(connected=False))


def paused(world: MigrationWorld) -> None:
    world.handle(PauseChanged("m", paused=True))


def stopping(world: MigrationWorld) -> None:
    world.handle(ShutdownRequested())


def following(world: MigrationWorld) -> None:
    world.controller.handle([LeaderChanged("all", "agent-2", 8, 8), CampaignLost("all", "agent-2", beat=8)], world.now)


@pytest.mark.parametrize("forbid", [disconnected, paused, stopping, following])
def test_nothing_is_commanded_without_bus_paused_stopping_or_following(forbid: object) -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 0)
    world.join("b", 0)
    assert callable(forbid)
    forbid(world)
    world.now += 1_000
    reports = [world.report("a", 900, 5), world.report("b", 0, 0)]
    assert world.controller.handle(reports, world.now) == []


def test_nothing_is_commanded_before_the_registry_was_read() -> None:
    world = MigrationWorld(LOAD)
    world.controller = Controller(world.settings)
    world.handle(BusConnectionChanged(connected=True))
    world.join("a", 900, 5)
    assert world.join("b", 0, 0) == []
    world.now += 500
    assert pairs(world.handle(RegistryRead([event.worker for event in map(world.worker, ("a", "b"))]))) == [("a", "b")]


def test_earlier_reports_cause_commands_once_these_are_allowed_again() -> None:
    world = MigrationWorld(LOAD)
    world.handle(PauseChanged("m", paused=True))
    world.join("a", 900, 5)
    world.join("b", 0, 0)
    world.handle(PauseChanged("m", paused=False))
    world.now += world.knobs.interval_ms
    assert pairs(world.handle()) == [("a", "b")]


def test_events_in_one_turn_or_in_many_give_the_same_commands() -> None:
    loads = {"d": 800, "a": 900, "c": 100, "b": 0, "e": 450}
    commands = []
    for order, at_once in ((list(loads), True), (list(loads), False), (sorted(loads), False)):
        world = MigrationWorld(LOAD)
        world.handle(PauseChanged("m", paused=True))
        events: list[AnyEvent] = [world.worker(name) for name in order]
        events += [world.report(name, loads[name], 5) for name in order]
        for batch in [events] if at_once else [[event] for event in events]:
            world.handle(*batch)
        world.handle(PauseChanged("m", paused=False))
        world.now += 500
        commands.append(msgspec.json.encode(world.handle()))
    assert commands[0] == commands[1] == commands[2]
    assert b'"worker":"a"' in commands[0]


def test_a_worker_without_slots_neither_sends_nor_receives() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 400, 5)
    world.join("b", 0, 0)
    world.handle(world.load_report("b", migration_slots_in=None, migration_slots_out=None))
    assert world.handle(world.report("a", 900, 5)) == []
    assert pairs(world.handle(world.load_report("b", migration_slots_in=SLOTS, migration_slots_out=SLOTS))) == [
        ("a", "b")
    ]


def test_a_worker_receives_once_all_its_ranks_have_reported() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 400, 5)
    world.join("b", 0, 0)
    world.handle(world.worker("b", data_parallel_size=2))
    assert world.handle(world.report("a", 900, 5)) == []


def test_changed_knobs_apply_at_once() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 550, 5)
    world.join("b", 300, 0)
    (model,) = world.settings.models
    changed_model = replace(model, migration=replace(world.knobs, load_balance_threshold=0.1))
    changed = SettingsChanged(msgspec.Raw(msgspec.json.encode(replace(world.settings, models=(changed_model,)))))
    assert pairs(world.handle(changed)) == [("a", "b")]


def test_peers_are_forgotten_with_their_workers() -> None:
    world = MigrationWorld(LOAD)
    for name in ("a", "b"):
        world.join(name)
        world.handle(world.worker(name, incarnation=2))  # it has not reported in this incarnation
        world.deregister(name)
    assert world.controller.state.fleet.models["m"].migration.peers.known == {}


def test_a_restored_agent_repeats_no_command() -> None:
    """Reports that the snapshot holds are not new to the restored agent."""
    world = MigrationWorld(replace(LOAD, interval_ms=10_000))
    world.join("a", 400, 5)
    world.join("b", 0, 0)
    world.join("c", 400, 5)
    world.handle(PauseChanged("m", paused=True))
    world.handle(world.report("a", 900, 5))
    world.handle(PauseChanged("m", paused=False))
    other = Controller(world.settings)
    other.restore(world.controller.snapshot())
    new_report = world.load_report("c")
    assert world.controller.handle([new_report], world.now) == other.handle([new_report], world.now) == []
    assert world.controller.snapshot() == other.snapshot()
