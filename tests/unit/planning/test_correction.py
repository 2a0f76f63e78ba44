"""Correction factors of engine profiles."""

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.planners.sla import SlaKnobs, SlaPlanner
from loadline.core.planning.planners.throughput import ThroughputPlanner
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.planning.sizing.profile.correction import Correction
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.fleet_harness import FleetHarness

# ITL is 12 ms plus 0.3 ms per request; a prompt of 500 tokens takes 30 ms.
LINEAR = LinearKnobs(12.0, 0.3, 20.0, 0.02, max_kv_tokens=4e6, max_batch_requests=1_000)
INTERVAL_MS = 180_000
RATE = 40
ITL_MS = 60.0
# 40 requests/s with 200 tokens of 60 ms each are 480 concurrent requests.
BATCH = RATE * 200 * ITL_MS / 1_000.0


class CorrectionHarness:
    """Profiled pools under constant traffic."""

    def __init__(self, pools: dict[str, int], linear: LinearKnobs = LINEAR) -> None:
        roles = {"p": "prefill", "d": "decode", "a": "aggregated"}
        self.world = FleetHarness([PoolKnobs(name, roles[name[0]]) for name in pools], 0)  # type: ignore[arg-type]
        for name, workers in pools.items():
            self.world.add_workers(name, workers)
            pool = self.world.pool(name)
            pool.engine = EngineProfile(linear=linear)
            pool.reset_decided(workers, self.world.now)
        self.learned = Correction()
        self.mark = self.world.model.traffic.totals
        self.rate = RATE
        self.world.now += 1_000

    def interval(self, itl_ms: float = ITL_MS, ttft_ms: float = 30.0) -> None:
        for _ in range(INTERVAL_MS // 1_000):
            self.world.now += 1_000
            self.world.sequence += 1
            sample = TrafficSample(self.world.sequence, 1_000, self.rate, self.rate)
            if self.rate:
                sample = replace(sample, isl_tokens=500.0, osl_tokens=200.0, ttft_ms=ttft_ms, itl_ms=itl_ms)
            self.world.model.traffic.ingest(TrafficReported("m", "f", 1, sample), self.world.now)
        traffic = self.world.model.traffic
        had: TrafficTotals = traffic.totals.since(self.mark)
        self.mark = traffic.totals
        self.learned.learn(self.world.model, had, INTERVAL_MS, self.world.now)


def test_workers_of_all_pools_of_a_role_share_its_requests() -> None:
    truth = ITL_MS / (12.0 + 0.3 * BATCH / 4)
    for pools in ({"d": 4}, {"d1": 2, "d2": 2}, {"d1": 1, "d2": 3}, {"d1": 2, "a1": 2}, {"d1": 4, "d2": 0}):
        harness = CorrectionHarness(pools)
        harness.interval()
        harness.interval()
        assert harness.learned.decode == pytest.approx((1.0 + truth) / 2.0), "half a step for any number of pools"


def test_workers_of_different_engines_are_weighted_by_their_number() -> None:
    harness = CorrectionHarness({"p1": 3, "p2": 1})
    slow = replace(LINEAR, gamma=60.0)
    harness.world.pool("p2").engine = EngineProfile(linear=slow)
    harness.interval()
    harness.interval(ttft_ms=80.0)
    assert harness.learned.prefill == pytest.approx((1.0 + 80.0 / 40.0) / 2.0), (
        "three workers take 30 ms, and one takes 70 ms"
    )


def test_factors_are_limited_to_their_bounds() -> None:
    harness = CorrectionHarness({"p": 2})
    for _ in range(8):
        harness.interval(ttft_ms=3_000.0)
    assert harness.learned.prefill == pytest.approx(4.0, rel=0.02)


def test_no_factor_changes_while_the_load_changes() -> None:
    harness = CorrectionHarness({"d": 4})
    harness.interval()
    harness.rate = RATE * 6 // 5
    harness.interval()
    assert harness.learned.decode == 1.0, "the load rises by a fifth"
    harness.interval()
    assert harness.learned.decode != 1.0


@pytest.mark.parametrize("change", ["grows", "shrinks", "loses", "awaits"])
def test_no_factor_changes_while_a_pool_changes(change: str) -> None:
    harness = CorrectionHarness({"d": 4, "p": 4})
    pool, world = harness.world.pool("p"), harness.world
    harness.interval()
    if change == "grows":
        pool.set_decided(5, world.now)
        pool.reset_decided(4, world.now)
    elif change == "shrinks":
        pool.set_decided(3, world.now)
    elif change == "loses":
        world.remove_newest("p")
        pool.reset_decided(3, world.now)
    else:
        pool.reset_decided(5, world.now)
    learned = harness.learned.decode
    harness.interval()
    assert harness.learned.decode == learned
    harness.interval()
    assert (harness.learned.decode == learned) == (change == "awaits"), "a pending worker may become ready at any time"


def test_a_night_without_a_request_changes_no_factor() -> None:
    harness = CorrectionHarness({"d": 4, "p": 2})
    for _ in range(8):
        harness.interval(ttft_ms=60.0)
    learned = (harness.learned.prefill, harness.learned.decode)
    assert min(learned) > 1.2
    harness.rate = 0
    for _ in range(10):
        harness.interval()
    assert (harness.learned.prefill, harness.learned.decode) == learned


def test_factors_are_exported_unless_they_hardly_changed() -> None:
    harness, successor = CorrectionHarness({"d": 4}), Correction()
    assert harness.learned.export_learned() is None
    for _ in range(3):
        harness.interval()
    sample = harness.learned.export_learned()
    assert sample is not None
    successor.import_learned(sample)
    assert (successor.prefill, successor.decode) == (1.0, round(harness.learned.decode, 3))
    harness.learned.decode += 0.0001
    assert harness.learned.export_learned() == sample == successor.export_learned()


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b'{"prefill":1}', b'{"prefill":1,"decode":5}', b'{"decode":NaN}']
)
def test_unreadable_factors_are_ignored(data: bytes) -> None:
    successor = Correction()
    successor.import_learned(data)
    assert (successor.prefill, successor.decode) == (1.0, 1.0)


@pytest.mark.parametrize("corrects", [True, False])
def test_each_planner_exports_factors_of_its_own(*, corrects: bool) -> None:
    knobs = ThroughputKnobs(no_correction=not corrects)
    factors = b'{"prefill":1.5,"decode":0.5}'
    of_two = msgspec.json.encode({"throughput": factors})
    for planner, sample in ((ThroughputPlanner(knobs), factors), (SlaPlanner(SlaKnobs(throughput=knobs)), of_two)):
        assert planner.export_learned() is None
        planner.import_learned(sample)
        assert planner.export_learned() == (sample if corrects else None)
