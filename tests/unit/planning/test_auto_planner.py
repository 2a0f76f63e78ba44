"""Auto planner on workers whose latency is ``base / (1 - rate / full)``, of which it knows neither number."""

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.planner import ModelSettings
from loadline.core.planning.planners.auto import AutoPlanner, AutoPlannerKnobs
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported

BASE_MS = 6.0
FULL_PER_S = 30.0
"""Requests per second at which a worker's queue grows without end."""
OSL = 100
START_UP_S = 30
ITL_MS = 50
SERVES = FULL_PER_S * (1.0 - BASE_MS / (0.8 * ITL_MS))
"""Requests per second of a worker at 80 % of the ITL objective."""


class AutoWorld:
    """Planner with an aggregated pool; its targets are started after ``START_UP_S`` and stopped at once."""

    def __init__(
        self,
        workers: int,
        *,
        slots: int = 256,
        kv_per_request: float = 0.001,
        seed: int = 1,
        itl_ms: float = ITL_MS,
        prefill_ms: float = 40.0,
    ) -> None:
        self.fleet = FleetHarness([PoolKnobs("engine", "aggregated", replicas_max=32)], workers)
        self.fleet.model.objectives = ObjectiveKnobs(ttft_ms=500, itl_ms=itl_ms)
        self.pool: Pool = self.fleet.pool("engine")
        self.pool.decided = workers
        self.planner = AutoPlanner(AutoPlannerKnobs(start_up_ms=START_UP_S * 1_000))
        self.slots, self.kv_per_request, self.prefill_ms = slots, kv_per_request, prefill_ms
        self.sequence, self.backlog, self.base_ms, self.latest_itl_ms = 0, 0.0, BASE_MS, BASE_MS
        self.starting: list[tuple[int, int]] = []
        self.counts: list[int] = []
        self.last = Recommendation("auto", {}, (), {})
        self.grown_by: set[ReasonCode] = set()
        self._source = random.Random(seed)

    def run(self, requests_per_s: float, seconds: int, *, frontend: bool = True) -> None:
        for _ in range(seconds):
            self._second(requests_per_s, frontend=frontend)

    @property
    def target(self) -> int:
        return self.pool.effective_target(self.fleet.now)

    @property
    def codes(self) -> list[ReasonCode]:
        return [reason.code for reason in self.last.reasons]

    def _begin_second(self, requests_per_s: float) -> int:
        """Let a second pass and the workers that are due start; return its arrivals."""
        world = self.fleet
        world.now += 1_000
        self.sequence += 1
        while self.starting and self.starting[0][0] <= world.now:
            world.add_workers("engine", self.starting.pop(0)[1])
        return max(0, round(self._source.gauss(requests_per_s, requests_per_s**0.5)))

    def _end_second(self) -> None:
        """Plan, and apply the target."""
        self.last = self.planner.plan(self.fleet.refresh(), self.fleet.now)
        self._apply(self.last.targets.get("engine"))
        self.counts.append(self.target)

    def _second(self, requests_per_s: float, *, frontend: bool) -> None:
        world, arrivals = self.fleet, self._begin_second(requests_per_s)
        ready = max(1, self.pool.ready)
        at_slots = self.slots / (OSL * self.base_ms / 1_000 + self.slots / FULL_PER_S)
        most = ready * min(FULL_PER_S * 0.95, at_slots)
        served = min(arrivals + self.backlog, most)
        self.backlog += arrivals - served
        itl_ms = self.latest_itl_ms = self.base_ms / (1.0 - served / ready / FULL_PER_S)
        running = round(min(self.slots, served / ready * OSL * itl_ms / 1_000))
        waiting = round(self.backlog / ready)
        for worker in self.pool.workers:
            kv = min(1.0, running * self.kv_per_request)
            one = WorkerSample(self.sequence, 0, kv_usage_ratio=kv, waiting_requests=waiting, running_requests=running)
            world.fleet.ingest(reported(worker, one, pool="engine"), world.now)
        if frontend:
            ttft_ms = self.prefill_ms + 1_000.0 * self.backlog / most
            sample = TrafficSample(
                self.sequence, 1_000, arrivals, round(served), isl_tokens=1_000.0, osl_tokens=OSL, ttft_ms=ttft_ms,
                itl_ms=itl_ms,
            )  # fmt: skip
            world.model.traffic.ingest(TrafficReported("m", "f", 1, sample), world.now)
        self._end_second()

    def _apply(self, count: int | None) -> None:
        world = self.fleet
        if count is None:
            return
        count = min(count, 32)
        more = count - self.target
        if more > 0:
            self.grown_by |= set(self.codes)
        self.pool.set_decided(count, world.now)
        if more > 0:
            self.starting.append((world.now + START_UP_S * 1_000, more))
        for _ in range(self.pool.ready - count):
            world.remove_newest("engine")


def enough(requests_per_s: float) -> range:
    """Return the counts that serve a rate within the objectives, with at most two workers too many."""
    least = int(requests_per_s / (FULL_PER_S * (1.0 - BASE_MS / ITL_MS)))
    return range(least + 1, int(requests_per_s / SERVES * 1.1) + 3)


def test_several_pools_of_a_role_are_described_as_sharing_its_load() -> None:
    def shares(*roles: Role) -> bool:
        pools = tuple(PoolKnobs(f"p{number}", role) for number, role in enumerate(roles))
        settings = ModelSettings(pools, ObjectiveKnobs(), FleetKnobs())
        assert not list(AutoPlanner.check(AutoPlannerKnobs(), settings, "models[0].auto"))
        return any("Shares the load" in text for text in AutoPlanner.describe(AutoPlannerKnobs(), settings, pools[0]))

    assert not shares("prefill", "decode")
    assert shares("aggregated", "aggregated")


def test_a_sample_is_due_as_early_after_a_restored_snapshot() -> None:
    """No traffic has been reported since the last sample, 960 ms ago, so the next one waits for the whole second."""
    world = AutoWorld(2)
    world.run(20.0, 5)
    traffic, sampled_ms = world.fleet.model.traffic, world.planner.sampled_ms
    traffic.totals = replace(traffic.totals)  # as a snapshot is read: equal to that of the planner, but another object
    world.planner.plan(world.fleet.refresh(), sampled_ms + 960)
    assert world.planner.sampled_ms == sampled_ms


@pytest.mark.parametrize("requests_per_s", [20.0, 90.0, 240.0])
def test_a_fleet_of_any_size_finds_the_count(requests_per_s: float) -> None:
    for workers in (2, 16):
        world = AutoWorld(workers)
        world.run(requests_per_s, 300)
        assert world.target in enough(requests_per_s), workers


def test_traffic_reported_shortly_before_a_sample_is_due_makes_it() -> None:
    world = AutoWorld(2)
    world.run(20.0, 2)
    planner, sampled_ms = world.planner, world.planner.sampled_ms
    world.fleet.now = sampled_ms - 40  # the next report comes after 960 ms
    world.run(20.0, 1)
    assert planner.sampled_ms == sampled_ms + 960
    assert planner.next_wake() == planner.sampled_ms + 1_050
    world.fleet.now = planner.sampled_ms + 960
    world._end_second()  # no traffic has been reported since
    assert planner.sampled_ms == sampled_ms + 960
    world.fleet.now = planner.next_wake()
    world._end_second()
    assert planner.sampled_ms == sampled_ms + 960 + 1_050


def test_an_overload_from_the_first_second_is_answered_within_ten() -> None:
    world = AutoWorld(2)
    world.run(150.0, 10)
    assert world.target >= 5
    world.run(150.0, 240)
    assert world.backlog == 0
    assert world.target in enough(150.0)


def test_a_step_is_answered_at_once_and_in_one_step() -> None:
    world = AutoWorld(2)
    world.run(20.0, 120)
    before = world.target
    world.run(150.0, 1)
    assert before <= 2
    assert world.target >= 5


def test_slow_tokens_grow_a_pool_whose_caches_are_nearly_empty() -> None:
    world = AutoWorld(2, kv_per_request=1e-5, itl_ms=20)
    world.run(50.0, 30)
    assert world.pool.load.kv_micro / 1e6 < 0.1
    assert world.target >= 3
    assert world.grown_by == {ReasonCode.DEMAND_TARGET}


@pytest.mark.parametrize("itl_ms", [3.0, 5.0])
def test_an_itl_objective_that_no_count_meets_is_given_up_and_named(itl_ms: float) -> None:
    world = AutoWorld(2, itl_ms=itl_ms)
    world.run(60.0, 600)
    assert max(world.counts) >= 12, "none is known to be too few at first"
    assert world.target <= 6, "a worker serves 11 requests/s at 1.6 times the ITL without load"
    (infeasible,) = [reason for reason in world.last.reasons if reason.code is ReasonCode.SLA_INFEASIBLE]
    assert infeasible.numbers["best_ms"] == pytest.approx(BASE_MS, rel=0.05)
    assert infeasible.sentence().startswith("engine: a single request takes 6.0 ms, above the objective of ")
    world.fleet.model.objectives = ObjectiveKnobs(ttft_ms=500, itl_ms=ITL_MS)
    world.run(60.0, 1)
    assert ReasonCode.SLA_INFEASIBLE not in world.codes


def test_an_itl_objective_near_the_latency_without_load_is_not_given_up() -> None:
    world = AutoWorld(2, itl_ms=7)
    world.run(60.0, 600)
    assert ReasonCode.SLA_INFEASIBLE not in world.codes
    assert world.target > 12


def test_an_itl_objective_that_no_count_met_is_tried_for_again_and_kept_once_engines_are_faster() -> None:
    """The rates that showed it are forgotten after half an hour."""
    world = AutoWorld(2, itl_ms=5)
    world.run(60.0, 600)
    assert ReasonCode.SLA_INFEASIBLE in world.codes
    world.base_ms = 4.0
    world.run(60.0, 3_000)
    assert ReasonCode.SLA_INFEASIBLE not in world.codes
    assert world.latest_itl_ms <= 5.0


def test_an_itl_objective_is_kept_where_pools_share_a_role() -> None:
    """Another pool may meet it."""
    evidence, objectives = PoolEvidence(), ObjectiveKnobs(ttft_ms=500, itl_ms=5)
    evidence.itl.floor_ms = BASE_MS
    assert evidence.itl_objective_ms(objectives) == 2.0 * BASE_MS
    evidence.shares_role = True
    assert evidence.itl_objective_ms(objectives) == 5


@pytest.mark.parametrize("prefill_ms", [600.0, 2_000.0])
def test_a_ttft_that_no_number_of_workers_attains_does_not_grow_a_pool_for_ever(prefill_ms: float) -> None:
    """A burst leaves a backlog first, so a lower load seems to make prompts faster."""
    world = AutoWorld(2, prefill_ms=prefill_ms)
    world.run(3.0 * FULL_PER_S, 60)
    world.run(1.5 * SERVES, 600)
    assert max(world.counts[-300:]) <= 6, "three times what the other limits need, and the margin of shrinks"


def test_prompts_that_take_as_long_at_any_load_count_as_computed_in_turn() -> None:
    """Without a capacity a pool would be ``capacity_learning`` and never shrink.

    A worker with 4,000 tokens/s whose prompts of 1,000 tokens take 100 ms computes 12,385 tokens/s without a pause.
    """
    evidence, objectives = PoolEvidence(), ObjectiveKnobs(ttft_ms=500, itl_ms=50)
    for rate in (1_000.0, *[4_000.0] * 8):
        evidence.ttft.add(rate, 100.0, 100.0, 0)
    limit_ms = evidence.ttft_limit_ms(objectives)
    assert evidence.capacity("prefill", objectives) == pytest.approx(12_385.0 - 1e6 / limit_ms, rel=1e-4)


def test_prompts_that_are_late_at_a_low_load_make_a_prefill_worker_serve_no_less_than_a_third() -> None:
    """Long prompts among short ones are late on idle workers, too."""
    evidence, objectives = PoolEvidence(), ObjectiveKnobs(ttft_ms=500, itl_ms=50)
    evidence.ttft.add(2_000.0, 110.0, 100.0, 0)
    for now in range(5):
        evidence.ttft.add(200.0, 900.0, 800.0, now)
    assert evidence.capacity("prefill", objectives) == pytest.approx(1_000.0 * 1_000.0 / 100.0 / 3.0, rel=0.05)


def test_full_batches_grow_a_pool_whose_latency_and_caches_are_in_order() -> None:
    world = AutoWorld(1, slots=8)
    world.run(60.0, 20)
    assert world.target >= 6
    assert world.pool.load.kv_micro / 1e6 < 0.1


def test_without_frontends_what_workers_hold_decides() -> None:
    world = AutoWorld(2, kv_per_request=0.02)
    world.run(50.0, 9, frontend=False)
    assert ReasonCode.SATURATION_HIGH not in world.grown_by, "a frontend may still report"
    world.run(50.0, 5, frontend=False)
    assert world.target >= 3
    assert any(code.value.startswith("saturation") for code in world.codes)
    world.run(2.0, 400, frontend=False)
    assert world.target == 1
    world.run(50.0, 60)
    assert world.target >= 2, "a frontend reports now"
    assert "engine.serves_per_s" in world.last.inputs


def test_a_frontend_that_falls_silent_shrinks_nothing() -> None:
    world = AutoWorld(2)
    world.run(50.0, 100)
    before = world.target
    world.run(1.0, 400, frontend=False)
    assert world.target == before


def test_nothing_shrinks_before_the_capacity_is_known() -> None:
    world = AutoWorld(8)
    world.run(0.01, 20)
    assert world.target == 8
    assert world.codes == [ReasonCode.CAPACITY_LEARNING]


def test_a_shrink_waits_for_a_start_up_and_half_a_minute_and_then_happens_in_one_step() -> None:
    world = AutoWorld(6)
    world.run(140.0, 120)
    high = world.target
    began = len(world.counts)
    world.run(20.0, 10)
    assert world.target == high
    (hold,) = [reason for reason in world.last.reasons if reason.code is ReasonCode.HIGHEST_RECOMMENDATION]
    assert 0 < hold.numbers["left_ms"] <= START_UP_S * 1_000 + 30_000
    world.run(20.0, 90)
    assert world.target <= 2
    shrinks = {count for count in world.counts[began:] if count < high}
    assert len(shrinks) <= 2, "as many workers at once as are not needed"


def test_a_worker_that_never_starts_does_not_keep_the_others() -> None:
    world = AutoWorld(6)
    world.pool.knobs = replace(world.pool.knobs, start_deadline_ms=60_000)
    world.run(140.0, 90)
    world.fleet.add_workers("engine", 1, "starting")
    world.pool.set_decided(world.target + 1, world.fleet.now)
    world.run(20.0, 50)
    assert ReasonCode.WORKERS_PENDING in world.codes
    world.run(20.0, 120)
    assert world.target <= 2


def test_a_count_that_is_kept_for_its_margin_says_so() -> None:
    world = AutoWorld(4)
    kept = []
    for _ in range(120):
        world.run(80.0, 1)
        kept += [
            (reason.numbers["wanted"], reason.numbers["allowed"], world.target)
            for reason in world.last.reasons
            if reason.code is ReasonCode.SCALE_DOWN_MARGIN
        ]
    assert kept
    assert all(wanted < allowed == target for wanted, allowed, target in kept)


@pytest.mark.parametrize("requests_per_s", [30.0, 75.0, 130.0, 180.0])
def test_steady_load_is_not_reversed(requests_per_s: float) -> None:
    for seed in range(6):
        world = AutoWorld(8, seed=seed)
        world.run(requests_per_s, 180)
        settled = len(world.counts)
        world.run(requests_per_s, 600)
        steps = [after - before for before, after in pairwise(world.counts[settled:]) if after != before]
        assert len(steps) <= 1, (seed, steps)


def test_lulls_that_cost_more_than_idle_workers_are_held() -> None:
    world = AutoWorld(5)
    for _ in range(3):
        world.run(120.0, 90)
        world.run(10.0, 90)
    began = len(world.counts)
    world.run(120.0, 90)
    world.run(10.0, 80)
    assert min(world.counts[began:]) >= 5


def test_a_lull_that_cost_more_than_idle_workers_extends_the_hold() -> None:
    world = AutoWorld(5)
    for _ in range(2):
        world.run(120.0, 90)
        world.run(10.0, 90)
    world.run(120.0, 90)
    began = len(world.counts)
    world.run(10.0, 200)
    assert min(world.counts[began:]) >= 5


def test_a_silent_frontend_is_no_lull() -> None:
    world = AutoWorld(6)
    world.run(140.0, 90)
    high = world.target
    world.run(140.0, 120, frontend=False)
    assert world.target >= high


def test_a_profile_tells_what_a_worker_serves_from_a_light_load() -> None:
    known, unknown = AutoWorld(4), AutoWorld(4)
    known.pool.engine = EngineProfile(linear=LinearKnobs(BASE_MS, 1_000 / FULL_PER_S / OSL, 1.0, 0.001, 1e6))
    for world in (known, unknown):
        world.run(4.0, 10)
    assert 20.0 < known.last.inputs["engine.serves_per_s"] < FULL_PER_S
    assert "engine.serves_per_s" not in unknown.last.inputs
