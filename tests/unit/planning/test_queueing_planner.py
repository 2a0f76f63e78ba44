"""Queueing planner: demand, assignment to pools, and conditions of scale-down."""

from math import ceil
from typing import Any

import pytest
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.vocabulary.events import ForecastFitted, TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.forecast import forecast
from tests.support.fleet_harness import FleetHarness, reported

FAST = LinearKnobs(8.0, 0.08, 4.0, 0.02, max_kv_tokens=1e6)
SLOW = LinearKnobs(24.0, 0.16, 8.0, 0.04, max_kv_tokens=1e6)
"""Pool at a fourth of the price, which serves more per cost if objectives are loose."""
KNOBS = QueueingKnobs(start_up_ms=30_000)


class QueueingHarness:
    """Planner with a model whose counts follow its recommendations at once, or on demand."""

    def __init__(
        self,
        *engines: tuple[PoolKnobs, LinearKnobs, float],
        workers: int = 1,
        knobs: QueueingKnobs = KNOBS,
        **objectives: Any,
    ) -> None:
        self.world = FleetHarness([pool for pool, _, _ in engines], 0)
        self.world.model.objectives = ObjectiveKnobs(**objectives)
        for knobs_of, linear, cost in engines:
            pool = self.world.pool(knobs_of.name)
            pool.engine, pool.accelerator = EngineProfile(linear=linear), AcceleratorKnobs("a", cost_per_hour=cost)
        first = engines[0][0].name
        self.world.add_workers(first, workers)
        for pool in self.world.model.pools.values():
            pool.decided = pool.ready
        self.planner = QueueingPlanner(knobs)
        self.sequence = 0

    def run_traffic(
        self, requests_per_s: int, seconds: int = 1, *, apply_targets: bool = True, waiting: int = 0, **figures: Any
    ) -> Recommendation:
        for _ in range(seconds):
            self.world.now += 1_000
            self.sequence += 1
            for pool in self.world.model.pools.values():
                for number, worker in enumerate(pool.workers):
                    one = WorkerSample(self.sequence, 0, waiting_requests=0 if number else waiting)
                    self.world.fleet.ingest(reported(worker, one, pool=pool.name), self.world.now)
            traffic = TrafficSample(
                self.sequence, 1_000, requests_per_s, requests_per_s, isl_tokens=1_000.0, osl_tokens=200.0
            )
            event = TrafficReported("m", "f", 1, replace(traffic, **figures))
            self.world.model.traffic.ingest(event, self.world.now)
            recommendation = self.planner.plan(self.world.refresh(), self.world.now)
            query = self.planner.forecast_request()
            if query is not None:
                forecasts = [forecast(one) for one in query.queries]
                self.planner.ingest_forecast(ForecastFitted("m", query.request, forecasts))
            for name, count in recommendation.targets.items() if apply_targets else ():
                self.apply_counts(name, count)
        return recommendation

    def apply_counts(self, name: str, count: int) -> None:
        """Decide and apply counts."""
        pool = self.world.pool(name)
        pool.set_decided(count, self.world.now)
        while pool.ready > count:
            self.world.remove_newest(name)
        self.world.add_workers(name, count - pool.ready)

    def counts(self) -> dict[str, int]:
        return {name: pool.decided or 0 for name, pool in self.world.model.pools.items()}


def one_pool(**knobs: Any) -> tuple[PoolKnobs, LinearKnobs, float]:
    return PoolKnobs("one", "aggregated", replicas_max=99, **knobs), FAST, 3.0


def two_pools(most: int = 99) -> list[tuple[PoolKnobs, LinearKnobs, float]]:
    names = ("fast", FAST, 4.0), ("slow", SLOW, 1.0)
    return [
        (PoolKnobs(name, "aggregated", replicas_min=0, replicas_max=most), linear, cost) for name, linear, cost in names
    ]


def codes(recommendation: Recommendation) -> set[ReasonCode]:
    return {reason.code for reason in recommendation.reasons}


def test_it_grows_in_one_step_with_the_rate_of_a_worker_in_the_reason() -> None:
    harness = QueueingHarness(one_pool())
    recommendation = harness.run_traffic(200, 12)
    [need] = recommendation.demands
    assert need.role == "aggregated"
    assert need.demand == pytest.approx(200.0, rel=0.1)
    assert harness.counts() == {"one": -int(-200 // need.capacities["one"])}
    [reason] = [reason for reason in recommendation.reasons if reason.code is ReasonCode.QUEUEING_TARGET]
    assert reason.detail == "bound by itl"
    assert reason.numbers["serves"] == need.capacities["one"]
    assert 0.5 * harness.counts()["one"] < reason.numbers["busy"] < harness.counts()["one"]


def test_the_cheapest_pool_serves_the_load_of_a_role() -> None:
    harness = QueueingHarness(*two_pools())
    [need] = harness.run_traffic(200, 400).demands
    assert need.capacities["fast"] / 4.0 < need.capacities["slow"] / 1.0
    assert harness.counts()["fast"] <= 1, (
        "the fast pool began with one worker, and within 10 % headroom none is removed"
    )
    assert harness.counts()["slow"] == -int(-200 // need.capacities["slow"])
    scarce = QueueingHarness(*two_pools(8))
    [need] = scarce.run_traffic(200, 400).demands
    assert scarce.counts()["slow"] == 8
    left = 200 - 8 * need.capacities["slow"]
    assert scarce.counts()["fast"] == -int(-left // need.capacities["fast"]), "for the remaining demand only"


def test_reasons_of_pools_have_the_load_of_the_role_and_their_shares() -> None:
    harness = QueueingHarness(*two_pools(8))
    harness.run_traffic(150, 400)
    recommendation = harness.run_traffic(190, 30)
    reasons = [reason for reason in recommendation.reasons if reason.code is ReasonCode.QUEUEING_TARGET]
    assert [reason.pool for reason in reasons] == ["fast", "slow"]
    loads = {(reason.numbers["requests_per_s"], reason.numbers["backlog_requests_per_s"]) for reason in reasons}
    [(arriving, backlog)] = loads
    assert arriving > 170.0, "of the surge, including the pool at its maximum"
    assert sum(reason.numbers["takes"] for reason in reasons) == pytest.approx(arriving + backlog)


def test_a_pool_that_cannot_meet_the_objective_is_scaled_down() -> None:
    harness = QueueingHarness(*reversed(two_pools()), workers=12, itl_ms=20.0)
    recommendation = harness.run_traffic(200, 800)
    [need] = recommendation.demands
    assert set(need.capacities) == {"fast"}
    assert harness.counts()["slow"] == 0
    assert harness.counts()["fast"] > 0
    [reason] = [reason for reason in recommendation.reasons if reason.code is ReasonCode.SLA_INFEASIBLE]
    assert (reason.pool, reason.detail) == ("slow", "ITL")
    assert reason.numbers["objective_ms"] == 20.0
    assert reason.numbers["best_ms"] > 24.0


def test_without_a_pool_that_meets_the_objective_pools_are_sized_for_the_work() -> None:
    harness = QueueingHarness(one_pool(), itl_ms=9.0)
    recommendation = harness.run_traffic(200, 12, isl_tokens=8_000.0, osl_tokens=10.0)
    assert ReasonCode.SLA_INFEASIBLE in codes(recommendation)
    assert harness.counts()["one"] > 30, "8,000 tokens take 164 ms: 33 workers are fully busy"


def test_an_objective_below_any_latency_holds_the_pools() -> None:
    harness = QueueingHarness(one_pool(), ttft_ms=3.0)
    assert codes(harness.run_traffic(200, 60)) == {ReasonCode.SLA_INFEASIBLE}
    assert harness.counts() == {"one": 1}


def test_a_replaced_pool_shrinks_as_the_other_becomes_ready() -> None:
    harness = QueueingHarness(*two_pools(), workers=11, knobs=replace(KNOBS, switching_cost_hours=0.0))
    for _ in range(400):
        recommendation = harness.run_traffic(200, apply_targets=False)
        if "slow" in recommendation.targets:
            harness.world.pool("slow").set_decided(recommendation.targets["slow"], harness.world.now)
        assert "fast" not in recommendation.targets, "no worker of the others is ready"
    assert ReasonCode.REPLACEMENT_NOT_READY in codes(recommendation)
    [need] = recommendation.demands
    harness.world.add_workers("slow", 20)
    left = 200 - 20 * need.capacities["slow"]
    assert harness.run_traffic(200, apply_targets=False).targets["fast"] == -int(-left // need.capacities["fast"])


def test_a_shrink_waits_until_workers_were_not_needed_for_a_start_up_time() -> None:
    harness = QueueingHarness(one_pool(), knobs=QueueingKnobs(start_up_ms=100_000))
    harness.run_traffic(200, 300)
    busy = harness.counts()["one"]
    held = [harness.run_traffic(40) for _ in range(100) if harness.counts()["one"] == busy]
    assert len(held) == 100
    harness.run_traffic(40, 400)
    assert harness.counts()["one"] < busy / 3


def test_during_the_first_interval_its_busiest_part_counts() -> None:
    harness = QueueingHarness(*two_pools())
    [need] = harness.run_traffic(200, 60).demands
    busy, demands, counts = harness.counts(), [], []
    for _ in range(1_000):
        demands.append(harness.run_traffic(10).demands[0].demand)
        counts.append(sum(harness.counts().values()))
    assert counts[:120] == [sum(busy.values())] * 120
    assert min(demands[:120]) >= need.demand
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0] / 3


def test_a_passed_peak_is_no_demand_unless_requests_wait() -> None:
    harness = QueueingHarness(one_pool())
    harness.run_traffic(200, 30, apply_targets=False)
    [need] = harness.run_traffic(10, 20, apply_targets=False).demands
    assert need.demand == need.capacities["one"], "the load that one worker serves"
    [need] = harness.run_traffic(10, 20, apply_targets=False, waiting=2_000).demands
    assert need.demand > 200.0


def test_a_backlog_is_served_in_addition_to_arrivals() -> None:
    harness = QueueingHarness(one_pool(), knobs=QueueingKnobs(start_up_ms=30_000, drain_ms=20_000))
    [need] = harness.run_traffic(100, 200).demands
    low_load = harness.counts()["one"]
    harness.run_traffic(100, 60, waiting=40)
    assert harness.counts()["one"] == low_load, "each request waits for less than 0.5 s"
    recommendation = harness.run_traffic(100, 15, waiting=2_050, queued=4_000)
    [more] = recommendation.demands
    assert more.demand == pytest.approx(need.demand + 6_000 / 20.0, rel=0.02)
    assert harness.counts()["one"] == -int(-more.demand // more.capacities["one"])
    assert recommendation.inputs["aggregated_backlog_requests_per_s"] == pytest.approx(300.0, rel=0.02)
    assert harness.run_traffic(100, 400).targets == {}
    assert harness.counts()["one"] == low_load, "the additional workers are removed when the backlog is served"


def test_an_objective_in_tokens_per_s_counts_without_arrivals() -> None:
    harness = QueueingHarness(one_pool(), tokens_per_s=40_000.0)
    [need] = harness.run_traffic(3, 60).demands
    assert need.demand == pytest.approx(200.0)
    assert harness.counts()["one"] == -int(-200 // need.capacities["one"])


def test_objectives_apply_to_the_attainment_fraction() -> None:
    counts = []
    for attainment in (0.0, 0.95, 0.999):
        harness = QueueingHarness(one_pool(), attainment=attainment)
        harness.run_traffic(400, 30)
        counts.append(harness.counts()["one"])
    assert counts[0] < counts[1] < counts[2]


def test_without_arrivals_all_workers_are_removed() -> None:
    harness = QueueingHarness(*two_pools())
    assert harness.run_traffic(0, 400).demands[0].demand == 0.0
    assert harness.counts() == {"fast": 0, "slow": 0}
    harness.run_traffic(200, 20)
    assert sum(harness.counts().values()) > 10


def test_what_exceeds_all_maximums_is_recommended_in_the_cheapest_pool() -> None:
    harness = QueueingHarness(*two_pools(3))
    [need] = harness.run_traffic(400, 60).demands
    counts = harness.counts()
    missing = need.demand - 3 * need.capacities["fast"]
    assert counts == {"fast": 3, "slow": ceil(missing / need.capacities["slow"])}
    assert counts["slow"] > 3, "the maximum"


def test_a_pool_with_room_takes_the_load_before_any_exceeds_its_maximum() -> None:
    fast, slow = two_pools(3)
    harness = QueueingHarness((replace(fast[0], replicas_max=200), *fast[1:]), slow)
    harness.run_traffic(400, 60)
    counts = harness.counts()
    assert counts["slow"] <= 3 < counts["fast"]
