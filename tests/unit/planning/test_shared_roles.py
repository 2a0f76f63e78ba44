"""Pools of one role that auto sizes together."""

import pytest
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.traffic_totals import NO_MEAN, TrafficTotals
from loadline.core.planning.demand.arrival_rate import ArrivalRate
from loadline.core.planning.sizing.evidence.learned import EngineKind
from loadline.core.planning.sizing.evidence.request_shares import RequestShares, reported_latencies
from loadline.core.planning.sizing.needs.pool_needs import PoolLoad, PoolNeeds, PoolState
from loadline.core.planning.sizing.needs.shared_roles import EmptyPool, SharedNeeds, pool_traffic, share_needs
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
        self.serves, self.proven = SERVES | serves, dict[str, float]()
        for name, cost in COSTS.items():
            pool = self.world.pool(name)
            pool.decided, pool.accelerator = 2, AcceleratorKnobs(name, cost_per_hour=cost)

    def share(
        self,
        growing: float,
        lasting: float,
        *,
        dear_share: float = 0.8,
        error: float = 0.0,
        empty: str = "",
        wanted: int = 0,
    ) -> SharedNeeds:
        now, model = self.world.now, self.world.refresh()
        shares, loads, needs = {"dear": dear_share, "cheap": 1.0 - dear_share}, [], []
        for name, pool in model.pools.items():
            if name == empty:
                continue
            part = 1.0 if empty else shares[name]
            state, rates = PoolState(EngineKind.of(pool)), (part * growing, part * lasting)
            lengths = Lengths(lasting_isl_tokens=1_000.0)
            if name in self.proven:
                state.evidence.itl.add(1_000.0 * self.proven[name], 10.0, 10.0, 0)
            load = PoolLoad(
                model, pool, state, ArrivalRate(), lengths, *rates, 0.0, self.serves[name], 30_000, 20.0, 0.0, now
            )
            own = wanted if name == "dear" else 0
            code = ReasonCode.BACKLOG_TARGET if own else ReasonCode.DEMAND_TARGET
            lasts = rates[1] / self.serves[name] if self.serves[name] else 0.0
            loads.append(load)
            needs.append(PoolNeeds(own, 0, lasts, rates[1], rates[0], Reason(code, name)))
        others = [EmptyPool(self.world.pool(empty), self.serves[empty])] if empty else []
        found = share_needs(loads, needs, others, dict.fromkeys(SERVES, error))
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
    role.world.pool("cheap").set_decided(6, role.world.now)
    assert counts(role.share(70.0, 70.0)) == [2, 6]
    assert counts(role.share(20.0, 20.0)) == [2, 6]


def test_a_need_of_one_pool_is_met_by_the_cheapest_once() -> None:
    role = Role()
    assert counts(role.share(40.0, 40.0, wanted=3)) == [2, 6]
    role.world.pool("cheap").set_decided(6, role.world.now)
    assert counts(role.share(40.0, 40.0, wanted=3)) == [2, 6]


def test_a_router_that_overloads_the_slow_workers_lowers_what_the_others_serve() -> None:
    """Each worker has as many requests: 5 per second is the most that all four can have."""
    assert counts(Role().share(20.0, 20.0, dear_share=0.5)) == [2, 2]
    assert counts(Role().share(30.0, 30.0, dear_share=0.5)) == [2, 4]


def test_chance_in_the_division_of_the_requests_lowers_nothing() -> None:
    assert counts(Role().share(45.0, 45.0, dear_share=0.5)) == [2, 7]
    assert counts(Role().share(45.0, 45.0, dear_share=0.5, error=0.7)) == [2, 2]


def test_a_shrink_leaves_no_pool_far_beyond_a_load_that_was_seen_to_be_good() -> None:
    """All requests of a removed dear worker go to the cheap ones, which have had one request per second each."""
    assert counts(Role().share(25.0, 25.0)) == [1, 2]
    role = Role()
    role.proven["cheap"] = 1.0
    assert counts(role.share(25.0, 25.0)) == [2, 1], "its minimum"
    role.proven["dear"] = 9.0
    assert counts(role.share(25.0, 25.0)) == [2, 2]


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
        role.world.pool("cheap").reset_decided(0, role.world.now)
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
    assert (
        share_needs([load], [PoolNeeds(1, 1, 0.0, 1.0, 1.0, Reason(ReasonCode.DEMAND_TARGET))], [], {"a": 0.0}) is None
    )


def test_latencies_of_frontends_are_divided_as_the_workers_report_them() -> None:
    world = FleetHarness([PoolKnobs(name, "aggregated") for name in SERVES], 1)
    for name, itl_ms in (("dear", 10.0), ("cheap", 30.0)):
        sample = WorkerSample(1, 0, running_requests=10, decode_batch_requests=10, iteration_ms=itl_ms, itl_ms=itl_ms)
        for worker in world.pool(name).workers:
            world.fleet.ingest(reported(worker, sample, pool=name), world.now)
    model = world.refresh()
    interval = TrafficTotals(1_000, 10, 10, itl_ms=NO_MEAN.plus(40.0, 10), ttft_ms=NO_MEAN.plus(100.0, 10))
    found = pool_traffic(model, interval, RequestShares(), reported_latencies(model))
    assert [found[name].totals.itl_ms.value for name in SERVES] == [pytest.approx(20.0), pytest.approx(60.0)]
    assert found["dear"].totals.ttft_ms == interval.ttft_ms, "no worker reports it"
    alone = replace(model, pools={"dear": model.pools["dear"]})
    assert pool_traffic(alone, interval, RequestShares(), {})["dear"].totals is interval


class Shares:
    """Two prefill pools with two workers each, and what is known of their shares."""

    def __init__(self) -> None:
        self.world = FleetHarness([PoolKnobs(name, "prefill") for name in SERVES], 2)
        self.known, self.sequence = RequestShares(), 0

    def second(self, running: dict[str, int], arrivals_per_s: float = 2.0, **ttft_ms: float) -> None:
        """Let the first worker of each pool report so many running requests, and the others none."""
        self.sequence += 1
        self.world.now += 1_000
        for name in SERVES:
            for number, worker in enumerate(self.world.pool(name).workers):
                count = 0 if number else running[name]
                one = WorkerSample(self.sequence, 0, waiting_requests=0, running_requests=count)
                self.world.fleet.ingest(
                    reported(worker, replace(one, ttft_ms=ttft_ms.get(name)), pool=name), self.world.now
                )
        model = self.world.refresh()
        self.known.add(model, reported_latencies(model), arrivals_per_s)

    def of(self, name: str) -> float:
        return self.known.of(self.world.model, self.world.pool(name))

    def error(self, name: str) -> float:
        return self.known.error(self.world.model, self.world.pool(name))


def test_few_requests_of_a_second_tell_no_shares() -> None:
    shares = Shares()
    shares.second({"dear": 0, "cheap": 0}, 0.0)
    assert (shares.of("dear"), shares.error("dear")) == (0.5, 1.0)
    shares.second({"dear": 1, "cheap": 0}, 1.0)
    assert shares.error("dear") == 1.0
    for number in range(400):
        shares.second({"dear": number % 2, "cheap": 1 - number % 2})
    assert shares.of("dear") == pytest.approx(0.5, abs=0.02)
    assert shares.error("dear") == pytest.approx(1.0 / 60**0.5, rel=0.05), "that of 2 requests/s for a minute"
    for _ in range(400):
        shares.second({"dear": 3, "cheap": 1})
    assert shares.of("dear") == pytest.approx(0.75, abs=0.01)


def test_long_requests_are_no_new_ones_each_second() -> None:
    shares = Shares()
    for _ in range(400):
        shares.second({"dear": 60, "cheap": 60}, 0.5)
    assert shares.error("dear") == pytest.approx(1.0 / 15**0.5, rel=0.05)


def test_a_pool_with_bursts_has_no_larger_share() -> None:
    shares = Shares()
    for number in range(400):
        shares.second({"dear": 10 if number % 10 == 0 else 0, "cheap": 1})
    assert shares.of("dear") == pytest.approx(0.5, abs=0.1)


def test_a_pool_that_joins_has_as_many_requests_at_a_worker_as_the_others() -> None:
    shares = Shares()
    for number in range(100):
        shares.second({"dear": number % 2, "cheap": number % 2})
    shares.known.forget_pool("cheap")
    shares.second({"dear": 1, "cheap": 0})
    assert shares.of("dear") == pytest.approx(0.5, abs=0.03)


def test_many_arrivals_tell_the_shares_at_once() -> None:
    shares = Shares()
    shares.second({"dear": 150, "cheap": 150}, 400.0)
    shares.second({"dear": 300, "cheap": 100}, 400.0)
    assert shares.of("dear") == pytest.approx(0.75)
    assert shares.of("cheap") == pytest.approx(0.25)
    assert shares.error("cheap") == pytest.approx(0.1)


def test_a_pool_that_takes_half_the_time_has_served_twice_the_requests() -> None:
    shares = Shares()
    shares.second({"dear": 300, "cheap": 300}, dear=50.0, cheap=100.0)
    assert shares.of("dear") == pytest.approx(2.0 / 3.0)
    shares.known.pools["cheap"].latency_ms = 0.0
    assert shares.of("dear") == pytest.approx(0.5), "the usual time counts where none is reported"


def test_a_share_changes_with_the_workers() -> None:
    shares = Shares()
    shares.second({"dear": 150, "cheap": 150})
    shares.world.remove_newest("cheap")
    shares.world.refresh()
    assert shares.of("dear") == pytest.approx(2.0 / 3.0)
    shares.known.forget_pool("dear")
    assert shares.of("cheap") == pytest.approx(1.0)
