"""Failover: which workers fail, which fail with them, and which receive their requests."""

from typing import Any

import pytest
from msgspec.structs import replace

from loadline.core.migration.knobs import FailoverDomain, MetricName, MigrationKnobs
from loadline.core.migration.outcomes import MigrationCode, sentence
from loadline.core.vocabulary.events import BusConnectionChanged
from tests.support.migration_world import MigrationWorld, pairs

FAILOVER = MigrationKnobs(policies=("prefill_failover", "decode_failover"))


def test_a_failed_worker_is_evacuated_although_some_destinations_are_full() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("ill", 100, 10)
    world.join("a", 0, 1)
    world.join("b", 0, 1)
    world.join("full", 1_000, 10)
    world.join("one slot", 0, 1, migration_slots_in=1)
    commands = world.handle(world.report("ill", 100, 10, schedulable=False))
    assert {command.destination.worker: command.requests_max for command in commands} == {"one slot": 1, "a": 5, "b": 4}
    assert all(source == "ill" for source, _ in pairs(commands))


def test_few_requests_go_to_the_least_loaded() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("ill", 30, 3)
    for number in range(6):
        world.join(f"w{number}", 500 - 50 * number, 1)
    commands = world.handle(world.report("ill", 30, 3, schedulable=False))
    assert sorted(pairs(commands)) == [("ill", "w3"), ("ill", "w4"), ("ill", "w5")]


def test_one_turn_pairs_two_workers_once() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("ill", 100, 10)
    world.join("worse", 40, 4)
    world.join("a", 0, 1)
    world.join("b", 0, 1)
    commands = world.handle(*(world.load_report(name, schedulable=False) for name in ("ill", "worse")))
    assert len(set(pairs(commands))) == len(commands)
    assert sum(command.requests_max for command in commands) == 14


@pytest.mark.parametrize("metric", ["kv_cache_usage_ratio_projected", "num_requests"])
def test_workers_without_cache_metrics_are_evacuated_and_receive(metric: MetricName) -> None:
    world = MigrationWorld(replace(FAILOVER, decode_load_metric=metric))
    without_kv: dict[str, Any] = {"kv_blocks_total": None, "kv_blocks_used": None, "decode_tokens": None}
    world.join("a", running=2, **without_kv)
    world.join("b", running=1, **without_kv)
    commands = world.join("ill", running=4, schedulable=False, **without_kv)
    assert [(command.destination.worker, command.requests_max) for command in commands] == [("b", 2), ("a", 2)]
    assert {command.tokens_max for command in commands} == {None}


def test_workers_with_a_known_load_receive_first() -> None:
    world = MigrationWorld(FAILOVER)
    world.join("unknown", running=0, kv_blocks_total=None, kv_blocks_used=None)
    world.join("known", 500, 5)
    assert pairs(world.join("ill", 10, 1, schedulable=False)) == [("ill", "known")]


def failing(world: MigrationWorld, *names: str) -> set[str]:
    """Return the sources of commands after these workers became unschedulable."""
    commands = world.handle(*(world.load_report(name, schedulable=False) for name in names))
    return {source for source, _ in pairs(commands)}


def domain_world(domain: FailoverDomain, ranks: dict[str, int] | None = None, order: int = 1) -> MigrationWorld:
    """Return workers ``a0``, ``a1`` on node a, ``b0``, ``b1`` on node b, with units by number, and one elsewhere."""
    world = MigrationWorld(replace(FAILOVER, failover_domain=domain))
    names = ["a0", "a1", "b0", "b1", "other"][::order]
    for name in names:
        place = {"node": name[0], "unit": name[1]} if name != "other" else {"node": "o", "unit": "o"}
        size = (ranks or {}).get(name, 2)
        report = world.handle(world.worker(name, data_parallel_size=size, **place))
        assert report == []
    for name in names:
        event = world.report(name, 10, 1)
        (first,) = event.samples
        size = (ranks or {}).get(name, 2)
        idle = [replace(first, rank=rank, running_requests=0) for rank in range(1, size)]
        world.handle(replace(event, samples=[first, *idle]))
    return world


@pytest.mark.parametrize(
    ("domain", "affected"),
    [
        ("instance", {"a0"}),
        ("node", {"a0", "a1"}),
        ("instance-unit", {"a0", "b0"}),
        ("node-unit", {"a0", "a1", "b0", "b1"}),
    ],
)
def test_the_workers_of_a_failure_domain_fail_together(domain: FailoverDomain, affected: set[str]) -> None:
    assert failing(domain_world(domain), "a0") == affected


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("ranks", "affected"),
    [({"a0": 1}, {"a0"}), ({"b0": 1}, {"a0"}), ({"a1": 1, "b1": 1}, {"a0", "b0"})],
)
def test_only_the_ranks_of_a_unit_fail_with_it(ranks: dict[str, int], affected: set[str], order: int) -> None:
    assert failing(domain_world("instance-unit", ranks, order), "a0") == affected


def test_a_failed_prefill_worker_takes_decode_workers_of_its_node_with_it() -> None:
    world = MigrationWorld(replace(FAILOVER, failover_domain="node"))
    world.handle(world.worker("p", "prefill", node="n"), world.worker("d", node="n"), world.worker("e", node="o"))
    for name in ("p", "d", "e"):
        world.handle(world.report(name, 10, 1))
    assert pairs(world.handle(world.load_report("p", schedulable=False))) == [("d", "e")]


@pytest.mark.parametrize("domain", ["node", "node-unit"])
def test_a_worker_without_a_domain_fails_alone_with_one_alarm(domain: FailoverDomain) -> None:
    world = MigrationWorld(replace(FAILOVER, failover_domain=domain))
    for name in ("a", "b", "c"):
        world.join(name, 10, 1)
    assert failing(world, "a") == {"a"}
    assert failing(world, "c") == {"c"}
    (alarm,) = world.alarms
    assert (alarm.kind, alarm.model) == ("failover_domain_unknown", "m")
    assert "a fails alone" in alarm.text


def test_a_silent_worker_fails() -> None:
    world = MigrationWorld(replace(FAILOVER, suspect_after_ms=4_000))
    for name in ("a", "b", "c"):
        world.join(name, 10, 1)
    assert world.advance(3_000, silent=("a",)) == []
    commands = world.advance(1_000, silent=("a",))
    assert sorted(pairs(commands)) in ([("a", "b")], [("a", "c")])


def test_silence_does_not_count_if_most_are_silent() -> None:
    world = MigrationWorld(FAILOVER)
    for name in ("a", "b", "c"):
        world.join(name, 10, 1)
    assert world.advance(20_000, silent=("a", "b")) == []
    policy_report = world.controller.state.fleet.models["m"].migration.groups["decode"].reports["decode_failover"]
    assert policy_report.code is MigrationCode.TOO_MANY_SILENT
    assert sentence(policy_report.code, policy_report.numbers).startswith("2 of 3 workers are silent")


def test_silence_counts_from_when_the_bus_connected() -> None:
    world = MigrationWorld(FAILOVER)
    for name in ("a", "b", "c"):
        world.join(name, 10, 1)
    world.handle(BusConnectionChanged(connected=False))
    world.now += 3_000
    world.handle(BusConnectionChanged(connected=True))
    world.handle(world.load_report("b"), world.load_report("c"))
    assert world.advance(3_000, silent=("a",)) == []
    assert world.advance(1_000, silent=("a",)) != []


def test_a_worker_whose_samples_stay_the_same_fails() -> None:
    world = MigrationWorld(replace(FAILOVER, instance_staleness_seconds=10))
    world.join("hung", 10, 1)
    world.join("idle", 0, 0)
    world.join("busy", 10, 1)
    commanded = []
    for number in range(10):
        world.now += 1_000
        commanded += world.handle(
            world.load_report("hung"), world.load_report("idle"), world.report("busy", 11 + number, 1)
        )
    assert {source for source, _ in pairs(commanded)} == {"hung"}


def test_a_lost_lease_evacuates_the_rest_of_the_unit() -> None:
    world = domain_world("instance-unit")
    assert world.deregister("a0") == []
    assert {source for source, _ in pairs(world.advance(6_000, silent=("a0",)))} == {"b0"}


def test_a_worker_that_still_reports_has_not_failed_with_its_lease() -> None:
    world = domain_world("instance-unit")
    world.deregister("a0")
    assert world.advance(30_000) == []  # all workers continue to report


def test_a_vanished_worker_is_forgotten_after_a_time_or_when_it_returns() -> None:
    world = domain_world("instance-unit")
    world.deregister("a0")
    world.advance(6_000, silent=("a0",))
    vanished = world.controller.state.migration.vanished
    assert len(vanished) == 1
    world.handle(world.worker("a0", node="a", unit="0", data_parallel_size=2, incarnation=2))
    assert len(vanished) == 0
    world.deregister("a0")
    world.advance(62_000, silent=("a0",))
    assert len(vanished) == 0


def test_a_worker_that_deregistered_has_not_failed() -> None:
    world = domain_world("instance-unit")
    world.handle(world.worker("a0", node="a", unit="0", data_parallel_size=2, state="draining"))
    world.deregister("a0")
    assert world.advance(10_000, silent=("a0",)) == []
