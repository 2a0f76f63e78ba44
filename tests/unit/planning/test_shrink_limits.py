"""Limits of a shrink."""

import pytest
from msgspec.structs import replace

from loadline.core.engines.latency_curve import LatencyCurve
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.auto import AutoPlanner, AutoPlannerKnobs
from loadline.core.planning.recommendation import PoolRecommendation
from loadline.core.planning.sizing.needs.passed_on import passed_on
from loadline.core.planning.sizing.needs.pool_needs import PoolLoad, PoolNeeds
from loadline.core.planning.sizing.needs.shrink_hold import ShrinkHold
from loadline.core.planning.sizing.needs.shrink_limits import shrink
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported
from tests.unit.planning.test_auto_planner import AutoWorld


def test_a_pool_shrinks_to_no_worker_where_others_have_its_role() -> None:
    """Workers that cannot meet the objectives serve nothing, so no load of theirs is needed or unproven."""
    world = AutoWorld(2)
    world.run(20.0, 240)
    load = world.planner._load(world.fleet.model, world.pool, world.fleet.now)
    load.state.hold = ShrinkHold()
    reason = Reason.of(ReasonCode.DEMAND_TARGET, "engine", requests_per_s=20.0, serves=0.0, needed=0.0)
    found = shrink(load, PoolNeeds(0, 0, 0.0, 20.0, 20.0, reason), reason)
    assert (found.replicas, found.reasons) == (0, (reason,))


def test_requests_that_are_short_for_seconds_prove_no_higher_rate() -> None:
    """Two workers with 10 requests/s each have proven 10 requests/s of the lengths that are provided for."""
    world = AutoWorld(2)
    world.run(20.0, 240)
    load = world.planner._load(world.fleet.model, world.pool, world.fleet.now)
    load.state.hold = ShrinkHold()
    load.lengths.isl_tokens, load.lengths.osl_tokens = 0.5 * load.lengths.isl_tokens, 0.5 * load.lengths.osl_tokens
    reason = Reason.of(ReasonCode.DEMAND_TARGET, "engine", requests_per_s=20.0, serves=22.0, needed=0.9)
    found = shrink(load, PoolNeeds(1, 1, 0.9, 20.0, 20.0, reason), reason)
    assert found.replicas is None
    assert [one.code for one in found.reasons] == [ReasonCode.DEMAND_TARGET, ReasonCode.TRIAL_PENDING]
    assert found.reasons[1].numbers["proven"] < 12.0


def after_an_overload(requests_per_s: float, *, is_profiled: bool = False) -> PoolRecommendation:
    """Return the recommendation for five workers that serve 22 requests/s each, and were once full at 37."""
    world = AutoWorld(5)
    world.run(10.0, 60)
    load = world.planner._load(world.fleet.model, world.pool, world.fleet.now)
    load.state.hold, load.state.is_inherited, load.state.known_since_ms = ShrinkHold(), True, 0
    work = load.lengths.expected_work("aggregated")
    load.state.evidence.itl = curve = LatencyCurve()
    for rate, itl_ms in ((15.0, 13.0), (22.0, 27.0), (37.0, 70.0)):
        curve.add(rate * work, itl_ms, 7.6, world.fleet.now)
    load.state.learned = 31.0
    reason = Reason.of(ReasonCode.DEMAND_TARGET, "engine", requests_per_s=requests_per_s, serves=31.0, needed=3.5)
    needs = PoolNeeds(4, 4, requests_per_s / 31.0, requests_per_s, requests_per_s, reason)
    return shrink(replace(load, serves=32.0 if is_profiled else 31.0), needs, reason)


def test_an_overload_does_not_justify_a_load_that_is_not_seen() -> None:
    """By the line through the overload four workers serve 31 requests/s each, by the good loads 25."""
    held = after_an_overload(108.0)
    assert held.replicas is None
    assert [one.code for one in held.reasons] == [ReasonCode.DEMAND_TARGET, ReasonCode.UNPROVEN_LOAD]
    assert after_an_overload(92.0).replicas == 4
    assert after_an_overload(108.0, is_profiled=True).replicas == 4


def four_workers() -> PoolLoad:
    """Return the load of four workers of which one would do, without a hold."""
    world = AutoWorld(4)
    world.run(8.0, 60)
    load = world.planner._load(world.fleet.model, world.pool, world.fleet.now)
    load.state.hold, load.state.is_inherited, load.state.known_since_ms = ShrinkHold(), True, 0
    return load


@pytest.mark.parametrize(("workers", "left"), [(0.0, 1), (2.5, 3), (4.5, None)])
def test_a_pool_keeps_what_serves_a_backlog_of_prefill_workers(workers: float, left: int | None) -> None:
    load = four_workers()
    passed_on_per_s = workers * load.serves
    reason = Reason.of(ReasonCode.DEMAND_TARGET, "engine", requests_per_s=8.0, serves=load.serves, needed=0.5)
    needs = PoolNeeds(1, 1, 0.4, 8.0, 8.0, reason)
    found = shrink(replace(load, passed_on_per_s=passed_on_per_s), needs, reason)
    passed_on = [one for one in found.reasons if one.code is ReasonCode.BACKLOG_PASSED_ON]
    assert (found.replicas, len(passed_on)) == (left, int(workers > 0))
    assert all(one.numbers["passed_on_per_s"] == passed_on_per_s for one in passed_on)


def test_a_pool_whose_requests_others_serve_is_kept_for_no_backlog() -> None:
    load = replace(four_workers(), passed_on_per_s=1_000.0)
    reason = Reason.of(ReasonCode.SHARED_DEMAND, "engine", requests_per_s=8.0, serves=0.0, needed=0.0)
    found = shrink(load, PoolNeeds(1, 0, 0.0, 8.0, 8.0, reason), reason)
    assert found.replicas == 1


def test_workers_with_a_backlog_pass_on_all_that_they_serve_and_the_others_what_arrives() -> None:
    load = four_workers()
    full, arriving = load.serves_at_most(load.lengths.work("prefill")), load.growing_per_s / 4
    assert full > arriving > 0
    assert passed_on([load], {"engine": ()}) == 0.0
    assert passed_on([load], {"engine": ("a",)}) == pytest.approx(full + 3 * arriving)
    assert passed_on([load], {"engine": ("a", "b", "c", "d")}) == pytest.approx(4 * full)


def test_prefill_pools_without_a_backlog_pass_on_what_arrives_too() -> None:
    load = four_workers()
    fleet = FleetHarness([PoolKnobs("other", "aggregated")], 12)
    fleet.refresh()
    other, late = replace(load, pool=fleet.pool("other")), {"engine": ("a",), "other": ()}
    full, arriving = load.serves_at_most(load.lengths.work("prefill")), 2 * load.growing_per_s / 16
    assert passed_on([load, other], late) == pytest.approx(full + 15 * arriving)


class BacklogWorld:
    """Four prefill and 16 decode workers, of which fewer would do."""

    def __init__(self, *names: str) -> None:
        roles: dict[str, Role] = {"p": "prefill", "d": "decode"}
        self.fleet = FleetHarness([PoolKnobs(name, roles[name], replicas_max=64) for name in names], 4)
        self.fleet.add_workers("d", 12)
        self.fleet.model.objectives = ObjectiveKnobs(ttft_ms=500, itl_ms=50)
        self.planner, self.sequence = AutoPlanner(AutoPlannerKnobs(start_up_ms=30_000)), 0
        self.run(200, requests_per_s=32, running=20)
        self.run(400)

    def run(self, seconds: int, *, waiting: int = 0, requests_per_s: int = 6, running: int = 3) -> Recommendation:
        """Let seconds pass with a queue of each prefill worker; return the last recommendation."""
        fleet, found = self.fleet, Recommendation("auto", {}, (), {})
        for _ in range(seconds):
            fleet.now += 1_000
            self.sequence += 1
            for name, queue, batch in (("p", waiting, 20), ("d", 0, running)):
                one = WorkerSample(self.sequence, 0, kv_usage_ratio=0.3, waiting_requests=queue, running_requests=batch)
                for worker in fleet.pool(name).workers:
                    fleet.fleet.ingest(reported(worker, one, pool=name), fleet.now)
            sample = TrafficSample(
                self.sequence,
                1_000,
                requests_per_s,
                requests_per_s,
                isl_tokens=1_000.0,
                osl_tokens=500.0,
                ttft_ms=60.0,
                itl_ms=20.0,
            )
            fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), fleet.now)
            found = self.planner.plan(fleet.refresh(), fleet.now)
        return found

    def decode(self, seconds: int, waiting: int = 0) -> tuple[int | None, bool]:
        """Return the last target of the decode pool, and whether a backlog of prefill workers is a reason."""
        found = self.run(seconds, waiting=waiting)
        return found.targets.get("d"), any(one.code is ReasonCode.BACKLOG_PASSED_ON for one in found.reasons)


@pytest.mark.parametrize("names", ["pd", "dp"])
def test_decode_workers_stay_until_prefill_workers_have_passed_on_their_backlog(names: str) -> None:
    world = BacklogWorld(*names)
    before, _ = world.decode(1)
    assert before is not None
    assert before < 12
    for seconds, waiting in ((1, 200), (5, 200), (1, 0), (5, 200), (9, 0)):
        assert world.decode(seconds, waiting) == (None, True)
    assert world.decode(2) == (before, False)


def test_a_backlog_of_prefill_workers_that_are_gone_is_forgotten() -> None:
    world = BacklogWorld("p", "d")
    assert world.decode(3, 200) == (None, True)
    del world.fleet.model.pools["p"]
    world.planner.forget_pool("p")
    world.planner.plan(world.fleet.refresh(), world.fleet.now + 1_000)
    found = world.planner.plan(world.fleet.refresh(), world.fleet.now + 12_000)
    assert all(one.code is not ReasonCode.BACKLOG_PASSED_ON for one in found.reasons)


@pytest.mark.parametrize("seed", [1, 8, 9])
def test_a_shrink_leaves_the_workers_for_arrivals_that_rise_until_others_would_be_ready(seed: int) -> None:
    """Rises from 10/s to 100/s in 5 min end at once. A minute later, two workers serve what half a minute brings."""
    world, sentences = AutoWorld(2, seed=seed), set[str]()
    for second in range(420):
        world.run(10.0 + 0.3 * (second % 300), 1)
        sentences |= {one.sentence() for one in world.last.reasons if one.code is ReasonCode.ARRIVALS_RISING}
    assert min(world.counts[300:]) == 2
    assert any("seem to rise, to 1." in sentence or "seem to rise, to 2." in sentence for sentence in sentences)
