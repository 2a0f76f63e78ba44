"""Moves of several requests, some of which have come: what is counted, what is free again, how long phases took."""

import pytest
from msgspec.structs import replace

from loadline.core.migration.columns import IN_REQUESTS, IN_TOKENS, OUT_REQUESTS, OUT_TOKENS
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.outcomes import MigrationCode
from loadline.core.migration.worker_table import WorkerTable
from loadline.core.vocabulary.migrations import Migration
from tests.support.movers import Movers, pairs

LOAD = MigrationKnobs(
    policies=("decode_load",),
    decode_load_threshold=0.5,
    req_select_value=0.0,
    load_balance_threshold=0.3,
)
FAILOVER = MigrationKnobs(policies=("decode_failover",))


def table(world: Movers) -> WorkerTable:
    groups = world.controller._mode.migration._groups["m"]
    return next(group.table for group in groups if group.name == "decode")


def in_flight(world: Movers, name: str, *rows: int) -> list[float]:
    """Return effects of the migrations in flight on a worker."""
    its = table(world)
    its.apply_in_flight(world.controller.state.migration.in_flight.of_model("m"))
    return [float(its.columns.in_flight[row, its.rows["decode", name]]) for row in rows]


def four_of_eight() -> tuple[Movers, Migration]:
    """``hot`` gives four requests of 100 tokens to ``cold``, and has said so."""
    world = Movers(LOAD)
    world.join("cold", 0, 0)
    (move,) = world.join("hot", 800, 8)
    world.answer(move, requests=4, tokens=400)
    return world, move


def test_what_has_switched_counts_until_a_worker_has_told_of_it() -> None:
    world, move = four_of_eight()
    assert in_flight(world, "cold", IN_REQUESTS, IN_TOKENS) == [4.0, 400.0]
    world.now += 100
    world.phase(move, "switched", moved=3, tokens=300, requests=4)
    assert in_flight(world, "cold", IN_REQUESTS, IN_TOKENS) == [4.0, 400.0]
    world.now += 100
    world.tell(world.report("cold", 300, 3))
    assert in_flight(world, "cold", IN_REQUESTS, IN_TOKENS) == [1.0, 100.0]
    assert in_flight(world, "hot", OUT_REQUESTS, OUT_TOKENS) == [4.0, 400.0]
    world.tell(world.report("hot", 500, 5))
    assert in_flight(world, "hot", OUT_REQUESTS, OUT_TOKENS) == [1.0, 100.0]


def test_what_has_failed_counts_no_more() -> None:
    world, move = four_of_eight()
    world.now += 100
    world.phase(move, "switched", moved=1, failed=2, tokens=100, requests=4)
    assert in_flight(world, "cold", IN_REQUESTS, IN_TOKENS) == [2.0, 200.0]
    world.now += 100
    world.tell(world.report("cold", 100, 1))
    assert in_flight(world, "cold", IN_REQUESTS) == [1.0]


def test_a_failing_worker_goes_on_giving_while_one_of_its_copies_hangs() -> None:
    world = Movers(FAILOVER)
    world.join("a", 0, 0, migration_slots_in=4)
    world.join("ill", 80, 8)
    (move,) = world.tell(world.said("ill", schedulable=False))
    world.answer(move, requests=4, tokens=40)
    world.now += 100
    world.phase(move, "switched", moved=3, tokens=30, requests=4)
    world.now += 100
    world.tell(world.report("ill", 50, 5))
    (other,) = world.join("b", 0, 0)
    assert (pairs([other]), other.requests_max) == ([("ill", "b")], 4)


def test_phases_are_as_long_as_the_first_request_was_in_them() -> None:
    world, move = four_of_eight()
    for _ in range(4):
        world.phase(move, "admitted", requests=4)
        world.phase(move, "copying", requests=4)
    world.now += 400
    for moved in range(1, 5):
        world.phase(move, "switched", moved=moved, tokens=100 * moved, requests=4)
    world.now += 50
    world.phase(move, "done", moved=4, tokens=400, requests=4)
    tally = world.controller.state.fleet.models["m"].migration.tally
    assert tally.phases == {"asked": 1, "accepted": 1, "admitted": 1, "copying": 1, "switched": 1}
    assert (tally.phases_ms["copying"], tally.phases_ms["switched"]) == (400, 50)


def test_a_source_of_which_a_move_is_in_flight_gives_to_another() -> None:
    world = Movers(LOAD)
    world.join("a", 900, 9)
    (first,) = world.join("b", 400, 4)
    world.answer(first, requests=1, tokens=100)
    assert pairs(world.join("c", 300, 3)) == [("a", "c")]


def test_a_move_of_one_request_takes_one_slot() -> None:
    knobs = replace(LOAD, req_select_rule="NUM_REQ", req_select_value=1.0, migrations_max=64)
    world = Movers(knobs)
    events = [world.worker(f"{kind}{number}") for kind in ("hot", "cold") for number in range(20)]
    world.tell(*events)
    reports = [world.report(f"hot{number}", 900, 9) for number in range(20)]
    moves = world.tell(*(world.report(f"cold{number}", 100, 1) for number in range(20)), *reports)
    assert len(moves) == 20
    assert {move.requests_max for move in moves} == {1}


@pytest.mark.parametrize("value", [8.0, -1.0])
def test_requests_by_number_leave_no_more_than_half_the_difference_behind(value: float) -> None:
    knobs = replace(
        LOAD,
        decode_load_metric="num_requests",
        decode_load_threshold=5.0,
        load_balance_threshold=2.0,
        req_select_rule="NUM_REQ",
        req_select_value=value,
    )
    world = Movers(knobs)
    world.join("b", 40, 4)
    (move,) = world.join("a", 90, 9)
    assert move.requests_max <= 3


def test_where_all_who_should_give_do_so_already_that_is_said() -> None:
    world = Movers(FAILOVER)
    world.join("a", 0, 0)
    world.join("ill", 80, 8, migration_slots_out=0)
    world.tell(world.said("ill", schedulable=False))
    look = world.controller.state.fleet.models["m"].migration.groups["decode"].reports["decode_failover"]
    assert look.code is MigrationCode.NO_SLOTS


def test_who_does_not_say_its_load_is_told_of() -> None:
    world = Movers(LOAD)
    world.join("a", 900, 9, kv_blocks_total=None)
    world.join("b", 0, 0, kv_blocks_total=None)
    world.wait(1_000)
    look = world.controller.state.fleet.models["m"].migration.groups["decode"].reports["decode_load"]
    assert (look.code, look.numbers) == (MigrationCode.LOAD_UNKNOWN, {"unknown": 2.0, "workers": 2.0})


def test_what_is_told_of_idle_policies_is_of_now() -> None:
    world = Movers(FAILOVER)
    world.join("a", 0, 0)
    reports = world.controller.state.fleet.models["m"].migration.group("decode").reports
    world.wait(3_000)
    first = reports["decode_failover"]
    world.join("b", 0, 0)
    world.wait(3_000)
    second = reports["decode_failover"]
    assert (first.destinations, second.destinations) == (1, 2)
    assert second.at_ms == world.now
