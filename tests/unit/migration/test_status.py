"""Migrations in the status: those in flight, outcomes, and drain times."""

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from loadline.core.controller import Controller
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.status import LISTED_MAX
from loadline.core.migration.tally import RECENT_MAX, RECENT_MS, MigrationTally
from loadline.core.queries import status as query
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    DrainRequested,
    MigrationReported,
    RegistryRead,
    SettingsChanged,
    WorkerDrained,
)
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint
from loadline.core.vocabulary.samples import RegisteredWorker
from loadline.core.vocabulary.status import DurationTotal, MigrationStatus, ModelStatus, RecentMigration
from loadline.runtime.status_parts import without_lists
from loadline.wire.codec import encode
from tests.support.controller_world import booted
from tests.support.migration_world import POOLS, MigrationWorld

KNOBS = MigrationKnobs(policies=("decode_load",), decode_load_threshold=0.5)


def model_of(controller: Controller, now: int) -> ModelStatus:
    (model,) = query.status(controller.settings, controller.state, "0", now, now).models
    return model


def seen(world: MigrationWorld) -> MigrationStatus:
    found = model_of(world.controller, world.now).migrations
    assert found is not None
    return found


def commanded(**knobs: Any) -> tuple[MigrationWorld, Migration]:
    """Return a world with two workers and the command from one to the other."""
    world = MigrationWorld(replace(KNOBS, **knobs))
    world.join("a", 800, 8)
    (command,) = world.join("b", 100, 1)
    return world, command


def report(**fields: Any) -> MigrationReported:
    """Return a report of an unknown migration."""
    first = MigrationReported(
        command_id="c",
        model="m",
        epoch=7,
        source=MigrationEndpoint("decode", "a", 1),
        destination=MigrationEndpoint("decode", "b", 1),
        trigger="x",
        phase="admitted",
        requests=1,
        moved=0,
        failed=0,
        tokens=0,
        took_ms=1,
    )
    return replace(first, **fields)


def test_the_status_lists_a_migration_from_its_command_to_its_end() -> None:
    world, command = commanded()
    (one,) = seen(world).in_flight_commands
    assert (one.source, one.destination, one.policy, one.phase) == ("a", "b", "decode_load", "asked")
    world.now += 30
    world.answer(command, requests=3)
    world.now += 70
    world.report_phase(command, "copying", requests=3)
    world.report_phase(command, "switched", requests=3, moved=2)
    shown = seen(world)
    (one,) = shown.in_flight_commands
    assert (one.command_id, one.phase, one.age_ms, one.requests, one.moved) == (
        command.command_id,
        "switched",
        100,
        3,
        2,
    )
    world.now += 5
    world.report_phase(command, "done", moved=3, tokens=300, requests=3)
    shown = seen(world)
    assert (shown.in_flight, shown.in_flight_commands) == (0, ())
    assert (shown.requests, shown.tokens) == ({"decode_load": 3}, {"decode_load": 300})
    assert shown.commands == {f"decode_load:{what}": 1 for what in ("accepted", "done", "planned")}
    assert shown.recent == (RecentMigration("a", "b", "decode_load", 3, world.now),)
    times = {"accepted": 70, "asked": 30, "copying": 0, "switched": 5}
    assert shown.phases == {phase: DurationTotal(1, took_ms) for phase, took_ms in times.items()}


def test_a_migration_whose_report_overtakes_the_answer_is_accepted_once() -> None:
    world, command = commanded()
    world.report_phase(command, "admitted")
    world.answer(command)
    world.report_phase(command, "done", moved=1)
    assert seen(world).commands == {f"decode_load:{what}": 1 for what in ("accepted", "done", "planned")}


def test_a_repeated_phase_counts_once() -> None:
    world, command = commanded()
    world.answer(command, requests=2)
    for moved in (0, 1, 2):
        world.report_phase(command, "switched", requests=2, moved=moved)
        world.now += 10
    world.report_phase(command, "done", requests=2, moved=2)
    assert seen(world).phases["switched"] == DurationTotal(1, 30)


def test_outcomes_are_counted_with_their_reasons() -> None:
    world, command = commanded()
    world.answer(command, accepted=False, reason="no_slots")
    (again,) = world.advance(1_000)
    world.answer(again)
    world.report_phase(again, "aborted", failed=1, reason="destination_refused")
    (third,) = world.advance(1_000)
    world.answer(third, accepted=None)
    shown = seen(world)
    assert shown.commands == {
        "decode_load:planned": 3,
        "decode_load:refused:no_slots": 1,
        "decode_load:accepted": 1,
        "decode_load:aborted:destination_refused": 1,
        "decode_load:unanswered": 1,
    }
    assert shown.requests == {}
    assert (shown.silent, shown.silent_workers) == (1, ("a",))
    world.now += KNOBS.breaker_ms
    assert seen(world).silent == 0, "the command is repeated"


def test_the_lists_are_bounded_and_the_counts_are_not() -> None:
    world, _ = commanded(migrations_per_worker_max=1_000)
    for number in range(LISTED_MAX + 6):
        source = MigrationEndpoint("decode", "ab"[number % 2], 1)
        world.handle(report(command_id=f"c{number}", source=source))
    shown = seen(world)
    assert (shown.in_flight, len(shown.in_flight_commands)) == (LISTED_MAX + 7, LISTED_MAX)
    assert shown.in_flight_commands[0].phase == "asked", "the oldest is first"


def test_unknown_triggers_are_counted_as_other() -> None:
    world, _ = commanded()
    for number in range(20):
        world.handle(report(command_id=f"c{number}", trigger=f"x{number}"))
        world.handle(report(command_id=f"c{number}", phase="done", trigger=f"x{number}", moved=1, tokens=9))
    shown = seen(world)
    assert shown.commands == {"decode_load:planned": 1, "other:done": 20}
    assert (shown.requests, shown.tokens) == ({"other": 20}, {"other": 180})


def test_recent_migrations_are_the_newest_of_5_minutes() -> None:
    world, _ = commanded(migrations_per_worker_max=1_000)
    numbers = range(1, RECENT_MAX + 3)
    for number in numbers:
        world.handle(report(command_id=f"c{number}", requests=number))
        world.handle(report(command_id=f"c{number}", phase="done", requests=number, moved=number))
    assert [one.requests for one in seen(world).recent] == list(numbers)[-RECENT_MAX:]
    world.now += RECENT_MS + 1
    assert seen(world).recent == ()


def test_a_standby_follows_migrations_without_counting_them() -> None:
    world, _ = commanded()

    def shown(controller: Controller) -> MigrationStatus | None:
        return model_of(controller, world.now).migrations

    other = Controller(world.settings)
    there = [RegisteredWorker(record, 5) for record in world.records.values()]
    other.handle([BusConnectionChanged(connected=True), RegistryRead(there)], world.now)
    other.handle([report()], world.now)
    followed = shown(other)
    assert followed is not None
    assert followed.in_flight == 1
    other.handle([report(phase="done", moved=1)], world.now)
    assert shown(other) == MigrationStatus(0, (), {}, {}, {}, {}, 0, ())
    other.handle([report(command_id="d")], world.now)
    other.handle([], world.now + 60_000)
    assert other.state.migration.in_flight.open == {}


def test_a_repeated_end_is_no_rejection() -> None:
    world, command = commanded()
    world.answer(command)
    for _ in range(3):
        world.report_phase(command, "aborted", failed=1, reason="finished")
    assert world.controller.state.rejected == {}
    assert seen(world).commands["decode_load:aborted:finished"] == 1


def test_a_model_without_migration_has_no_migration_status() -> None:
    settings = Settings("agent-1", "all", (ModelKnobs("m", POOLS),))
    assert model_of(Controller(settings), 0).migrations is None


def test_a_large_status_omits_its_lists_of_migrations() -> None:
    world, _ = commanded()
    model = without_lists(model_of(world.controller, world.now))
    assert model.migrations is not None
    assert (model.migrations.in_flight, model.migrations.in_flight_commands) == (1, ())
    assert all(not pool.workers for pool in model.pools)


def test_drained_workers_are_counted_with_their_time() -> None:
    world = booted()
    world.run(10)
    world.handle(DrainRequested("m", "decode", "d1", "me"))
    world.now += 700
    world.handle(WorkerDrained("m", "decode", "d1", 1))
    emptied = model_of(world.controller, world.now).emptied
    assert emptied == DurationTotal(1, 700)
    assert emptied.mean_ms == 700.0
    assert DurationTotal().mean_ms == 0.0
    (model,) = world.controller.settings.models
    gone = replace(world.controller.settings, models=(replace(model, name="n"),))
    world.handle(SettingsChanged(Raw(encode(gone))))
    assert world.controller.state.fleet.models["n"].migration.tally == MigrationTally()
