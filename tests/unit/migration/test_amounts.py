"""Amounts of migrations: by load gap, slots, room and time."""

import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration import amounts
from loadline.core.migration.amounts import requests_within_slo
from loadline.core.migration.knobs import MetricName, MigrationKnobs
from loadline.core.migration.load_view import LoadView
from loadline.core.migration.outcomes import MigrationCode, PolicyReport, sentence
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.migrations import Migration
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.migration_world import MigrationWorld, pairs

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


def command_between(knobs: MigrationKnobs, hot: dict[str, Any], cold: dict[str, Any]) -> list[Migration]:
    """Return the commands from one worker to another."""
    world = MigrationWorld(knobs)
    world.join("cold", **cold)
    return world.join("hot", **hot)


def last_report(world: MigrationWorld) -> PolicyReport:
    """Return the last report of decode_load."""
    return world.controller.state.fleet.models["m"].migration.groups["decode"].reports["decode_load"]


def test_half_of_the_load_gap_migrates() -> None:
    (command,) = command_between(LOAD, {"used": 900, "running": 9}, {"used": 300})
    assert (command.rule, command.order) == ("TOKEN", "SR")
    assert command.value == pytest.approx(300.0)
    assert command.tokens_max == 500  # until the destination is at the threshold


def test_no_command_has_more_tokens_than_its_format_allows() -> None:
    """A worker refuses one that it cannot read, and its requests stay where they are."""
    view = cast(LoadView, SimpleNamespace(knobs=LOAD, measure_of=lambda *_: 0.0))
    amount = amounts._half_of(view, 0, 2e12, 4e12, 4e12, float("nan"), 1)
    assert amount.value == amounts.TOKENS_MAX


@pytest.mark.parametrize(
    ("metric", "threshold", "value"),
    [("num_requests", 5.0, 400.0), ("decode_batch_size", 5.0, 400.0), ("all_decodes_tokens_num", 500.0, 400.0)],
)
def test_half_of_the_gap_migrates_by_every_load_metric(metric: MetricName, threshold: float, value: float) -> None:
    knobs = replace(LOAD, decode_load_metric=metric, decode_load_threshold=threshold)
    (command,) = command_between(knobs, {"used": 900, "running": 9}, {"used": 100})
    assert command.value == value


def test_a_ratio_is_a_share_of_the_source() -> None:
    world = MigrationWorld(replace(LOAD, req_select_rule="RATIO"))
    world.handle(world.worker("cold"), world.worker("hot", kv_blocks_total=2_000))
    world.handle(world.report("cold", 300, 1))
    (command,) = world.handle(world.report("hot", 1_800, 9, kv_blocks_total=2_000))
    assert command.rule == "RATIO"
    assert command.value == pytest.approx(0.15)


def test_a_source_of_unknown_capacity_gets_an_amount_in_tokens() -> None:
    world = MigrationWorld(replace(LOAD, req_select_rule="RATIO"))
    world.join("cold", 300, 1)
    (command,) = world.join("hot", 900, 9)
    assert command.rule == "TOKEN"
    assert command.value == pytest.approx(300.0)


def test_a_share_of_an_unknown_capacity_becomes_tokens() -> None:
    knobs = replace(BY_REQUESTS, req_select_rule="RATIO", req_select_value=0.1)
    without_kv = {"kv_blocks_total": None, "kv_blocks_used": None}
    (command,) = command_between(knobs, {"used": 90, "running": 9} | without_kv, {"used": 0} | without_kv)
    assert (command.rule, command.value, command.tokens_max) == ("TOKEN", 40.0, None)


def test_the_minimum_amount_does_not_reverse_the_gap() -> None:
    knobs = replace(LOAD, decode_load_threshold=0.0, req_select_value=1_024.0)
    (command,) = command_between(knobs, {"used": 500, "running": 10}, {"used": 300})
    assert command.value == 150.0  # moving 200 would reverse the gap


def test_a_request_as_large_as_the_gap_stays() -> None:
    world = MigrationWorld(LOAD)
    world.join("cold", 0, 0)
    assert world.join("hot", 900, 1) == []
    assert last_report(world).code is MigrationCode.GAP_TOO_SMALL


def test_an_amount_is_bounded_by_the_room_of_the_destination() -> None:
    (command,) = command_between(LOAD, {"used": 1_000, "running": 10}, {"used": 700})
    assert command.value == 100.0
    assert command_between(LOAD, {"used": 1_000, "running": 10}, {"used": 750}) == []


@pytest.mark.parametrize(("give", "take", "most"), [(2, 9, 2), (9, 3, 3), (0, 9, None), (9, 0, None), (9, 9, 8)])
def test_an_amount_is_bounded_by_the_slots_of_both_workers(give: int, take: int, most: int | None) -> None:
    commands = command_between(
        LOAD,
        {"used": 900, "running": 9, "migration_slots_out": give},
        {"used": 100, "migration_slots_in": take},
    )
    assert [command.requests_max for command in commands] == (
        [] if most is None else [most]
    )  # 400 tokens are four, or eight


def test_unmovable_requests_do_not_count() -> None:
    (command,) = command_between(LOAD, {"used": 900, "running": 9, "unmovable_requests": 6}, {"used": 100})
    assert command.requests_max == 3
    assert command_between(LOAD, {"used": 900, "running": 9, "unmovable_requests": 9}, {"used": 100}) == []


def test_migrations_max_bounds_the_requests_of_a_model() -> None:
    world = MigrationWorld(replace(LOAD, migrations_max=5))
    for number in range(3):
        world.join(f"cold{number}", 100)
    first = world.join("hot1", 900, 3)
    second = world.join("hot2", 900, 9)
    assert [command.requests_max for command in (*first, *second)] == [3, 2]
    assert world.join("hot3", 900, 9) == []
    assert last_report(world).code is MigrationCode.MIGRATIONS_MAX


def test_a_request_that_completes_before_it_is_copied_stays() -> None:
    world = MigrationWorld(replace(LOAD, kv_bytes_per_token=100_000_000))
    sample = TrafficSample(1, 1_000, 10, 10, osl_tokens=100.0, itl_ms=20.0)
    world.handle(TrafficReported("m", "f", 1, sample))
    world.join("cold", 0)
    assert world.join("hot", 900, 9) == []  # 100 tokens take 1 s, and a request has 1 s left
    policy_report = last_report(world)
    assert policy_report.code is MigrationCode.FINISHES_SOONER
    assert "takes 1000 ms, and it completes in 1000 ms" in sentence(policy_report.code, policy_report.numbers)
    assert world.handle(world.report("hot", 990, 99)) != []  # these requests complete earlier


@pytest.mark.parametrize(("left_ms", "commands"), [(1_500, 0), (10_000, 1)])
def test_nothing_migrates_if_a_pending_worker_is_soon_ready(left_ms: int, commands: int) -> None:
    world = MigrationWorld(LOAD)
    pool = world.controller.state.fleet.models["m"].pools["decode"]
    pool.start_ups_ms = [60_000]
    pool.requested_at_ms = [world.now + left_ms - 60_000]
    world.join("cold", 0)
    assert len(world.join("hot", 900, 9)) == commands
    assert (last_report(world).code is MigrationCode.WORKER_SOON_READY) is not bool(commands)


def test_with_no_operation_reports_say_what_would_migrate() -> None:
    world = MigrationWorld(LOAD, advise=True)
    world.join("cold", 0)
    assert world.join("hot", 900, 9) == []
    assert last_report(world).code is MigrationCode.ADVISED
    assert world.controller.state.migration.in_flight.open == {}


def test_across_pools_makes_all_pools_of_a_role_one_group() -> None:
    pools = (PoolKnobs("a", "decode"), PoolKnobs("b", "decode"))
    for across, found in ((False, []), (True, [("hot", "cold")])):
        world = MigrationWorld(replace(LOAD, across_pools=across), pools)
        world.join("cold", 0, pool="a")
        assert pairs(world.join("hot", 900, 9, pool="b")) == found


def test_room_is_measured_by_decoding_requests() -> None:
    world = MigrationWorld(LOAD)
    world.join("cold", 480, 6)  # there are 320 tokens up to its threshold
    assert world.join("hot", 900, 2, waiting_requests=8, queued_prefill_tokens=80) == []
    assert last_report(world).code is MigrationCode.NO_ROOM
    assert last_report(world).numbers["tokens"] == 450.0


def test_an_absurd_number_of_requests_takes_little_memory() -> None:
    one = np.ones(1)
    view = SimpleNamespace(
        knobs=LOAD,
        tpot=None,
        tpot_slo_ms=50.0,
        metric=lambda _name: one,
        measure_of=lambda *_: 1.0,
        tokens_in_flight=one,
    )
    tracemalloc.start()
    try:
        requests_within_slo(cast("LoadView", view), 0, 1.0, 10**8)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000
