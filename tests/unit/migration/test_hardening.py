"""Robustness: false reports, silent or returning workers, changed settings and exceptions."""

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
from tests.support.migration_world import MigrationWorld, pairs

LOAD = MigrationKnobs(policies=("decode_load",), decode_load_threshold=0.5)
FAILOVER = MigrationKnobs(policies=("decode_failover",), failover_domain="node")


def commanded() -> tuple[MigrationWorld, Migration]:
    world = MigrationWorld(LOAD)
    world.join("a", 800, 8)
    (command,) = world.join("b", 100, 1)
    return world, command


def open_migrations(world: MigrationWorld) -> dict[str, InFlightMigration]:
    return world.controller.state.migration.in_flight.open


def report(command_id: str = "c", *, epoch: int = 7, source: str = "a", incarnation: int = 1) -> MigrationReported:
    ends = MigrationEndpoint("decode", source, incarnation), MigrationEndpoint("decode", "b", 1)
    return MigrationReported(command_id, "m", epoch, *ends, "decode_load", "copying", 900, 0, 0, 10, 5)


def test_reports_of_unknown_incarnations_and_epochs_are_not_adopted() -> None:
    world, command = commanded()
    world.handle(report("1", source="nobody"), report("2", incarnation=9), report("3", epoch=8))
    assert open_migrations(world).keys() == {command.command_id}


def test_a_source_cannot_fill_the_ledger() -> None:
    world, _ = commanded()
    for number in range(1_000):
        world.handle(report(f"c{number}"))
    assert (
        sum(migration.slots for migration in open_migrations(world).values()) == world.knobs.migrations_per_worker_max
    )


def test_a_report_of_another_migration_under_the_same_id_is_ignored() -> None:
    world, command = commanded()
    before = open_migrations(world)[command.command_id]
    for other in (report(epoch=6), report(source="b"), report(incarnation=2)):
        world.handle(replace(other, command_id=command.command_id))
    assert before.phase == "asked"


def test_a_source_counts_for_at_most_the_commanded_requests() -> None:
    world, command = commanded()
    world.answer(command, requests=1_000_000, tokens=100)
    assert open_migrations(world)[command.command_id].slots <= command.requests_max


def test_a_model_without_migration_adopts_nothing() -> None:
    world = MigrationWorld(LOAD)
    still = replace(world.settings.models[0], migration=MigrationKnobs())
    other = Controller(replace(world.settings, models=(still,)))
    there = [world.worker("a").worker, world.worker("b").worker]
    other.handle([BusConnectionChanged(connected=True), RegistryRead(there), report()], world.now)
    assert other.state.migration.in_flight.open == {}
    assert other._mode.migration.next_wake() is None


def test_an_unanswered_command_occupies_no_slots() -> None:
    world = MigrationWorld(replace(LOAD, migrations_max=4))
    world.join("cold", 100, 1)
    world.join("colder", 0, 0)
    (command, *_) = world.join("hot", 900, 9)
    world.answer(command, accepted=None)
    assert open_migrations(world)[command.command_id].slots == 0
    assert pairs(world.join("hotter", 950, 9)) != []


def domain() -> MigrationWorld:
    world = MigrationWorld(FAILOVER)
    for name, node in (("a0", "a"), ("a1", "a"), ("b0", "b")):
        world.handle(world.worker(name, node=node))
        world.handle(world.report(name, 10, 1))
    return world


def test_a_worker_in_the_registry_has_not_vanished() -> None:
    world = domain()
    world.deregister("a0")
    world.handle(RegistryRead([RegisteredWorker(record, 5) for record in world.records.values()]))
    assert world.controller.state.migration.vanished == {}
    assert world.advance(10_000) == []


def test_a_drained_worker_has_not_vanished() -> None:
    world = domain()
    world.deregister("a0")
    world.handle(WorkerDrained("m", "decode", "a0", 1))
    assert world.controller.state.migration.vanished == {}


def test_failed_workers_are_forgotten_while_no_rounds_take_place() -> None:
    world = domain()
    world.handle(world.load_report("a0", schedulable=False))
    memory = world.controller.state.fleet.models["m"].migration
    assert len(memory.failed) == 1
    world.handle(BusConnectionChanged(connected=False))
    world.advance(2_000)
    assert memory.failed == []


def test_reports_of_removed_policies_are_forgotten() -> None:
    world = domain()
    world.handle(world.load_report("a0", schedulable=False))
    group = world.controller.state.fleet.models["m"].migration.groups["decode"]
    assert group.reports.keys() == {"drain", "decode_failover"}
    model = world.settings.models[0]
    settings = replace(world.settings, models=(replace(model, migration=replace(LOAD, enabled=True)),))
    world.handle(SettingsChanged(Raw(encode(settings))))
    assert not any(name.endswith("failover") for name in group.reports)


def test_an_adopted_migration_has_the_configured_time_to_live() -> None:
    world = MigrationWorld(replace(LOAD, ttl_ms=300_000))
    world.join("a", 400, 4)
    world.join("b", 100, 1)
    world.handle(report("of-old", epoch=6))
    world.advance(300_000)
    assert "of-old" in open_migrations(world)
    world.advance(3_000)
    assert "of-old" not in open_migrations(world)


def test_reports_of_an_earlier_incarnation_do_not_count_for_a_vanished_worker() -> None:
    world = MigrationWorld(FAILOVER)
    for name in ("a0", "a1", "b0"):
        world.handle(world.worker(name, node=name[0], incarnation=2))
        world.handle(world.report(name, 10, 1))
    ghost = replace(world.load_report("a0"), incarnation=1)
    world.deregister("a0")
    commanded = []
    for _ in range(6):
        commanded += world.advance(1_000, silent=("a0",))
        world.handle(ghost)
    assert pairs(commanded)[:1] == [("a1", "b0")]


def test_codes_of_unused_nodes_are_recycled() -> None:
    world = MigrationWorld(LOAD)
    planner = world.controller._mode.migration
    for incarnation in range(1, 6_001):
        world.handle(world.worker("a", incarnation=incarnation, node=f"n{incarnation}"), world.report("a", 10, 1))
    assert len(planner._nodes) < 5_000


def many(command_id: str, requests: int, *, source: str = "a", tokens: int = 5) -> MigrationReported:
    ends = MigrationEndpoint("decode", source, 1), MigrationEndpoint("decode", "b", 1)
    return MigrationReported(command_id, "m", 7, *ends, "decode_load", "copying", requests, 0, 0, tokens, 5)


def test_more_adopted_requests_than_slots_leave_none_free() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("a", 0, 8, migration_slots_out=4)
    world.join("b", 0, 0)
    world.join("c", 0, 0)
    world.handle(many("of-old", 6))
    assert world.handle(world.load_report("a", schedulable=False)) == []
    world.join("ill", 10, 1)
    assert pairs(world.handle(world.load_report("ill", schedulable=False))) == [("ill", "c")]


def test_a_destination_with_unknown_load_receives_if_others_cannot() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("a", 10, 2, migration_slots_out=2)
    world.join("b", 10, 1)
    world.join("c", 10, 1)
    world.join("d", 0, 1, kv_blocks_total=None, kv_blocks_used=None)
    assert len(world.handle(world.load_report("a", schedulable=False))) == 2
    assert world.advance(1_000) == []


def test_a_source_that_invents_migrations_does_not_block_others() -> None:
    world = MigrationWorld(replace(FAILOVER, migrations_max=64))
    for name in ("evil", "a", "b", "c"):
        world.join(name, 10, 2)
    for number in range(100):
        world.handle(many(f"made-up-{number}", 64, source="evil"))
    assert (
        sum(migration.requests for migration in open_migrations(world).values())
        == world.knobs.migrations_per_worker_max
    )
    assert len(world.handle(world.load_report("a", schedulable=False))) > 0


def test_migrations_to_unknown_workers_are_not_adopted() -> None:
    world, command = commanded()
    its = replace(report("elsewhere"), destination=MigrationEndpoint("decode", "nobody", 1))
    world.handle(its, replace(its, command_id="other", destination=MigrationEndpoint("decode", "b", 9)))
    assert open_migrations(world).keys() == {command.command_id}


def test_a_report_after_the_end_does_not_restart_a_migration() -> None:
    world, command = commanded()
    world.answer(command)
    world.report_phase(command, "aborted", failed=1, reason="destination_refused")
    world.report_phase(command, "copying")
    assert [migration.ended for migration in open_migrations(world).values()] == [True]
    world.advance(6_000)
    assert command.command_id not in open_migrations(world)


def test_lost_migrations_of_one_source_raise_one_alarm() -> None:
    world = MigrationWorld(FAILOVER)
    for name in ("a", "b"):
        world.join(name, 10, 2)
    world.handle(*(many(f"of-old-{number}", 1) for number in range(5)))
    world.advance(world.knobs.ttl_ms + 3_000)
    assert [alarm.text for alarm in world.alarms] == ["a did not report the end of 5 of its migrations"]


def test_an_exception_stops_the_migrations_of_its_model_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 100, 1)
    world.join("b", 100, 1)

    def fails(*_args: object) -> None:
        raise ValueError("kth(=-3) out of bounds (2)")

    with monkeypatch.context() as broken:
        broken.setattr(MigrationRound, "plan", fails)
        assert world.advance(3_000) == []
        assert [(alarm.kind, alarm.text) for alarm in world.alarms] == [
            ("migration_failed", "ValueError: kth(=-3) out of bounds (2)")
        ]
        wake_ms = world.controller.next_wake()
        assert wake_ms is not None
        assert wake_ms > world.now
    assert pairs(world.handle(world.report("a", 900, 9))) == [("a", "b")]


def test_a_replay_does_not_depend_on_the_order_of_first_reports() -> None:
    world = MigrationWorld(LOAD)
    world.handle(world.worker("a"), world.worker("b"))
    later = Controller(world.settings)
    later.restore(world.controller.snapshot())
    events = [world.report("b", 10, 1), world.report("a", 10, 1)]
    for controller in (world.controller, later):
        controller.handle(events, world.now + 1)
    assert world.controller.snapshot() == later.snapshot()


def test_hundreds_of_failed_workers_are_evaluated_quickly() -> None:
    world = MigrationWorld(replace(FAILOVER, migrations_max=10_000))
    events = [world.worker(f"w{number}") for number in range(600)]
    reports = [world.report(f"w{number}", 995 if number % 3 else 900, 3, migration_slots_in=4) for number in range(600)]
    world.handle(*events, *reports)
    ill = [world.load_report(f"w{number}", schedulable=False) for number in range(600) if number % 3 == 0]
    looked = 0

    def count(*args: Any) -> Any:
        nonlocal looked
        looked += 1
        return size_for_evacuation(*args)

    with pytest.MonkeyPatch.context() as counted:
        counted.setattr(policies, "size_for_evacuation", count)
        world.controller._mode.migration._groups.clear()
        world.handle(*ill)
        world.handle(world.load_report("w1"))
    assert looked <= 16 * 600
