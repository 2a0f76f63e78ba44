"""Pools of one role that auto sizes together."""

import pytest
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.traffic_totals import NO_MEAN, TrafficTotals
from loadline.core.planning.demand.arrival_rate import ArrivalRate
from loadline.core.planning.sizing.evidence.learned import EngineKind
from loadline.core.planning.sizing.needs.pool_needs import PoolLoad, PoolNeeds, PoolState
from loadline.core.planning.sizing.needs.shared_roles import EmptyPool, SharedNeeds, pool_intervals, share_needs
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.core.vocabulary.samples import WorkerSample
from tests.support.fleet_harness import FleetHarness, reported

SERVES = {"dear": 20.0, "cheap": 5.0}
COSTS = {"dear": 8.0, "cheap": 1.0}


class Role:
    """A dear and a cheap pool with two workers each, which serve 50 requests per second."""

    def __init__(self, **serves: float) -> None:
        self.world = FleetHarness([PoolKnobs(name, "aggregated", replicas_max=10) for name in SERVES], 2)
        self.serves = SERVES | serves
        for name, cost in COSTS.items():
            pool = self.world.pool(name)
            pool.desired, pool.accelerator = 2, AcceleratorKnobs(name, cost_per_hour=cost)

    def share(
        self, growing: float, lasting: float, *, dear_share: float = 0.8, empty: str = "", wanted: int = 0
    ) -> SharedNeeds:
        now, model = self.world.now, self.world.refresh()
        shares, loads, needs = {"dear": dear_share, "cheap": 1.0 - dear_share}, [], []
        for name, pool in model.pools.items():
            if name == empty:
                continue
            part = 1.0 if empty else shares[name]
            state, rates = PoolState(EngineKind.of(pool)), (part * growing, part * lasting)
            load = PoolLoad(
                model, pool, state, ArrivalRate(), Lengths(), *rates, 0.0, self.serves[name], 30_000, 20.0, 0.0, now
            )
            own = wanted if name == "dear" else 0
            code = ReasonCode.BACKLOG_TARGET if own else ReasonCode.DEMAND_TARGET
            lasts = rates[1] / self.serves[name] if self.serves[name] else 0.0
            loads.append(load)
            needs.append(PoolNeeds(own, 0, lasts, rates[1], rates[0], Reason(code, name)))
        others = [EmptyPool(self.world.pool(empty), self.serves[empty])] if empty else []
        found = share_needs(loads, needs, others)
        assert found is not None
        return found


def counts(found: SharedNeeds) -> list[int]:
    return [need.wanted for need in found.needs]


def test_growth_is_in_the_pool_of_the_lowest_cost_per_capacity() -> None:
    found = Role().share(70.0, 70.0)
    assert counts(found) == [2, 6]
    assert {need.reason.code for need in found.needs} == {ReasonCode.SHARED_DEMAND}
    assert found.demand.demand == pytest.approx(70.0)
    assert found.demand.capacities == pytest.approx(SERVES)


def test_growth_beyond_a_maximum_is_in_the_next_pool() -> None:
    assert counts(Role().share(150.0, 150.0)) == [5, 10]


def test_a_shrink_is_in_the_most_expensive_pool_first() -> None:
    found = Role().share(20.0, 20.0)
    assert counts(found) == [1, 1]
    assert [need.keep for need in found.needs] == [1, 1]
    assert found.needs[0].requests_per_s == pytest.approx(20.0 * 20.0 / 25.0)
    assert counts(Role().share(25.0, 25.0)) == [1, 2]


def test_workers_that_start_anywhere_count_and_delay_a_shrink() -> None:
    role = Role()
    role.world.pool("cheap").set_desired(6, role.world.now)
    assert counts(role.share(70.0, 70.0)) == [2, 6]
    assert counts(role.share(20.0, 20.0)) == [2, 6]


def test_a_need_of_one_pool_is_met_by_the_cheapest_once() -> None:
    role = Role()
    assert counts(role.share(40.0, 40.0, wanted=3)) == [2, 6]
    role.world.pool("cheap").set_desired(6, role.world.now)
    assert counts(role.share(40.0, 40.0, wanted=3)) == [2, 6]


def test_a_router_that_overloads_the_slow_workers_lowers_what_the_others_serve() -> None:
    """Each worker has as many requests: 5 per second is the most that all four can have."""
    assert counts(Role().share(20.0, 20.0, dear_share=0.5)) == [2, 2]
    assert counts(Role().share(30.0, 30.0, dear_share=0.5)) == [2, 4]


def test_a_pool_that_cannot_meet_the_objectives_is_left() -> None:
    role = Role(cheap=0.5)
    found = role.share(70.0, 70.0)
    assert counts(found) == [4, 2]
    assert found.demand.capacities == {"dear": 20.0}
    assert counts(role.share(30.0, 30.0)) == [2, 1], "its minimum"


def test_a_pool_that_was_empty_and_is_known_grows_and_an_unknown_one_comes_last() -> None:
    known, unknown = Role(), Role(cheap=0.0)
    for role in (known, unknown):
        for _ in range(2):
            role.world.remove_newest("cheap")
        role.world.pool("cheap").reset_desired(0, role.world.now)
    grown = known.share(70.0, 70.0, empty="cheap")
    assert (counts(grown), grown.empty["cheap"].replicas) == ([2], 6)
    last = unknown.share(70.0, 70.0, empty="cheap")
    assert (counts(last), last.empty) == ([4], {})


def test_no_pool_is_sized_by_others_while_nothing_is_known() -> None:
    world = FleetHarness([PoolKnobs("a", "aggregated"), PoolKnobs("b", "aggregated")], 1)
    pool = world.pool("a")
    load = PoolLoad(
        world.model,
        pool,
        PoolState(EngineKind.of(pool)),
        ArrivalRate(),
        Lengths(),
        1.0,
        1.0,
        0.0,
        0.0,
        0,
        20.0,
        0.0,
        world.now,
    )
    assert share_needs([load], [PoolNeeds(1, 1, 0.0, 1.0, 1.0, Reason(ReasonCode.DEMAND_TARGET))], []) is None


def test_latencies_of_frontends_are_divided_as_the_workers_report_them() -> None:
    world = FleetHarness([PoolKnobs(name, "aggregated") for name in SERVES], 1)
    for name, itl_ms in (("dear", 10.0), ("cheap", 30.0)):
        sample = WorkerSample(1, 0, running_requests=10, decode_batch_requests=10, iteration_ms=itl_ms, itl_ms=itl_ms)
        for worker in world.pool(name).workers:
            world.fleet.ingest(reported(worker, sample, pool=name), world.now)
    model = world.refresh()
    interval = TrafficTotals(1_000, 10, 10, itl_ms=NO_MEAN.plus(40.0, 10), ttft_ms=NO_MEAN.plus(100.0, 10))
    found = pool_intervals(model, interval)
    assert [found[name].itl_ms.value for name in SERVES] == [pytest.approx(20.0), pytest.approx(60.0)]
    assert found["dear"].ttft_ms == interval.ttft_ms, "no worker reports it"
    alone = replace(model, pools={"dear": model.pools["dear"]})
    assert pool_intervals(alone, interval)["dear"] is interval
