"""Queueing planner for engines without a profile, which are fitted to reported iterations."""

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from tests.support.fleet_harness import FleetHarness, reported

TRUE = LinearKnobs(10.0, 0.1, 5.0, 0.02, max_kv_tokens=1e6)
"""Actual latencies of the engines, which are not configured."""
WRONG = EngineProfile(linear=LinearKnobs(20.0, 0.2, 10.0, 0.04, max_kv_tokens=1e6))
POOL = PoolKnobs("p", "aggregated", replicas_max=50)


class OnlineFitHarness:
    """Planner with a pool of two workers that report iteration times, and a frontend."""

    def __init__(self, knobs: QueueingKnobs | None = None, engine: EngineProfile | None = None, ranks: int = 1) -> None:
        self.world = FleetHarness([POOL], 2)
        self.pool = self.world.pool("p")
        self.pool.decided = 2
        for worker in self.pool.workers.values():
            worker.record = replace(worker.record, data_parallel_size=ranks)
        if engine is not None:
            self.pool.engine = engine
        self.planner = QueueingPlanner(knobs or QueueingKnobs())
        self.rng = random.Random(3)
        self.slots, self.waiting = 200, 0
        self.kv_usage: float | None = 0.3
        self.prompts: tuple[int, ...] = (0, 0, 500, 1_500, 6_000)
        """Tokens of their prefill passes, each equally likely."""
        self.sequence = 0

    def run_traffic(self, seconds: int, *, slower: float = 1.0) -> Recommendation:
        """Report 100 requests/s and busy workers."""
        for _ in range(seconds):
            self.world.now += 1_000
            self.sequence += 1
            for name in self.pool.workers:
                self.world.fleet.ingest(reported(name, self._sample(slower), pool="p"), self.world.now)
            traffic = TrafficSample(self.sequence, 1_000, 100, 100, isl_tokens=1_000.0, osl_tokens=200.0)
            self.world.model.traffic.ingest(TrafficReported("m", "f", 1, traffic), self.world.now)
            recommendation = self.planner.plan(self.world.refresh(), self.world.now)
        return recommendation

    def _sample(self, slower: float) -> WorkerSample:
        batch, tokens = self.slots if self.waiting else self.rng.randint(1, self.slots), self.rng.choice(self.prompts)
        took_ms = TRUE.gamma + TRUE.delta * tokens if tokens else TRUE.alpha + TRUE.beta * batch
        return WorkerSample(
            self.sequence,
            0,
            kv_usage_ratio=self.kv_usage,
            waiting_requests=self.waiting,
            running_requests=batch,
            decode_batch_requests=batch,
            active_prefill_tokens=tokens,
            iteration_ms=took_ms * slower * self.rng.uniform(0.98, 1.02),
        )


def serves(recommendation: Recommendation) -> float:
    [need] = recommendation.demands
    return need.capacities.get("p", 0.0)


@pytest.fixture
def profiled_rate() -> float:
    """Return the rate in requests/s of a worker with a correct profile."""
    return serves(OnlineFitHarness(engine=EngineProfile(linear=TRUE)).run_traffic(60))


def test_engines_without_a_profile_are_fitted(profiled_rate: float) -> None:
    harness = OnlineFitHarness()
    first = harness.run_traffic(9)
    assert ReasonCode.QUEUEING_TARGET not in {reason.code for reason in first.reasons}
    assert first.targets == {}
    assert serves(harness.run_traffic(120)) == pytest.approx(profiled_rate, rel=0.1)


def test_before_the_fit_the_pool_is_held_with_the_missing_data() -> None:
    harness = OnlineFitHarness()
    harness.prompts = (0,)
    recommendation = harness.run_traffic(120)
    [reason] = recommendation.reasons
    assert reason.code is ReasonCode.ENGINE_LEARNING
    assert reason.detail == "prefill: 0 samples are too few: wait for 5"
    assert recommendation.targets == {}


def test_each_rank_has_its_own_batch(profiled_rate: float) -> None:
    assert serves(OnlineFitHarness(ranks=2).run_traffic(120)) == pytest.approx(2 * profiled_rate, rel=0.1)


def test_profiles_take_precedence_unless_disabled(profiled_rate: float) -> None:
    assert serves(OnlineFitHarness(engine=WRONG).run_traffic(120)) < 0.7 * profiled_rate
    assert serves(OnlineFitHarness(QueueingKnobs(fitted="always"), WRONG).run_traffic(120)) == pytest.approx(
        profiled_rate, rel=0.1
    )
    assert ReasonCode.PROFILE_UNUSABLE in {
        reason.code for reason in OnlineFitHarness(QueueingKnobs(fitted="never")).run_traffic(120).reasons
    }


def test_a_fit_is_used_by_the_next_agent_at_once(profiled_rate: float) -> None:
    harness = OnlineFitHarness()
    assert harness.planner.export_learned() is None
    harness.run_traffic(120)
    data = harness.planner.export_learned()
    assert data is not None
    harness.run_traffic(60)
    assert harness.planner.export_learned() == data, "unchanged parameters are not written again"
    successor = OnlineFitHarness()
    successor.slots = 8
    successor.planner.import_learned(data)
    assert successor.planner.export_learned() == data
    assert serves(successor.run_traffic(12)) == pytest.approx(profiled_rate, rel=0.1)


def test_a_fit_of_another_engine_is_ignored() -> None:
    harness = OnlineFitHarness()
    harness.run_traffic(120)
    data = harness.planner.export_learned()
    assert data is not None
    successor = OnlineFitHarness()
    successor.pool.knobs = replace(POOL, gpus_per_worker=2)
    successor.planner.import_learned(data)
    assert successor.run_traffic(2).targets == {}
    assert successor.planner.sizer.engines.lines == {}


@pytest.mark.parametrize("change", [{"accelerator": "l4"}, {"gpus_per_worker": 2}])
def test_a_pool_with_new_engines_is_fitted_again(change: dict[str, Any], profiled_rate: float) -> None:
    harness = OnlineFitHarness()
    harness.run_traffic(120)
    harness.pool.knobs = replace(POOL, **change)
    assert harness.run_traffic(1).demands[0].capacities == {}
    assert harness.planner.export_learned() is None, "fits of the old engines are not used for the new ones"
    assert harness.run_traffic(8, slower=1.9).reasons[0].code is ReasonCode.ENGINE_LEARNING
    assert serves(harness.run_traffic(120, slower=1.9)) < 0.7 * profiled_rate


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b'{"lines": 5}',
        b'{"lines":{"p":{"decode":{"slope":-1.0,"intercept_ms":0.0},"prefill":null,"gpus_per_worker":1}}}',
        b'{"lines":{"p":{"decode":{"slope":0.1,"intercept_ms":-9e9},"prefill":{"slope":0.1,"intercept_ms":-9e9}}}}',
    ],
)
def test_implausible_samples_are_ignored(data: bytes, profiled_rate: float) -> None:
    harness = OnlineFitHarness()
    harness.planner.import_learned(data)
    assert harness.run_traffic(12).targets == {}
    assert serves(harness.run_traffic(200)) == pytest.approx(profiled_rate, rel=0.1)


@pytest.mark.parametrize(
    ("slope", "intercept_ms"), [(1e308, 1e308), (-0.1, 5.0), (0.1, -5.0), (0.0, 0.0), (1e-320, 0.0)]
)
def test_implausible_fits_are_rejected(slope: float, intercept_ms: float) -> None:
    line = {"slope": slope, "intercept_ms": intercept_ms}
    good = {"slope": 0.1, "intercept_ms": 5.0}
    data = msgspec.json.encode({"lines": {"p": {"decode": good, "prefill": line}, "q": {"decode": good}}})
    harness = OnlineFitHarness()
    harness.planner.import_learned(data)
    assert harness.planner.export_learned() is None, "the rejected state is counted"


def test_fits_are_part_of_the_state() -> None:
    harness = OnlineFitHarness()
    harness.run_traffic(70)
    encoded = msgspec.json.encode(harness.planner)
    restored = msgspec.json.decode(encoded, type=QueueingPlanner)
    assert msgspec.json.encode(restored) == encoded


def test_a_small_cache_is_reported_after_its_samples_expired() -> None:
    harness = OnlineFitHarness()
    harness.run_traffic(60)
    harness.prompts = (0,)
    harness.planner.sizer.engines.fits["p"].prefill.octaves.clear()
    for worker in harness.pool.workers.values():
        worker.record = replace(worker.record, kv_blocks_total=10, block_size_tokens=16)
    assert [reason.code for reason in harness.run_traffic(60).reasons] == [ReasonCode.KV_CACHE_TOO_SMALL]


def registered_rate(slots: int) -> float:
    """Return the rate of a worker that registers its largest batch."""
    harness = OnlineFitHarness()
    harness.slots = slots
    for worker in harness.pool.workers.values():
        worker.record = replace(worker.record, max_batch_requests=slots)
    return serves(harness.run_traffic(120))


def test_a_batch_that_was_full_replaces_the_assumed_one() -> None:
    harness = OnlineFitHarness()
    harness.slots = 8
    assumed = serves(harness.run_traffic(120))
    harness.waiting = 3
    harness.run_traffic(5)
    harness.waiting = 0
    found = serves(harness.run_traffic(60))
    assert found == pytest.approx(registered_rate(8), rel=0.1)
    assert found < 0.5 * assumed
    successor = OnlineFitHarness()
    successor.slots = 8
    successor.planner.import_learned(harness.planner.export_learned() or b"")
    assert serves(successor.run_traffic(9)) == pytest.approx(found, rel=0.01)


def test_a_larger_batch_refutes_one_that_seemed_full() -> None:
    harness = OnlineFitHarness()
    harness.slots, harness.waiting = 8, 3
    harness.run_traffic(5)
    harness.slots, harness.waiting = 200, 0
    assert serves(harness.run_traffic(120)) > 2.0 * registered_rate(8)


@pytest.mark.parametrize("kv_usage", [0.95, None])
def test_a_queue_for_the_cache_shows_no_largest_batch(kv_usage: float | None) -> None:
    harness = OnlineFitHarness()
    harness.slots, harness.waiting, harness.kv_usage = 8, 3, kv_usage
    harness.run_traffic(20)
    assert harness.planner.sizer.engines.fits["p"].batch.requests == 0
