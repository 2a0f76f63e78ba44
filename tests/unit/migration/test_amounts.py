"""How much a move takes: what two workers are apart, what there are slots and room for, and what pays."""

from typing import Any

import pytest
from msgspec.structs import replace

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.knobs import MetricName, MigrationKnobs
from loadline.core.migration.outcomes import MigrationCode, PolicyReport, sentence
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.migrations import Migration
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.movers import Movers, pairs

LOAD = MigrationKnobs(
    policies=("decode_load",),
    decode_load_threshold=0.8,
    load_balance_threshold=0.2,
    req_select_value=0.0,
)
BY_REQUESTS = replace(
    LOAD,
    decode_load_metric="num_requests",
    decode_load_threshold=8.0,
    load_balance_threshold=2.0,
)


def asked(knobs: MigrationKnobs, hot: dict[str, Any], cold: dict[str, Any]) -> list[Migration]:
    """What moves from one worker to another."""
    world = Movers(knobs)
    world.join("cold", **cold)
    return world.join("hot", **hot)


def last_look(world: Movers) -> PolicyReport:
    """What was seen when loads were last looked at."""
    return world.controller.state.fleet.models["m"].migration.groups["decode"].reports["decode_load"]


def test_half_of_what_they_are_apart_moves() -> None:
    (move,) = asked(LOAD, {"used": 900, "running": 9}, {"used": 300})
    assert (move.rule, move.order) == ("TOKEN", "SR")
    assert move.value == pytest.approx(300.0)
    assert move.tokens_max == 500  # until the destination is at the threshold


@pytest.mark.parametrize(
    ("metric", "threshold", "value"),
    [("num_requests", 5.0, 400.0), ("decode_batch_size", 5.0, 400.0), ("all_decodes_tokens_num", 500.0, 400.0)],
)
def test_half_in_whatever_load_is_counted(metric: MetricName, threshold: float, value: float) -> None:
    knobs = replace(LOAD, decode_load_metric=metric, decode_load_threshold=threshold)
    (move,) = asked(knobs, {"used": 900, "running": 9}, {"used": 100})
    assert move.value == value


def test_a_share_is_of_the_source() -> None:
    world = Movers(replace(LOAD, req_select_rule="RATIO"))
    world.tell(world.worker("cold"), world.worker("hot", kv_blocks_total=2_000))
    world.tell(world.report("cold", 300, 1))
    (move,) = world.tell(world.report("hot", 1_800, 9, kv_blocks_total=2_000))
    assert move.rule == "RATIO"
    assert move.value == pytest.approx(0.15)


def test_a_worker_whose_record_does_not_say_how_large_its_cache_is_is_asked_for_tokens() -> None:
    world = Movers(replace(LOAD, req_select_rule="RATIO"))
    world.join("cold", 300, 1)
    (move,) = world.join("hot", 900, 9)
    assert move.rule == "TOKEN"
    assert move.value == pytest.approx(300.0)


def test_a_share_of_an_unknown_cache_is_said_in_tokens() -> None:
    knobs = replace(BY_REQUESTS, req_select_rule="RATIO", req_select_value=0.1)
    unsaid = {"kv_blocks_total": None, "kv_blocks_used": None}
    (move,) = asked(knobs, {"used": 90, "running": 9} | unsaid, {"used": 0} | unsaid)
    assert (move.rule, move.value, move.tokens_max) == ("TOKEN", 40.0, None)


def test_a_least_amount_leaves_the_source_as_much_as_the_destination_had() -> None:
    knobs = replace(LOAD, decode_load_threshold=0.0, req_select_value=1_024.0)
    (move,) = asked(knobs, {"used": 500, "running": 10}, {"used": 300})
    assert move.value == 150.0  # they would be as far apart as before with 200, the other way round


def test_a_request_as_large_as_the_difference_stays() -> None:
    world = Movers(LOAD)
    world.join("cold", 0, 0)
    assert world.join("hot", 900, 1) == []
    assert last_look(world).code is MigrationCode.GAP_TOO_SMALL


def test_no_more_moves_than_there_is_room_for() -> None:
    (move,) = asked(LOAD, {"used": 1_000, "running": 10}, {"used": 700})
    assert move.value == 100.0
    assert asked(LOAD, {"used": 1_000, "running": 10}, {"used": 750}) == []


@pytest.mark.parametrize(("give", "take", "most"), [(2, 9, 2), (9, 3, 3), (0, 9, None), (9, 0, None), (9, 9, 8)])
def test_no_more_requests_move_than_both_have_slots_for(give: int, take: int, most: int | None) -> None:
    moves = asked(
        LOAD,
        {"used": 900, "running": 9, "migration_slots_out": give},
        {"used": 100, "migration_slots_in": take},
    )
    assert [move.requests_max for move in moves] == ([] if most is None else [most])  # 400 tokens are four, or eight


def test_requests_that_must_stay_are_not_counted_on() -> None:
    (move,) = asked(LOAD, {"used": 900, "running": 9, "unmovable_requests": 6}, {"used": 100})
    assert move.requests_max == 3
    assert asked(LOAD, {"used": 900, "running": 9, "unmovable_requests": 9}, {"used": 100}) == []


def test_the_model_has_no_more_moves_than_it_may() -> None:
    world = Movers(replace(LOAD, migrations_max=5))
    for number in range(3):
        world.join(f"cold{number}", 100)
    first = world.join("hot1", 900, 3)
    second = world.join("hot2", 900, 9)
    assert [move.requests_max for move in (*first, *second)] == [3, 2]
    assert world.join("hot3", 900, 9) == []
    assert last_look(world).code is MigrationCode.MIGRATIONS_MAX


def test_what_ends_sooner_than_it_is_copied_stays() -> None:
    world = Movers(replace(LOAD, kv_bytes_per_token=100_000_000))
    sample = TrafficSample(1, 1_000, 10, 10, osl_tokens=100.0, itl_ms=20.0)
    world.tell(TrafficReported("m", "f", 1, sample))
    world.join("cold", 0)
    assert world.join("hot", 900, 9) == []  # 100 tokens take 1 s, and a request has 1 s left
    look = last_look(world)
    assert look.code is MigrationCode.FINISHES_SOONER
    assert "takes 1000 ms, and it completes in 1000 ms" in sentence(look.code, look.numbers)
    assert world.tell(world.report("hot", 990, 99)) != []  # these are shorter


@pytest.mark.parametrize(("left_ms", "moves"), [(1_500, 0), (10_000, 1)])
def test_a_worker_that_is_ready_soon_takes_what_comes(left_ms: int, moves: int) -> None:
    world = Movers(LOAD)
    pool = world.controller.state.fleet.models["m"].pools["decode"]
    pool.start_ups_ms = [60_000]
    pool.requested_at_ms = [world.now + left_ms - 60_000]
    world.join("cold", 0)
    assert len(world.join("hot", 900, 9)) == moves
    assert (last_look(world).code is MigrationCode.WORKER_SOON_READY) is not bool(moves)


def test_who_only_advises_says_what_it_would_do() -> None:
    world = Movers(LOAD, advise=True)
    world.join("cold", 0)
    assert world.join("hot", 900, 9) == []
    assert last_look(world).code is MigrationCode.ADVISED
    assert world.controller.state.migration.in_flight.open == {}


def test_all_pools_of_a_role_are_one_where_that_is_said() -> None:
    pools = (PoolKnobs("a", "decode"), PoolKnobs("b", "decode"))
    for across, found in ((False, []), (True, [("hot", "cold")])):
        world = Movers(replace(LOAD, across_pools=across), pools)
        world.join("cold", 0, pool="a")
        assert pairs(world.join("hot", 900, 9, pool="b")) == found


def test_room_is_judged_by_those_that_move_and_not_by_those_that_wait() -> None:
    world = Movers(LOAD)
    world.join("cold", 480, 6)  # there are 320 tokens up to its threshold
    assert world.join("hot", 900, 2, waiting_requests=8, queued_prefill_tokens=80) == []
    assert last_look(world).code is MigrationCode.NO_ROOM
    assert last_look(world).numbers["tokens"] == 450.0
