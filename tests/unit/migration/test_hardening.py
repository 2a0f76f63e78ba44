"""Reports that cannot be true, workers that are silent or come back, settings that change: nothing of it spreads."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from loadline.core.controller import Controller
from loadline.core.migration import policies
from loadline.core.migration.amounts import size_for_evacuation
from loadline.core.migration.in_flight import InFlightMigration
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.rounds.migration_round import MigrationRound
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    MigrationReported,
    RegistryRead,
    SettingsChanged,
    WorkerDrained,
)
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint
from loadline.core.vocabulary.samples import RegisteredWorker
from loadline.wire.codec import encode
from tests.support.movers import Movers, pairs

LOAD = MigrationKnobs(policies=("decode_load",), decode_load_threshold=0.5)
FAILOVER = MigrationKnobs(policies=("decode_failover",), failover_domain="node")


def asked() -> tuple[Movers, Migration]:
    world = Movers(LOAD)
    world.join("a", 800, 8)
    (move,) = world.join("b", 100, 1)
    return world, move


def open_flights(world: Movers) -> dict[str, InFlightMigration]:
    return world.controller.state.migration.in_flight.open


def report(command_id: str = "c", *, epoch: int = 7, source: str = "a", incarnation: int = 1) -> MigrationReported:
    ends = MigrationEndpoint("decode", source, incarnation), MigrationEndpoint("decode", "b", 1)
    return MigrationReported(command_id, "m", epoch, *ends, "decode_load", "copying", 900, 0, 0, 10, 5)


def test_reports_of_lives_and_terms_that_never_were_are_not_followed() -> None:
    world, move = asked()
    world.tell(report("1", source="nobody"), report("2", incarnation=9), report("3", epoch=8))
    assert open_flights(world).keys() == {move.command_id}


def test_one_worker_cannot_fill_the_memory_with_moves() -> None:
    world, _ = asked()
    for number in range(1_000):
        world.tell(report(f"c{number}"))
    assert sum(flight.slots for flight in open_flights(world).values()) == world.knobs.migrations_per_worker_max


def test_a_report_of_another_move_under_the_same_id_changes_nothing() -> None:
    world, move = asked()
    before = open_flights(world)[move.command_id]
    for other in (report(epoch=6), report(source="b"), report(incarnation=2)):
        world.tell(replace(other, command_id=move.command_id))
    assert before.phase == "asked"


def test_a_source_does_not_count_for_more_than_it_was_asked_for() -> None:
    world, move = asked()
    world.answer(move, requests=1_000_000, tokens=100)
    assert open_flights(world)[move.command_id].slots <= move.requests_max


def test_who_moves_nothing_follows_nothing() -> None:
    world = Movers(LOAD)
    still = replace(world.settings.models[0], migration=MigrationKnobs())
    other = Controller(replace(world.settings, models=(still,)))
    there = [world.worker("a").worker, world.worker("b").worker]
    other.handle([BusConnectionChanged(connected=True), RegistryRead(there), report()], world.now)
    assert other.state.migration.in_flight.open == {}
    assert other._mode.migration.next_wake() is None


def test_a_source_that_does_not_answer_takes_no_slots_of_others() -> None:
    world = Movers(replace(LOAD, migrations_max=4))
    world.join("cold", 100, 1)
    world.join("colder", 0, 0)
    (move, *_) = world.join("hot", 900, 9)
    world.answer(move, accepted=None)
    assert open_flights(world)[move.command_id].slots == 0
    assert pairs(world.join("hotter", 950, 9)) != []


def domain() -> Movers:
    world = Movers(FAILOVER)
    for name, node in (("a0", "a"), ("a1", "a"), ("b0", "b")):
        world.tell(world.worker(name, node=node))
        world.tell(world.report(name, 10, 1))
    return world


def test_a_worker_that_is_read_again_has_not_vanished() -> None:
    world = domain()
    world.leave("a0")
    world.tell(RegistryRead([RegisteredWorker(record, 5) for record in world.records.values()]))
    assert world.controller.state.migration.vanished == {}
    assert world.wait(10_000) == []


def test_a_worker_that_was_emptied_has_not_vanished_whoever_leads() -> None:
    world = domain()
    world.leave("a0")
    world.tell(WorkerDrained("m", "decode", "a0", 1))
    assert world.controller.state.migration.vanished == {}


def test_nobody_is_remembered_as_failing_while_nothing_may_be_asked() -> None:
    world = domain()
    world.tell(world.said("a0", schedulable=False))
    memory = world.controller.state.fleet.models["m"].migration
    assert len(memory.failed) == 1
    world.tell(BusConnectionChanged(connected=False))
    world.wait(2_000)
    assert memory.failed == []


def test_of_policies_that_are_gone_nothing_is_kept() -> None:
    world = domain()
    world.tell(world.said("a0", schedulable=False))
    group = world.controller.state.fleet.models["m"].migration.groups["decode"]
    assert group.reports.keys() == {"drain", "decode_failover"}
    model = world.settings.models[0]
    settings = replace(world.settings, models=(replace(model, migration=replace(LOAD, enabled=True)),))
    world.tell(SettingsChanged(Raw(encode(settings))))
    assert not any(name.endswith("failover") for name in group.reports)


def test_a_move_of_the_leader_before_is_followed_for_as_long_as_moves_are_given() -> None:
    world = Movers(replace(LOAD, ttl_ms=300_000))
    world.join("a", 400, 4)
    world.join("b", 100, 1)
    world.tell(report("of-old", epoch=6))
    world.wait(300_000)
    assert "of-old" in open_flights(world)
    world.wait(3_000)
    assert "of-old" not in open_flights(world)


def test_what_an_earlier_life_says_does_not_speak_for_one_that_has_vanished() -> None:
    world = Movers(FAILOVER)
    for name in ("a0", "a1", "b0"):
        world.tell(world.worker(name, node=name[0], incarnation=2))
        world.tell(world.report(name, 10, 1))
    ghost = replace(world.said("a0"), incarnation=1)
    world.leave("a0")
    asked = []
    for _ in range(6):
        asked += world.wait(1_000, silent=("a0",))
        world.tell(ghost)
    assert pairs(asked)[:1] == [("a1", "b0")]


def test_names_of_nodes_that_are_gone_are_forgotten() -> None:
    world = Movers(LOAD)
    planner = world.controller._mode.migration
    for life in range(1, 6_001):
        world.tell(world.worker("a", incarnation=life, node=f"n{life}"), world.report("a", 10, 1))
    assert len(planner._nodes) < 5_000


def many(command_id: str, requests: int, *, source: str = "a", tokens: int = 5) -> MigrationReported:
    ends = MigrationEndpoint("decode", source, 1), MigrationEndpoint("decode", "b", 1)
    return MigrationReported(command_id, "m", 7, *ends, "decode_load", "copying", requests, 0, 0, tokens, 5)


def test_more_moves_than_there_are_slots_leave_none_free_and_nothing_else() -> None:
    world = Movers(FAILOVER)
    world.join("a", 0, 8, migration_slots_out=4)
    world.join("b", 0, 0)
    world.join("c", 0, 0)
    world.tell(many("of-old", 6))
    assert world.tell(world.said("a", schedulable=False)) == []
    world.join("ill", 10, 1)
    assert pairs(world.tell(world.said("ill", schedulable=False))) == [("ill", "c")]


def test_one_destination_of_which_nothing_is_known_among_others_that_are_not_asked() -> None:
    world = Movers(FAILOVER)
    world.join("a", 10, 2, migration_slots_out=2)
    world.join("b", 10, 1)
    world.join("c", 10, 1)
    world.join("d", 0, 1, kv_blocks_total=None, kv_blocks_used=None)
    assert len(world.tell(world.said("a", schedulable=False))) == 2
    assert world.wait(1_000) == []


def test_a_source_that_makes_up_moves_holds_up_nobody_for_long() -> None:
    world = Movers(replace(FAILOVER, migrations_max=64))
    for name in ("evil", "a", "b", "c"):
        world.join(name, 10, 2)
    for number in range(100):
        world.tell(many(f"made-up-{number}", 64, source="evil"))
    assert sum(flight.requests for flight in open_flights(world).values()) == world.knobs.migrations_per_worker_max
    assert len(world.tell(world.said("a", schedulable=False))) > 0


def test_moves_to_workers_that_there_are_not_are_not_followed() -> None:
    world, move = asked()
    its = replace(report("elsewhere"), destination=MigrationEndpoint("decode", "nobody", 1))
    world.tell(its, replace(its, command_id="other", destination=MigrationEndpoint("decode", "b", 9)))
    assert open_flights(world).keys() == {move.command_id}


def test_what_is_said_of_a_move_after_its_end_does_not_begin_it_anew() -> None:
    world, move = asked()
    world.answer(move)
    world.phase(move, "aborted", failed=1, reason="destination_refused")
    world.phase(move, "copying")
    assert [flight.ended for flight in open_flights(world).values()] == [True]
    world.wait(6_000)
    assert move.command_id not in open_flights(world)


def test_moves_of_one_source_that_never_ended_are_one_alarm() -> None:
    world = Movers(FAILOVER)
    for name in ("a", "b"):
        world.join(name, 10, 2)
    world.tell(*(many(f"of-old-{number}", 1) for number in range(5)))
    world.wait(world.knobs.ttl_ms + 3_000)
    assert [alarm.text for alarm in world.alarms] == ["a did not report the end of 5 of its migrations"]


def test_a_fault_holds_the_moves_of_its_model_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Movers(LOAD)
    world.join("a", 100, 1)
    world.join("b", 100, 1)

    def fails(*_args: object) -> None:
        raise ValueError("kth(=-3) out of bounds (2)")

    with monkeypatch.context() as broken:
        broken.setattr(MigrationRound, "plan", fails)
        assert world.wait(3_000) == []
        assert [(alarm.kind, alarm.text) for alarm in world.alarms] == [
            ("migration_failed", "ValueError: kth(=-3) out of bounds (2)")
        ]
        wake_ms = world.controller.next_wake()
        assert wake_ms is not None
        assert wake_ms > world.now
    assert pairs(world.tell(world.report("a", 900, 9))) == [("a", "b")]


def test_the_order_in_which_workers_were_first_heard_does_not_matter_to_a_replay() -> None:
    world = Movers(LOAD)
    world.tell(world.worker("a"), world.worker("b"))
    later = Controller(world.settings)
    later.restore(world.controller.snapshot())
    events = [world.report("b", 10, 1), world.report("a", 10, 1)]
    for controller in (world.controller, later):
        controller.handle(events, world.now + 1)
    assert world.controller.snapshot() == later.snapshot()


def test_hundreds_that_fail_in_a_full_fleet_take_no_time() -> None:
    world = Movers(replace(FAILOVER, migrations_max=10_000))
    events = [world.worker(f"w{number}") for number in range(600)]
    reports = [world.report(f"w{number}", 995 if number % 3 else 900, 3, migration_slots_in=4) for number in range(600)]
    world.tell(*events, *reports)
    ill = [world.said(f"w{number}", schedulable=False) for number in range(600) if number % 3 == 0]
    looked = 0

    def count(*args: Any) -> Any:
        nonlocal looked
        looked += 1
        return size_for_evacuation(*args)

    with pytest.MonkeyPatch.context() as counted:
        counted.setattr(policies, "size_for_evacuation", count)
        world.controller._mode.migration._groups.clear()
        world.tell(*ill)
        world.tell(world.said("w1"))
    assert looked <= 16 * 600
