"""Workers that fail are emptied: who fails, with whom, and where their requests go."""

from typing import Any

import pytest
from msgspec.structs import replace

from loadline.core.migration.knobs import FailoverDomain, MetricName, MigrationKnobs
from loadline.core.migration.outcomes import MigrationCode, sentence
from loadline.core.vocabulary.events import BusConnectionChanged
from tests.support.movers import Movers, pairs

FAILOVER = MigrationKnobs(policies=("prefill_failover", "decode_failover"))


def test_all_of_a_failing_worker_goes_where_some_are_full() -> None:
    world = Movers(FAILOVER)
    world.join("ill", 100, 10)
    world.join("a", 0, 1)
    world.join("b", 0, 1)
    world.join("full", 1_000, 10)
    world.join("one slot", 0, 1, migration_slots_in=1)
    moves = world.tell(world.report("ill", 100, 10, schedulable=False))
    assert {move.destination.worker: move.requests_max for move in moves} == {"one slot": 1, "a": 5, "b": 4}
    assert all(source == "ill" for source, _ in pairs(moves))


def test_those_that_have_the_least_take_what_few_requests_there_are() -> None:
    world = Movers(FAILOVER)
    world.join("ill", 30, 3)
    for number in range(6):
        world.join(f"w{number}", 500 - 50 * number, 1)
    moves = world.tell(world.report("ill", 30, 3, schedulable=False))
    assert sorted(pairs(moves)) == [("ill", "w3"), ("ill", "w4"), ("ill", "w5")]


def test_no_two_moves_go_between_the_same_workers_in_one_turn() -> None:
    world = Movers(FAILOVER)
    world.join("ill", 100, 10)
    world.join("worse", 40, 4)
    world.join("a", 0, 1)
    world.join("b", 0, 1)
    moves = world.tell(*(world.said(name, schedulable=False) for name in ("ill", "worse")))
    assert len(set(pairs(moves))) == len(moves)
    assert sum(move.requests_max for move in moves) == 14


@pytest.mark.parametrize("metric", ["kv_cache_usage_ratio_projected", "num_requests"])
def test_workers_that_say_nothing_of_their_cache_are_emptied_and_take_over(metric: MetricName) -> None:
    world = Movers(replace(FAILOVER, decode_load_metric=metric))
    unsaid: dict[str, Any] = {"kv_blocks_total": None, "kv_blocks_used": None, "decode_tokens": None}
    world.join("a", running=2, **unsaid)
    world.join("b", running=1, **unsaid)
    moves = world.join("ill", running=4, schedulable=False, **unsaid)
    assert [(move.destination.worker, move.requests_max) for move in moves] == [("b", 2), ("a", 2)]
    assert {move.tokens_max for move in moves} == {None}


def test_those_of_whom_the_load_is_known_take_over_first() -> None:
    world = Movers(FAILOVER)
    world.join("unknown", running=0, kv_blocks_total=None, kv_blocks_used=None)
    world.join("known", 500, 5)
    assert pairs(world.join("ill", 10, 1, schedulable=False)) == [("ill", "known")]


def failing(world: Movers, *names: str) -> set[str]:
    """Workers that give requests away once these are not to be given work."""
    moves = world.tell(*(world.said(name, schedulable=False) for name in names))
    return {source for source, _ in pairs(moves)}


def domain_world(domain: FailoverDomain, ranks: dict[str, int] | None = None, order: int = 1) -> Movers:
    """Four workers: ``a0`` and ``a1`` on node a, ``b0`` and ``b1`` on node b; units by number. One more elsewhere."""
    world = Movers(replace(FAILOVER, failover_domain=domain))
    names = ["a0", "a1", "b0", "b1", "other"][::order]
    for name in names:
        place = {"node": name[0], "unit": name[1]} if name != "other" else {"node": "o", "unit": "o"}
        size = (ranks or {}).get(name, 2)
        report = world.tell(world.worker(name, data_parallel_size=size, **place))
        assert report == []
    for name in names:
        event = world.report(name, 10, 1)
        (first,) = event.samples
        size = (ranks or {}).get(name, 2)
        idle = [replace(first, rank=rank, running_requests=0) for rank in range(1, size)]
        world.tell(replace(event, samples=[first, *idle]))
    return world


@pytest.mark.parametrize(
    ("domain", "struck"),
    [
        ("instance", {"a0"}),
        ("node", {"a0", "a1"}),
        ("instance-unit", {"a0", "b0"}),
        ("node-unit", {"a0", "a1", "b0", "b1"}),
    ],
)
def test_what_fails_together(domain: FailoverDomain, struck: set[str]) -> None:
    assert failing(domain_world(domain), "a0") == struck


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("ranks", "struck"),
    [({"a0": 1}, {"a0"}), ({"b0": 1}, {"a0"}), ({"a1": 1, "b1": 1}, {"a0", "b0"})],
)
def test_a_unit_fails_as_far_as_it_has_ranks_whoever_came_first(
    ranks: dict[str, int], struck: set[str], order: int
) -> None:
    assert failing(domain_world("instance-unit", ranks, order), "a0") == struck


def test_a_failing_prefill_worker_has_those_of_decode_on_its_node_emptied() -> None:
    world = Movers(replace(FAILOVER, failover_domain="node"))
    world.tell(world.worker("p", "prefill", node="n"), world.worker("d", node="n"), world.worker("e", node="o"))
    for name in ("p", "d", "e"):
        world.tell(world.report(name, 10, 1))
    assert pairs(world.tell(world.said("p", schedulable=False))) == [("d", "e")]


@pytest.mark.parametrize("domain", ["node", "node-unit"])
def test_who_names_no_node_fails_alone_and_people_are_told_once(domain: FailoverDomain) -> None:
    world = Movers(replace(FAILOVER, failover_domain=domain))
    for name in ("a", "b", "c"):
        world.join(name, 10, 1)
    assert failing(world, "a") == {"a"}
    assert failing(world, "c") == {"c"}
    (alarm,) = world.alarms
    assert (alarm.kind, alarm.model) == ("failover_domain_unknown", "m")
    assert "a fails alone" in alarm.text


def test_silence_is_failure() -> None:
    world = Movers(replace(FAILOVER, suspect_after_ms=4_000))
    for name in ("a", "b", "c"):
        world.join(name, 10, 1)
    assert world.wait(3_000, silent=("a",)) == []
    moves = world.wait(1_000, silent=("a",))
    assert sorted(pairs(moves)) in ([("a", "b")], [("a", "c")])


def test_where_most_are_silent_it_is_rather_we_who_do_not_hear() -> None:
    world = Movers(FAILOVER)
    for name in ("a", "b", "c"):
        world.join(name, 10, 1)
    assert world.wait(20_000, silent=("a", "b")) == []
    look = world.controller.state.fleet.models["m"].migration.groups["decode"].reports["decode_failover"]
    assert look.code is MigrationCode.TOO_MANY_SILENT
    assert sentence(look.code, look.numbers).startswith("2 of 3 workers are silent")


def test_silence_counts_from_when_the_bus_is_there() -> None:
    world = Movers(FAILOVER)
    for name in ("a", "b", "c"):
        world.join(name, 10, 1)
    world.tell(BusConnectionChanged(connected=False))
    world.now += 3_000
    world.tell(BusConnectionChanged(connected=True))
    world.tell(world.said("b"), world.said("c"))
    assert world.wait(3_000, silent=("a",)) == []
    assert world.wait(1_000, silent=("a",)) != []


def test_samples_that_stand_still_are_those_of_a_hung_engine() -> None:
    world = Movers(replace(FAILOVER, instance_staleness_seconds=10))
    world.join("hung", 10, 1)
    world.join("idle", 0, 0)
    world.join("busy", 10, 1)
    asked = []
    for number in range(10):
        world.now += 1_000
        asked += world.tell(world.said("hung"), world.said("idle"), world.report("busy", 11 + number, 1))
    assert {source for source, _ in pairs(asked)} == {"hung"}


def test_a_lost_lease_empties_the_rest_of_the_unit() -> None:
    world = domain_world("instance-unit")
    assert world.leave("a0") == []
    assert {source for source, _ in pairs(world.wait(6_000, silent=("a0",)))} == {"b0"}


def test_a_worker_that_is_only_cut_off_from_the_store_takes_nobody_with_it() -> None:
    world = domain_world("instance-unit")
    world.leave("a0")
    assert world.wait(30_000) == []  # it reports on, as all do


def test_a_worker_that_left_is_forgotten_and_one_that_comes_back_fails_no_more() -> None:
    world = domain_world("instance-unit")
    world.leave("a0")
    world.wait(6_000, silent=("a0",))
    vanished = world.controller.state.migration.vanished
    assert len(vanished) == 1
    world.tell(world.worker("a0", node="a", unit="0", data_parallel_size=2, incarnation=2))
    assert len(vanished) == 0
    world.leave("a0")
    world.wait(62_000, silent=("a0",))
    assert len(vanished) == 0


def test_who_left_by_itself_takes_nobody_with_it() -> None:
    world = domain_world("instance-unit")
    world.tell(world.worker("a0", node="a", unit="0", data_parallel_size=2, state="draining"))
    world.leave("a0")
    assert world.wait(10_000, silent=("a0",)) == []
