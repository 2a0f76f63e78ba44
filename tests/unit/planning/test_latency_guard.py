"""Saturation planner where latency, not KV usage or queues, is beyond the objective."""

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.saturation import SaturationKnobs, SaturationPlanner
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported

ITL_MS, TTFT_MS = 50.0, 500.0
OSL = 100
START_UP_S = 40
WARM_UP_S = 90
"""Time without scale-down, by the guardrail."""
REQUEST_KV = 0.0025
"""KV usage of a request: 60 of them take 15 %."""

Latency = Callable[[float], float]
"""ITL in ms at a number of requests per worker."""


def rising(requests: float) -> float:
    """Return an ITL that meets the objective of 50 ms up to 24 requests."""
    return 14.0 + 1.5 * requests


class LatencyWorld:
    """Pool whose latency follows from the requests per worker; targets are ready after ``START_UP_S``."""

    def __init__(
        self, itl_ms: Latency, workers: int = 2, *, role: Role = "aggregated", frontend: bool = True, **knobs: object
    ) -> None:
        self.fleet = FleetHarness([PoolKnobs("a", role, replicas_max=64)], workers)
        self.fleet.model.objectives = ObjectiveKnobs(ttft_ms=TTFT_MS, itl_ms=ITL_MS)
        self.pool = self.fleet.pool("a")
        self.pool.decided = workers
        self.planner = SaturationPlanner(SaturationKnobs(**knobs))  # type: ignore[arg-type]
        self.itl_ms, self.frontend, self.ttft_ms = itl_ms, frontend, 100.0
        self.waiting = 0
        self.starting: list[tuple[int, int]] = []
        self.counts: list[int] = []
        self.grown_by: list[ReasonCode] = []
        self.second = 0
        self.last = Recommendation("", {}, (), {})

    def run(self, requests: int, seconds: int) -> int:
        """Hold the number of requests in flight for some seconds; return the target."""
        for _ in range(seconds):
            self._report(requests)
            self.last = self.planner.plan(self.fleet.refresh(), self.fleet.now)
            self._apply(self.last.targets.get("a"))
            self.counts.append(self.pool.effective_target(self.fleet.now))
        return self.counts[-1]

    @property
    def codes(self) -> list[ReasonCode]:
        return [reason.code for reason in self.last.reasons]

    def _report(self, requests: int) -> None:
        world = self.fleet
        world.now += 1_000
        self.second += 1
        while self.starting and self.starting[0][0] <= self.second:
            world.add_workers("a", self.starting.pop(0)[1])
        each = requests / self.pool.ready
        itl_ms = self.itl_ms(each)
        kv = min(1.0, REQUEST_KV * each)
        one = WorkerSample(
            self.second, 0, kv_usage_ratio=kv, waiting_requests=self.waiting, running_requests=round(each),
            ttft_ms=self.ttft_ms, itl_ms=itl_ms,
        )  # fmt: skip
        for worker in self.pool.workers:
            world.fleet.ingest(reported(worker, one, pool="a"), world.now)
        if self.frontend:
            done = round(requests * 1_000.0 / (itl_ms * OSL))
            traffic = TrafficSample(
                self.second, 1_000, done, done, isl_tokens=500.0, osl_tokens=OSL, ttft_ms=self.ttft_ms, itl_ms=itl_ms
            )
            world.model.traffic.ingest(TrafficReported("m", "f", 1, traffic), world.now)

    def _apply(self, count: int | None) -> None:
        current = self.pool.effective_target(self.fleet.now)
        if count is None or (count < current and self.second < WARM_UP_S):
            return
        self.pool.set_decided(count, self.fleet.now)
        if count > current:
            self.grown_by.append(self.codes[0])
            self.starting.append((self.second + START_UP_S, count - current))
        while self.pool.ready > count:
            self.fleet.remove_newest("a")


@pytest.mark.parametrize("frontend", [True, False], ids=["traffic", "worker loads"])
def test_twice_the_itl_objective_at_an_empty_cache_grows_until_it_is_met(*, frontend: bool) -> None:
    world = LatencyWorld(rising, frontend=frontend)
    count = world.run(120, 600)
    assert rising(120 / count) <= ITL_MS < rising(120 / (count - 2))
    assert set(world.grown_by) == {ReasonCode.LATENCY_HIGH}
    assert max(new / old for old, new in pairwise(world.counts)) <= 2.0


def test_a_model_without_objectives_is_not_scaled_for_the_defaults() -> None:
    world = LatencyWorld(rising)
    world.fleet.model.has_objectives = False
    assert world.run(120, 600) == 1  # 15 % of a cache
    assert not world.grown_by


def test_objectives_that_are_removed_hold_no_worker() -> None:
    world = LatencyWorld(rising)
    assert world.run(120, 600) > 2
    world.fleet.model.has_objectives = False
    assert world.run(120, 200) == 1


def test_the_reason_has_latency_load_and_count() -> None:
    world = LatencyWorld(rising)
    while ReasonCode.LATENCY_HIGH not in world.codes:
        world.run(120, 1)
        assert world.second < 90
    [reason] = world.last.reasons
    assert reason.sentence() == (
        "a: the mean latency of 30 s is 2.08 of its objective of 50 ms at 60.0 requests per worker: 4 "
        "workers needed: ITL"
    )


def test_the_workers_that_latency_needs_are_kept_while_the_load_lasts() -> None:
    world = LatencyWorld(rising)
    count = world.run(120, 600)
    assert {world.run(120, 1) for _ in range(1_500)} == {count}, "by KV usage one worker suffices"
    assert world.codes == [ReasonCode.LATENCY_LIMIT]
    assert world.run(30, 400) <= 3, "the load is a quarter"


def test_workers_that_do_not_lower_the_latency_are_given_back_and_not_added_again() -> None:
    world = LatencyWorld(lambda _: 80.0)
    world.run(120, 3_600)
    assert max(world.counts) == 4
    assert len(world.grown_by) == 1
    assert world.counts[-1] == 1, "KV usage needs one"


def test_a_latency_that_load_cannot_lower_to_the_objective_ends_growth() -> None:
    world = LatencyWorld(lambda requests: 55.0 + 0.5 * requests)
    world.run(120, 3_600)
    assert max(world.counts) <= 8
    assert world.counts[-1] == 1


def test_a_fleet_of_one_request_per_worker_does_not_grow() -> None:
    world = LatencyWorld(lambda _: 80.0)
    world.run(2, 600)
    assert max(world.counts) == 2


def test_a_scale_down_that_latency_does_not_allow_is_made_once() -> None:
    world = LatencyWorld(rising)
    assert world.run(46, 2 * 3_600) == 2
    assert len(world.grown_by) == 1


def test_requests_that_became_lighter_are_learned() -> None:
    world = LatencyWorld(rising)
    world.run(120, 600)
    world.itl_ms = lambda requests: 14.0 + 0.2 * requests
    assert world.run(120, 2_400) == 1


@pytest.mark.parametrize(("role", "grows"), [("decode", False), ("aggregated", True)])
def test_ttft_counts_where_prompts_are_computed(role: Role, *, grows: bool) -> None:
    world = LatencyWorld(lambda _: 20.0, role=role)
    world.ttft_ms = 900.0
    world.run(60, 300)
    assert bool(world.grown_by) is grows


def test_the_latency_of_a_queue_is_left_to_the_rule_for_queues() -> None:
    world = LatencyWorld(lambda _: 20.0)
    world.ttft_ms, world.waiting = 9_000.0, 6
    world.run(60, 300)
    assert set(world.grown_by) == {ReasonCode.SATURATION_HIGH}


def test_an_absurd_latency_leaves_a_state_that_can_be_restored() -> None:
    world = LatencyWorld(lambda _: 1e12)
    world.ttft_ms = 1e12
    world.run(60, 900)
    encoded = msgspec.json.encode(world.planner)
    assert msgspec.json.encode(msgspec.json.decode(encoded, type=SaturationPlanner)) == encoded


def test_the_original_rules_ignore_latency() -> None:
    world = LatencyWorld(rising, profile="upstream")
    assert world.run(120, 600) == 1
    assert not world.grown_by
