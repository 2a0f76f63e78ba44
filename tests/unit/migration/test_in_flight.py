"""Migrations in flight: their effect on load and slots, and how each of them ends."""

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.migration.in_flight import ENDED_RETENTION_MS, InFlightMigration
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.events import MigrationReported
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint, MigrationReportPhase
from tests.support.migration_world import MigrationWorld, pairs

LOAD = MigrationKnobs(
    policies=("decode_load",),
    decode_load_threshold=0.5,
    load_balance_threshold=0.2,
    req_select_value=0.0,
)
FAILOVER = replace(LOAD, policies=("decode_failover",))


def start_migration(knobs: MigrationKnobs = LOAD) -> tuple[MigrationWorld, str]:
    """Return a world in which ``hot`` was told to send 400 tokens, 4 requests, to ``cold``, and the command id."""
    world = MigrationWorld(knobs)
    world.join("cold", 0, 0)
    (command,) = world.join("hot", 800, 8)
    assert pairs([command]) == [("hot", "cold")]
    return world, command.command_id


def migration(world: MigrationWorld, command_id: str) -> InFlightMigration | None:
    return world.controller.state.migration.in_flight.open.get(command_id)


def outcomes(world: MigrationWorld) -> dict[str, int]:
    return world.controller.state.fleet.models["m"].migration.tally.commands


def test_no_migration_is_commanded_twice() -> None:
    world, _ = start_migration()
    assert world.advance(20_000) == []
    assert world.handle(world.report("hot", 950, 9)) == []


def test_requests_in_flight_count_at_the_destination() -> None:
    world, _ = start_migration()
    world.join("other", 300, 3)  # cold will have 400 tokens, so this worker is the emptiest now
    assert pairs(world.handle(world.worker("hot2"), world.report("hot2", 800, 8))) == [("hot2", "other")]


def test_no_worker_sends_and_receives_at_a_time() -> None:
    world, _ = start_migration()
    world.join("empty", 0, 0)
    assert world.handle(world.report("cold", 900, 9), world.report("hot", 0, 0)) == []


@pytest.mark.parametrize("accepted", [True, None])
def test_an_answer_does_not_release_the_workers(*, accepted: bool | None) -> None:
    world, command_id = start_migration()
    (command,) = (one.command for one in world.controller.state.migration.in_flight.open.values())
    assert world.answer(command, accepted=accepted, requests=4, tokens=400) == []
    assert migration(world, command_id) is not None
    assert world.advance(20_000) == []


def test_a_refusal_releases_both_and_excludes_the_source_until_its_next_report() -> None:
    world, command_id = start_migration()
    found = migration(world, command_id)
    assert found is not None
    assert world.answer(found.command, accepted=False, requests=0, reason="no_slots") == []
    assert migration(world, command_id) is None
    world.now += 1
    assert world.handle(world.load_report("cold")) == []
    assert pairs(world.handle(world.load_report("hot"))) == [("hot", "cold")]
    assert outcomes(world) == {"decode_load:planned": 2, "decode_load:refused:no_slots": 1}


def test_migrating_requests_occupy_slots() -> None:
    world, command_id = start_migration()
    found = migration(world, command_id)
    assert found is not None
    assert found.slots == found.command.requests_max
    world.answer(found.command, requests=4, tokens=400)
    assert found.slots == 4
    world.report_phase(found.command, "admitted", requests=4)
    world.report_phase(found.command, "switched", moved=1, tokens=100, requests=4)
    assert found.slots == 3
    world.report_phase(found.command, "copying", moved=1, failed=1, requests=4)
    assert found.slots == 2
    world.report_phase(found.command, "done", moved=3, failed=1, tokens=300, requests=4)
    assert (found.slots, found.ended) == (0, True)


def test_a_released_slot_is_used_in_the_same_turn() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("a", 0, 0, migration_slots_in=1)
    world.join("ill", 100, 10)
    (first,) = world.handle(world.load_report("ill", schedulable=False))
    world.answer(first, requests=1, tokens=10)
    world.handle(world.load_report("a", migration_slots_in=0))
    world.now += 1
    (second,) = world.report_phase(first, "done", moved=1, tokens=10)
    assert pairs([second]) == [("ill", "a")]
    assert second.command_id != first.command_id


def test_reported_free_slots_come_on_top_of_started_migrations() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("a", 0, 0, migration_slots_in=4)
    world.join("ill", 100, 2)
    (first,) = world.handle(world.load_report("ill", schedulable=False))
    world.answer(first, requests=2, tokens=20)
    world.handle(world.load_report("a", migration_slots_in=2))
    world.join("worse", 100, 9)
    (second,) = world.handle(world.load_report("worse", schedulable=False))
    assert (second.source.worker, second.requests_max) == ("worse", 2)


@pytest.mark.parametrize(("phase", "outcome"), [("done", "done"), ("aborted", "aborted:finished")])
def test_a_repeated_end_counts_once(phase: MigrationReportPhase, outcome: str) -> None:
    world, command_id = start_migration()
    found = migration(world, command_id)
    assert found is not None
    world.answer(found.command, requests=1, tokens=100)
    for _ in range(3):
        done = int(phase == "done")
        reason = "" if done else "finished"
        world.report_phase(found.command, phase, moved=done, failed=1 - done, tokens=100 * done, reason=reason)  # type: ignore[arg-type]  # one of the two
    assert outcomes(world)[f"decode_load:{outcome}"] == 1
    tally = world.controller.state.fleet.models["m"].migration.tally
    assert tally.requests == ({"decode_load": 1} if done else {})
    assert tally.tokens == ({"decode_load": 100} if done else {})


def test_an_ended_migration_counts_until_both_workers_have_reported() -> None:
    world, command_id = start_migration()
    found = migration(world, command_id)
    assert found is not None
    world.answer(found.command, requests=4, tokens=400)
    world.now += 100
    assert world.report_phase(found.command, "done", moved=4, tokens=400, requests=4) == []
    world.now += 100
    assert world.handle(world.report("hot", 400, 4)) == []  # cold still reports no load
    assert world.handle(world.report("cold", 400, 4)) == []
    world.now += ENDED_RETENTION_MS
    assert world.handle() == []
    assert migration(world, command_id) is None


def test_a_migration_without_reports_is_lost_with_an_alarm() -> None:
    world, command_id = start_migration(replace(LOAD, ttl_ms=10_000))
    world.advance(11_000)
    assert migration(world, command_id) is not None
    again = world.advance(1_000)
    assert migration(world, command_id) is None
    assert pairs(again) == [("hot", "cold")]
    assert [alarm.kind for alarm in world.alarms] == ["migration_lost"]
    assert outcomes(world)["decode_load:lost:deadline"] == 1


def test_reports_may_overtake_the_answer() -> None:
    world, command_id = start_migration()
    found = migration(world, command_id)
    assert found is not None
    world.report_phase(found.command, "admitted", requests=2)
    world.answer(found.command, requests=2, tokens=200)
    assert found.phase == "admitted"
    assert found.slots == 2


def test_a_migration_is_lost_when_its_source_is_gone() -> None:
    world, command_id = start_migration()
    world.deregister("hot")
    world.advance(world.knobs.suspect_after_ms, silent=("hot",))
    assert migration(world, command_id) is not None
    world.advance(1_000, silent=("hot",))
    assert migration(world, command_id) is None
    assert outcomes(world)["decode_load:lost:source_lost"] == 1


def test_a_vanished_source_that_still_reports_ends_its_migration() -> None:
    world, command_id = start_migration()
    found = migration(world, command_id)
    assert found is not None
    world.deregister("hot")
    world.advance(2 * world.knobs.suspect_after_ms)
    world.report_phase(found.command, "done", moved=1, tokens=50)
    assert outcomes(world)["decode_load:done"] == 1


def test_a_new_incarnation_of_the_source_ends_its_migrations() -> None:
    world, command_id = start_migration()
    world.handle(world.worker("hot", incarnation=2))
    assert migration(world, command_id) is None


def test_a_source_ends_a_migration_whose_destination_is_gone() -> None:
    world, command_id = start_migration()
    found = migration(world, command_id)
    assert found is not None
    world.answer(found.command, requests=4, tokens=400)
    world.deregister("cold")
    assert migration(world, command_id) is found
    world.report_phase(found.command, "aborted", failed=4, reason="destination_lost", requests=4)
    assert found.ended


def test_migrations_of_an_earlier_leader_are_adopted_with_their_first_report() -> None:
    world = MigrationWorld(replace(LOAD, migrations_max=1))
    world.join("cold", 0, 0)
    world.join("hot", 400, 4)
    ends = MigrationEndpoint("decode", "hot", 1), MigrationEndpoint("decode", "cold", 1)
    report = MigrationReported("before", "m", 6, *ends, "decode_load", "copying", 1, 0, 0, 0, 5)
    world.handle(report)
    assert migration(world, "before") is not None
    assert world.handle(world.report("hot", 900, 9)) == []
    assert world.handle(replace(report, phase="done", moved=1, tokens=100)) == []
    world.now += world.knobs.interval_ms
    assert pairs(world.handle()) == [("hot", "cold")]


def test_the_end_of_an_unknown_migration_is_ignored() -> None:
    world, _ = start_migration()
    ends = MigrationEndpoint("decode", "hot", 1), MigrationEndpoint("decode", "cold", 1)
    world.handle(MigrationReported("unknown", "m", 6, *ends, "decode_load", "done", 1, 1, 0, 100, 5))
    assert migration(world, "unknown") is None
    assert outcomes(world) == {"decode_load:planned": 1}


def test_command_ids_are_unique_and_reproducible() -> None:
    ids = [[command.command_id for command in spread()] for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(ids[0]) == 3


def spread() -> list[Migration]:
    world = MigrationWorld(FAILOVER)
    for name in ("a", "b", "c"):
        world.join(name, 0, 0)
    world.join("ill", 90, 9)
    return world.handle(world.load_report("ill", schedulable=False))


def test_a_snapshot_holds_migrations_in_flight() -> None:
    world, command_id = start_migration()
    snapshot = msgspec.json.decode(world.controller.snapshot())
    assert list(snapshot["state"]["migration"]["in_flight"]["open"]) == [command_id]
