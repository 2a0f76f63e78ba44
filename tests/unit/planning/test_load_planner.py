"""Load planner, and the SLA planner that combines it with a minimum."""

import pytest

from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.load import LoadPlanner
from loadline.core.planning.planners.sla import SlaKnobs, SlaPlanner
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.planning.sizing.load.stepper import LoadKnobs
from loadline.core.vocabulary.events import ForecastFitted, TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.forecast import forecast
from tests.support.fleet_harness import FleetHarness, reported

BLOCKS = 1_000
# ITL is 10 ms, plus 50 ms with a full cache: 50 ms at 800 blocks.
UP = 800


class LoadPlannerHarness:
    """Decode pool whose workers report the KV blocks of a test."""

    def __init__(self, planner: LoadPlanner | SlaPlanner | None = None, workers: int = 3) -> None:
        self.world = FleetHarness([PoolKnobs("d", "decode", replicas_max=20)], workers)
        self.pool = self.world.pool("d")
        self.pool.decided = workers
        self.planner = planner or LoadPlanner(LoadKnobs())
        self.kv_blocks_total: int | None = None

    def report(self, *blocks: int) -> None:
        self.world.sequence += 1
        for worker, used in zip(self.pool.workers, blocks, strict=False):
            itl_ms = 10.0 + 50.0 * used / BLOCKS
            new_sample = WorkerSample(
                self.world.sequence,
                0,
                kv_blocks_used=used,
                kv_blocks_total=self.kv_blocks_total,
                running_requests=1,
                itl_ms=itl_ms,
            )
            self.world.fleet.ingest(reported(worker, new_sample, pool="d"), self.world.now)

    def run(self, *blocks: int, seconds: int = 30) -> Recommendation:
        for _ in range(seconds):
            self.world.now += 1_000
            self.report(*blocks)
            recommendation = self.planner.plan(self.world.refresh(), self.world.now)
        return recommendation

    def learn(self) -> None:
        for step in range(10):
            self.run(*(300 + 10 * step + number for number in range(self.pool.ready)), seconds=1)


def codes(recommendation: Recommendation) -> list[ReasonCode]:
    return [reason.code for reason in recommendation.reasons]


@pytest.fixture
def harness() -> LoadPlannerHarness:
    harness_of = LoadPlannerHarness()
    harness_of.learn()
    return harness_of


def test_without_a_fit_the_pool_is_held() -> None:
    harness = LoadPlannerHarness()
    assert codes(harness.run(900, 901, 902, seconds=1)) == [ReasonCode.LOAD_LEARNING]


def test_it_grows_if_all_workers_are_overloaded(harness: LoadPlannerHarness) -> None:
    assert harness.run(900, 950, 810).targets == {"d": 4}
    assert harness.run(900, 950, 700).targets == {}


def test_a_sustained_overload_scales_up_in_its_turn_and_a_spike_does_not(harness: LoadPlannerHarness) -> None:
    harness.run(480, 500, 520)
    assert harness.run(900, 950, 810, seconds=1).targets == {}
    harness.run(480, 500, 520)
    assert harness.run(1_700, 1_700, 1_700, seconds=1).targets == {"d": 4}


def test_it_shrinks_if_the_other_workers_can_take_the_load(harness: LoadPlannerHarness) -> None:
    # 172 plus a fifth are 206 blocks. On two workers that is 640 blocks each, 80 % of those that meet the objective:
    # iterations take twice as long there, so requests stay twice as long.
    assert harness.run(171, 170, 150, seconds=600).targets == {"d": 2}
    assert harness.run(173, 170, 150, seconds=600).targets == {}


def test_consolidation_leaves_a_fraction_of_the_iteration_time_above_idle(harness: LoadPlannerHarness) -> None:
    # An idle worker takes 10 ms, so 40 ms may be used: 800 blocks, which were 228 on three workers. A fifth is
    # headroom.
    harness.planner = LoadPlanner(LoadKnobs(scaling_down_sensitivity_ratio=1.0))
    harness.learn()
    recommendation = harness.run(190, 180, 170, seconds=600)
    assert recommendation.targets == {"d": 2}
    assert codes(recommendation) == [ReasonCode.LOAD_LOW]
    assert codes(harness.run(192, 180, 170, seconds=600)) == [ReasonCode.CONSOLIDATION_REFUSED]


def test_a_pool_changes_once_per_interval(harness: LoadPlannerHarness) -> None:
    harness.run(900, 950, 810, seconds=600)
    harness.pool.set_decided(4, harness.world.now)
    harness.world.add_workers("d", 1)
    recommendation = harness.run(900, 950, 810, 900, seconds=3)
    assert (recommendation.targets, codes(recommendation)) == ({}, [ReasonCode.ADJUSTMENT_INTERVAL])
    assert harness.run(900, 950, 810, 900, seconds=3).targets == {"d": 5}


def test_a_shrink_waits_for_silent_and_pending_workers_and_names_them(harness: LoadPlannerHarness) -> None:
    recommendation = harness.run(101, 100, seconds=600)
    assert (recommendation.targets, codes(recommendation)) == ({}, [ReasonCode.SILENT_WORKERS])
    assert recommendation.reasons[0].numbers == {"silent": 1}
    assert harness.run(101, 100, 90, seconds=60).targets == {"d": 2}
    harness.pool.set_decided(4, harness.world.now)
    recommendation = harness.run(101, 100, 90, seconds=60)
    assert (recommendation.targets, codes(recommendation)) == ({}, [ReasonCode.WORKERS_PENDING])
    assert codes(harness.run(700, 690, 680, seconds=60)) == [ReasonCode.LOAD_WITHIN]


def test_a_shrink_waits_an_interval_after_workers_change_from_outside(harness: LoadPlannerHarness) -> None:
    assert harness.run(171, 170, 150, seconds=600).targets == {"d": 2}
    harness.world.add_workers("d", 1)
    recommendation = harness.run(171, 170, 150, 150, seconds=3)
    assert (recommendation.targets, codes(recommendation)) == ({}, [ReasonCode.ADJUSTMENT_INTERVAL])
    assert harness.run(171, 170, 150, 150, seconds=3).targets == {"d": 2}


def test_pending_workers_count_as_capacity(harness: LoadPlannerHarness) -> None:
    harness.pool.set_decided(4, harness.world.now)
    assert harness.run(900, 950, 900, seconds=600).targets == {}, "with four workers there are 675 blocks per worker"
    assert harness.run(1_300, 1_310, 1_290, seconds=600).targets == {"d": 5}


def test_nothing_shrinks_while_a_worker_is_silent_or_pending(harness: LoadPlannerHarness) -> None:
    assert harness.run(100, 100).targets == {}
    harness.run(100, 100, 100)
    harness.pool.set_decided(4, harness.world.now)
    assert harness.run(100, 100, 100, seconds=60).targets == {}


def test_without_a_rising_latency_observed_loads_are_accepted() -> None:
    harness = LoadPlannerHarness()
    for _ in range(30):
        harness.world.now += 1_000
        harness.world.sequence += 1
        for worker in harness.pool.workers:
            new_sample = WorkerSample(harness.world.sequence, 0, kv_blocks_used=400, running_requests=1, itl_ms=20.0)
            harness.world.fleet.ingest(reported(worker, new_sample, pool="d"), harness.world.now)
        recommendation = harness.planner.plan(harness.world.refresh(), harness.world.now)
    assert recommendation.targets == {}, "400 blocks need no growth, and 600 were not observed"


@pytest.mark.parametrize("itl_ms", [100.0, 5.0])
@pytest.mark.parametrize("slope_ms", [0.01, 0.0])
def test_a_full_cache_is_an_overload_at_any_itl(itl_ms: float, slope_ms: float) -> None:
    recommendation = run_with_itl(itl_ms, 950, slope_ms)
    assert recommendation.targets == {"d": 4}
    [reason] = recommendation.reasons
    assert reason.numbers["latency_ms"] == pytest.approx(10.0 + 900 * slope_ms)


@pytest.mark.parametrize("slope_ms", [0.01, 0.0])
def test_an_objective_below_the_itl_without_load_is_called_infeasible(slope_ms: float) -> None:
    recommendation = run_with_itl(5.0, 400, slope_ms)
    assert recommendation.targets == {}
    [reason] = recommendation.reasons
    assert (reason.code, reason.numbers) == (
        ReasonCode.SLA_INFEASIBLE,
        {"best_ms": pytest.approx(10.0), "objective_ms": 5.0},
    )


def test_a_pool_that_grew_for_full_caches_shrinks_though_its_objective_is_infeasible() -> None:
    # With two workers requests stay longer: the ITL would exceed 18 ms, 80 % of the way to twice that without load.
    harness = LoadPlannerHarness(workers=12)
    harness.kv_blocks_total = BLOCKS
    harness.world.model.objectives = ObjectiveKnobs(itl_ms=8.0)
    harness.learn()
    counts = []
    for _ in range(120):
        count = harness.pool.ready
        target = harness.run(*(300 // count + number for number in range(count))).targets.get("d", count)
        assert target <= count
        if target < count:
            harness.pool.set_decided(target, harness.world.now)
            harness.world.remove_newest("d")
        counts.append(target)
    assert counts[-60:] == [3] * 60


def test_an_aggregated_pool_without_requests_shrinks_though_its_ttft_objective_is_infeasible() -> None:
    harness = LoadPlannerHarness()
    harness.world = FleetHarness([PoolKnobs("d", "aggregated")], 3)
    harness.pool = harness.world.pool("d")
    harness.pool.decided = 3
    harness.world.model.objectives = ObjectiveKnobs(ttft_ms=300.0, itl_ms=50.0)
    for second in range(600):
        harness.world.now += 1_000
        harness.world.sequence += 1
        tokens = 100 + second if second < 60 else 0
        for worker in harness.pool.workers:
            sample = WorkerSample(
                harness.world.sequence,
                0,
                kv_blocks_total=BLOCKS,
                kv_blocks_used=tokens // 3,
                running_requests=min(tokens, 1),
                queued_prefill_tokens=tokens,
                ttft_ms=400.0 + 0.2 * tokens if tokens else None,
                itl_ms=10.0 + 0.05 * tokens if tokens else None,
            )
            harness.world.fleet.ingest(reported(worker, sample, pool="d"), harness.world.now)
        recommendation = harness.planner.plan(harness.world.refresh(), harness.world.now)
        assert second >= 60 or recommendation.targets == {}
    assert recommendation.targets == {"d": 2}


def run_with_itl(objective_ms: float, used: int, slope_ms: float) -> Recommendation:
    """Run workers whose ITL is 10 ms and ``slope_ms`` for each block, beside an objective."""
    harness = LoadPlannerHarness()
    harness.world.model.objectives = ObjectiveKnobs(itl_ms=objective_ms)
    for second in range(30):
        harness.world.now += 1_000
        harness.world.sequence += 1
        for number, worker in enumerate(harness.pool.workers):
            blocks = used + (second + number) % 5
            new_sample = WorkerSample(
                harness.world.sequence,
                0,
                kv_blocks_used=blocks,
                kv_blocks_total=BLOCKS,
                running_requests=1,
                itl_ms=10.0 + slope_ms * blocks,
            )
            harness.world.fleet.ingest(reported(worker, new_sample, pool="d"), harness.world.now)
        recommendation = harness.planner.plan(harness.world.refresh(), harness.world.now)
    return recommendation


def sla(workers: int = 3) -> LoadPlannerHarness:
    harness = LoadPlannerHarness(SlaPlanner(SlaKnobs(throughput=ThroughputKnobs(attainment=0.0))), workers)
    harness.pool.engine = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, 1e6, 1_000))
    return harness


def run_traffic(harness: LoadPlannerHarness, requests_per_s: int, *blocks: int, seconds: int = 30) -> Recommendation:
    for _ in range(seconds):
        sample = TrafficSample(
            harness.world.now, 1_000, requests_per_s, requests_per_s, isl_tokens=500.0, osl_tokens=100.0
        )
        harness.world.model.traffic.ingest(TrafficReported("m", "f", 1, sample), harness.world.now + 1_000)
        recommendation = harness.run(*blocks, seconds=1)
        forecast_queries = harness.planner.forecast_request()
        if forecast_queries is not None:
            harness.planner.ingest_forecast(
                ForecastFitted("m", forecast_queries.request, [forecast(one) for one in forecast_queries.queries])
            )
    return recommendation


def test_the_size_by_traffic_is_a_minimum_for_steps_by_load() -> None:
    harness = sla()
    harness.learn()
    recommendation = run_traffic(harness, 470, 500, 500, 500)
    assert recommendation.targets == {"d": 5}
    assert codes(recommendation)[0] == ReasonCode.TRAFFIC_SURGE
    assert run_traffic(sla_learned(), 270, 900, 950, 950, seconds=150).targets == {"d": 4}, (
        "the profile requires three workers, the load of workers requires more"
    )


def sla_learned() -> LoadPlannerHarness:
    harness = sla()
    harness.learn()
    return harness


def test_steps_by_load_respect_the_minimum_and_need_it_to_shrink() -> None:
    harness = sla_learned()
    assert run_traffic(harness, 270, 100, 100, 100).targets == {}
    assert run_traffic(sla_learned(), 150, 100, 110, 120, seconds=170).targets == {}, "it only grows after a start"
    assert run_traffic(sla_learned(), 150, 100, 110, 120, seconds=190).targets == {"d": 2}
    blind = sla_learned()
    recommendation = blind.run(100, 100, 100)
    assert (recommendation.targets, codes(recommendation)[0]) == ({}, ReasonCode.TRAFFIC_UNKNOWN)
    assert sla_without_traffic(), "an overload is detected without traffic"


def sla_without_traffic() -> bool:
    return sla_learned().run(900, 950, 900, seconds=600).targets == {"d": 4}


def test_no_pool_shrinks_while_a_frontend_is_silent() -> None:
    harness = sla_learned()
    sample = TrafficSample(1, 1_000, 1, 1, isl_tokens=500.0, osl_tokens=100.0)
    run_traffic(harness, 150, 100, 110, 120, seconds=185)
    harness.world.model.traffic.ingest(TrafficReported("m", "silent", 1, sample), harness.world.now)
    assert run_traffic(harness, 150, 100, 110, 120, seconds=5).targets == {"d": 2}, "the frontend has just reported"
    recommendation = run_traffic(harness, 150, 100, 110, 120, seconds=30)
    assert (recommendation.targets, codes(recommendation)[0]) == ({}, ReasonCode.TRAFFIC_INCOMPLETE)
    assert run_traffic(harness, 150, 100, 110, 120, seconds=30).targets == {"d": 2}, (
        "the frontend has been silent for a minute"
    )


def test_an_unreached_minimum_is_reported() -> None:
    harness = sla_learned()
    harness.pool.set_decided(5, harness.world.now)
    harness.world.now += harness.pool.knobs.start_deadline_ms + 1
    recommendation = run_traffic(harness, 470, 500, 500, 500)
    assert ReasonCode.PENDING_UNREACHED in codes(recommendation)


def test_an_unusable_profile_holds_the_pool() -> None:
    harness = sla_learned()
    harness.pool.engine = EngineProfile(problem="x.npz: broken. Profile again")
    recommendation = run_traffic(harness, 470, 900, 950, 900)
    assert (recommendation.targets, codes(recommendation)) == ({}, [ReasonCode.PROFILE_UNUSABLE])
