"""When moves are planned: in the turn that has a reason for it, by whoever may, whatever came in which turn."""

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
from tests.support.movers import SLOTS, Movers, pairs

LOAD = MigrationKnobs(
    policies=("decode_load",),
    decode_load_threshold=0.5,
    load_balance_threshold=0.3,
)


def test_a_sample_that_changes_the_picture_is_acted_on_in_its_turn() -> None:
    world = Movers(LOAD)
    world.join("a", 400)
    world.join("b", 0)
    world.now += 1
    assert pairs(world.tell(world.report("a", 900, 5))) == [("a", "b")]


def test_a_new_worker_takes_at_once_what_others_have_too_much_of() -> None:
    world = Movers(LOAD)
    world.join("a", 900, 5)
    world.now += 1
    assert pairs(world.join("new", 0, 0)) == [("a", "new")]


def test_a_sample_that_changes_nothing_asks_for_nothing() -> None:
    world = Movers(LOAD)
    world.join("a", 400)
    world.join("b", 0)
    assert world.wait(5_000) == []


def test_who_takes_from_one_that_was_heard_takes_from_no_other_in_that_turn() -> None:
    world = Movers(replace(LOAD, req_select_value=0.0))
    world.join("a", 590, 5)
    world.join("b", 400, 5)
    world.join("c", 400, 5)
    assert pairs(world.tell(world.report("b", 0, 0), world.report("c", 600, 5))) == [("c", "b")]


def away(world: Movers) -> None:
    world.tell(BusConnectionChanged(connected=False))


def paused(world: Movers) -> None:
    world.tell(PauseChanged("m", paused=True))


def stopping(world: Movers) -> None:
    world.tell(ShutdownRequested())


def following(world: Movers) -> None:
    world.controller.handle([LeaderChanged("all", "agent-2", 8, 8), CampaignLost("all", "agent-2")], world.now)


@pytest.mark.parametrize("forbid", [away, paused, stopping, following])
def test_nothing_is_asked_while_it_must_not_be(forbid: object) -> None:
    world = Movers(LOAD)
    world.join("a", 0)
    world.join("b", 0)
    assert callable(forbid)
    forbid(world)
    world.now += 1_000
    told = [world.report("a", 900, 5), world.report("b", 0, 0)]
    assert world.controller.handle(told, world.now) == []


def test_nothing_is_asked_before_the_registry_was_read() -> None:
    world = Movers(LOAD)
    world.controller = Controller(world.settings)
    world.tell(BusConnectionChanged(connected=True))
    world.join("a", 900, 5)
    assert world.join("b", 0, 0) == []
    world.now += 500
    assert pairs(world.tell(RegistryRead([event.worker for event in map(world.worker, ("a", "b"))]))) == [("a", "b")]


def test_what_is_known_by_then_is_acted_on_when_it_is_allowed_again() -> None:
    world = Movers(LOAD)
    world.tell(PauseChanged("m", paused=True))
    world.join("a", 900, 5)
    world.join("b", 0, 0)
    world.tell(PauseChanged("m", paused=False))
    world.now += world.knobs.interval_ms
    assert pairs(world.tell()) == [("a", "b")]


def test_the_same_in_one_turn_or_in_many_asks_for_the_same() -> None:
    loads = {"d": 800, "a": 900, "c": 100, "b": 0, "e": 450}
    asked = []
    for order, at_once in ((list(loads), True), (list(loads), False), (sorted(loads), False)):
        world = Movers(LOAD)
        world.tell(PauseChanged("m", paused=True))
        events: list[AnyEvent] = [world.worker(name) for name in order]
        events += [world.report(name, loads[name], 5) for name in order]
        for batch in [events] if at_once else [[event] for event in events]:
            world.tell(*batch)
        world.tell(PauseChanged("m", paused=False))
        world.now += 500
        asked.append(msgspec.json.encode(world.tell()))
    assert asked[0] == asked[1] == asked[2]
    assert b'"worker":"a"' in asked[0]


def test_who_says_no_more_that_it_can_move_takes_part_no_more() -> None:
    world = Movers(LOAD)
    world.join("a", 400, 5)
    world.join("b", 0, 0)
    world.tell(world.said("b", migration_slots_in=None, migration_slots_out=None))
    assert world.tell(world.report("a", 900, 5)) == []
    assert pairs(world.tell(world.said("b", migration_slots_in=SLOTS, migration_slots_out=SLOTS))) == [("a", "b")]


def test_a_rank_that_has_not_reported_keeps_its_worker_out() -> None:
    world = Movers(LOAD)
    world.join("a", 400, 5)
    world.join("b", 0, 0)
    world.tell(world.worker("b", data_parallel_size=2))
    assert world.tell(world.report("a", 900, 5)) == []


def test_other_knobs_are_obeyed_from_then_on() -> None:
    world = Movers(LOAD)
    world.join("a", 550, 5)
    world.join("b", 300, 0)
    (model,) = world.settings.models
    eager = replace(model, migration=replace(world.knobs, load_balance_threshold=0.1))
    changed = SettingsChanged(msgspec.Raw(msgspec.json.encode(replace(world.settings, models=(eager,)))))
    assert pairs(world.tell(changed)) == [("a", "b")]


def test_what_is_remembered_of_workers_goes_with_them() -> None:
    world = Movers(LOAD)
    for name in ("a", "b"):
        world.join(name)
        world.tell(world.worker(name, incarnation=2))  # it has not reported in this life
        world.leave(name)
    assert world.controller.state.fleet.models["m"].migration.peers.known == {}


def test_an_agent_that_goes_on_from_a_snapshot_asks_for_no_more() -> None:
    """What was new to the one that wrote it is not new to its successor."""
    world = Movers(replace(LOAD, interval_ms=10_000))
    world.join("a", 400, 5)
    world.join("b", 0, 0)
    world.join("c", 400, 5)
    world.tell(PauseChanged("m", paused=True))
    world.tell(world.report("a", 900, 5))
    world.tell(PauseChanged("m", paused=False))
    other = Controller(world.settings)
    other.restore(world.controller.snapshot())
    said = world.said("c")
    assert world.controller.handle([said], world.now) == other.handle([said], world.now) == []
    assert world.controller.snapshot() == other.snapshot()
