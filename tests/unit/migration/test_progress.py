"""Progress of migrations of several requests: load, slots and time in phases."""

import pytest
from msgspec.structs import replace

from loadline.core.migration.columns import IN_REQUESTS, IN_TOKENS, OUT_REQUESTS, OUT_TOKENS
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.outcomes import MigrationCode
from loadline.core.migration.worker_table import WorkerTable
from loadline.core.vocabulary.migrations import Migration
from tests.support.migration_world import MigrationWorld, pairs

LOAD = MigrationKnobs(
    policies=("decode_load",),
    decode_load_threshold=0.5,
    req_select_value=0.0,
    load_balance_threshold=0.3,
)
FAILOVER = MigrationKnobs(policies=("decode_failover",))


def table(world: MigrationWorld) -> WorkerTable:
    groups = world.controller._mode.migration._groups["m"]
    return next(group.table for group in groups if group.name == "decode")


def in_flight(world: MigrationWorld, name: str, *rows: int) -> list[float]:
    """Return effects of the migrations in flight on a worker."""
    its = table(world)
    its.apply_in_flight(world.controller.state.migration.in_flight.of_model("m"))
    return [float(its.columns.in_flight[row, its.rows["decode", name]]) for row in rows]


def four_of_eight() -> tuple[MigrationWorld, Migration]:
    """Return a world in which ``hot`` sends four requests of 100 tokens to ``cold``, and the accepted command."""
    world = MigrationWorld(LOAD)
    world.join("cold", 0, 0)
    (command,) = world.join("hot", 800, 8)
    world.answer(command, requests=4, tokens=400)
    return world, command


def test_switched_requests_count_until_the_next_report() -> None:
    world, command = four_of_eight()
    assert in_flight(world, "cold", IN_REQUESTS, IN_TOKENS) == [4.0, 400.0]
    world.now += 100
    world.report_phase(command, "switched", moved=3, tokens=300, requests=4)
    assert in_flight(world, "cold", IN_REQUESTS, IN_TOKENS) == [4.0, 400.0]
    world.now += 100
    world.handle(world.report("cold", 300, 3))
    assert in_flight(world, "cold", IN_REQUESTS, IN_TOKENS) == [1.0, 100.0]
    assert in_flight(world, "hot", OUT_REQUESTS, OUT_TOKENS) == [4.0, 400.0]
    world.handle(world.report("hot", 500, 5))
    assert in_flight(world, "hot", OUT_REQUESTS, OUT_TOKENS) == [1.0, 100.0]


def test_failed_requests_do_not_count() -> None:
    world, command = four_of_eight()
    world.now += 100
    world.report_phase(command, "switched", moved=1, failed=2, tokens=100, requests=4)
    assert in_flight(world, "cold", IN_REQUESTS, IN_TOKENS) == [2.0, 200.0]
    world.now += 100
    world.handle(world.report("cold", 100, 1))
    assert in_flight(world, "cold", IN_REQUESTS) == [1.0]


def test_an_evacuation_continues_while_one_copy_hangs() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("a", 0, 0, migration_slots_in=4)
    world.join("ill", 80, 8)
    (command,) = world.handle(world.load_report("ill", schedulable=False))
    world.answer(command, requests=4, tokens=40)
    world.now += 100
    world.report_phase(command, "switched", moved=3, tokens=30, requests=4)
    world.now += 100
    world.handle(world.report("ill", 50, 5))
    (other,) = world.join("b", 0, 0)
    assert (pairs([other]), other.requests_max) == ([("ill", "b")], 4)


def test_a_phase_lasts_until_the_first_request_leaves_it() -> None:
    world, command = four_of_eight()
    for _ in range(4):
        world.report_phase(command, "admitted", requests=4)
        world.report_phase(command, "copying", requests=4)
    world.now += 400
    for moved in range(1, 5):
        world.report_phase(command, "switched", moved=moved, tokens=100 * moved, requests=4)
    world.now += 50
    world.report_phase(command, "done", moved=4, tokens=400, requests=4)
    tally = world.controller.state.fleet.models["m"].migration.tally
    assert tally.phases == {"asked": 1, "accepted": 1, "admitted": 1, "copying": 1, "switched": 1}
    assert (tally.phases_ms["copying"], tally.phases_ms["switched"]) == (400, 50)


def test_a_source_with_a_migration_in_flight_sends_to_another_destination() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 900, 9)
    (first,) = world.join("b", 400, 4)
    world.answer(first, requests=1, tokens=100)
    assert pairs(world.join("c", 300, 3)) == [("a", "c")]


def test_a_migration_of_one_request_occupies_one_slot() -> None:
    knobs = replace(LOAD, req_select_rule="NUM_REQ", req_select_value=1.0, migrations_max=64)
    world = MigrationWorld(knobs)
    events = [world.worker(f"{kind}{number}") for kind in ("hot", "cold") for number in range(20)]
    world.handle(*events)
    reports = [world.report(f"hot{number}", 900, 9) for number in range(20)]
    commands = world.handle(*(world.report(f"cold{number}", 100, 1) for number in range(20)), *reports)
    assert len(commands) == 20
    assert {command.requests_max for command in commands} == {1}


@pytest.mark.parametrize("value", [8.0, -1.0])
def test_num_req_migrates_about_half_of_the_gap(value: float) -> None:
    knobs = replace(
        LOAD,
        decode_load_metric="num_requests",
        decode_load_threshold=5.0,
        load_balance_threshold=2.0,
        req_select_rule="NUM_REQ",
        req_select_value=value,
    )
    world = MigrationWorld(knobs)
    world.join("b", 40, 4)
    (command,) = world.join("a", 90, 9)
    assert command.requests_max <= 3


def test_sources_whose_slots_are_in_use_are_reported() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("a", 0, 0)
    world.join("ill", 80, 8, migration_slots_out=0)
    world.handle(world.load_report("ill", schedulable=False))
    policy_report = world.controller.state.fleet.models["m"].migration.groups["decode"].reports["decode_failover"]
    assert policy_report.code is MigrationCode.NO_SLOTS


def test_workers_without_the_load_metric_are_reported() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 900, 9, kv_blocks_total=None)
    world.join("b", 0, 0, kv_blocks_total=None)
    world.advance(1_000)
    policy_report = world.controller.state.fleet.models["m"].migration.groups["decode"].reports["decode_load"]
    assert (policy_report.code, policy_report.numbers) == (MigrationCode.LOAD_UNKNOWN, {"unknown": 2.0, "workers": 2.0})


def test_reports_of_idle_policies_are_renewed() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("a", 0, 0)
    reports = world.controller.state.fleet.models["m"].migration.group("decode").reports
    world.advance(3_000)
    first = reports["decode_failover"]
    world.join("b", 0, 0)
    world.advance(3_000)
    second = reports["decode_failover"]
    assert (first.destinations, second.destinations) == (1, 2)
    assert second.at_ms == world.now
