"""Costs and benefits of migration: the production agent, simulated engines and a frontend in virtual time."""

import pytest

from loadline.sim.serving.routing import least_loaded
from tests.support import migration_scenarios as scenarios
from tests.support.migration_simulation import Phase, Route, fullest_within_objective

# 6 requests/s are 0.28 of what six workers can do within the objective.
LOADS = {"6/s": 6.0, "30 %": 6.4, "60 %": 12.8, "85 %": 18.1}


@pytest.mark.parametrize("route", [least_loaded, fullest_within_objective])
@pytest.mark.parametrize("load", LOADS)
def test_almost_no_request_migrates_under_steady_load(load: str, route: Route) -> None:
    found = scenarios.run_load(Phase(120, LOADS[load]), route=route)
    assert found.requests > 600
    assert found.moved_share <= 0.01
    assert found.busy <= found.busy_without + 0.05


@pytest.mark.parametrize("copy_ms", [(400.0, 400.0), (1_000.0, 1_000.0)])
@pytest.mark.parametrize("kind", scenarios.BURSTS)
def test_almost_no_command_is_refused_under_bursts(kind: str, copy_ms: tuple[float, float]) -> None:
    on, off = scenarios.BURSTS[kind]
    found = scenarios.run_load(*(on, off) * 5, route=fullest_within_objective, copy_ms=copy_ms)
    assert found.refused_share < 0.02
    assert found.busy <= found.busy_without + 0.05
    assert found.itl_p95_ms <= found.itl_p95_without_ms + 1.0


def test_eight_equal_workers_are_consolidated_into_four_and_then_two() -> None:
    found = scenarios.consolidate()
    assert found.waited_ms <= 12_000.0  # consolidation must be possible for 10 s first
    assert found.four_ms <= 7_000.0  # four migrations of 1 s each, one after the other
    assert found.two_ms <= 30_000.0
    assert found.refused_share == 0.0
    assert found.commands["done"] == 32


def test_all_other_workers_receive_requests_of_a_draining_worker() -> None:
    found = scenarios.drain_one()
    assert found.took_ms <= 12_500.0  # 200 requests, 9 slots, half a second: 11.1 s
    assert len(found.received) == 9
    assert max(found.received.values()) <= 26
    assert found.slots_max == 1
    assert found.refused_share == 0.0


def test_no_request_migrates_to_a_draining_worker() -> None:
    found = scenarios.drain_one(also=("decode-03", "decode-07"))
    assert sum(found.received.values()) == 200
    assert sorted(found.received) == [f"decode-0{number}" for number in (1, 2, 4, 5, 6, 8, 9)]


@pytest.mark.parametrize("after_ms", [0, 250, 490, 510, 990])
def test_requests_of_a_silent_worker_migrate_within_five_seconds(after_ms: int) -> None:
    assert scenarios.failover_of_silent_ms(after_ms) <= 5_000.0


def test_requests_of_an_unschedulable_worker_migrate_in_the_turn_of_its_report() -> None:
    assert scenarios.failover_of_unschedulable_ms() <= 5.0  # on the bus, and the minimum time between two turns


def test_requests_of_a_unit_migrate_when_one_rank_is_lost() -> None:
    found = scenarios.fail_unit(lost=True)
    assert found.first_ms <= 5_000.0
    assert set(found.remaining.values()) == {0}
    assert found.within_unit == 0


def test_requests_of_a_unit_stay_when_one_rank_is_only_partitioned_from_the_store() -> None:
    found = scenarios.fail_unit(lost=False)
    assert not found.still_registered
    assert found.first_ms == float("inf")
    assert set(found.remaining.values()) == {4}


def test_a_source_that_does_not_answer_delays_no_other() -> None:
    all_answer, one_silent = scenarios.balance_pairs(), scenarios.balance_pairs("decode-07")
    assert len(all_answer) == 50
    del all_answer["decode-07"]
    assert one_silent == all_answer
    assert len({pair.commanded_ms for pair in one_silent.values()}) == 1


@pytest.mark.parametrize("seed", range(6))
def test_migrated_requests_do_not_return(seed: int) -> None:
    simulation = scenarios.balance_static_load(seed)
    assert len(simulation.hops) > 5
    assert simulation.rebounds() == []
    assert simulation.reversals() == 0


def test_few_requests_return_when_routing_prefers_the_fullest_worker() -> None:
    simulation = scenarios.balance_against_routing()
    assert len(simulation.hops) > 300
    assert len(simulation.rebounds()) <= 0.005 * len(simulation.hops)
