"""Saturation planner by KV tokens."""

import msgspec
import pytest

from loadline.core.engines.token_capacity import ObservedCapacity
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import RegisteredWorker, TrafficSample, WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import reported
from tests.support.saturation_harness import STEP_MS, SaturationHarness

BLOCK, BLOCKS = 10, 10_000
"""100,000 KV tokens per worker, of which 80,000 may be in use."""
MINUTES = 240


class TokenHarness(SaturationHarness):
    """Pool whose workers report used KV blocks, with a frontend that reports lengths."""

    def __init__(self, role: Role = "aggregated", workers: int = 4, isl: float = 500.0, osl: float = 100.0) -> None:
        super().__init__(PoolKnobs("a", role, replicas_max=100), workers=0, capacity="tokens")
        self.isl, self.osl = isl, osl
        for number in range(workers):
            record = WorkerRecord("m", "a", f"a{number}", role, 1, kv_blocks_total=BLOCKS, block_size_tokens=BLOCK)
            self.fleet.register(RegisteredWorker(record, 5), self.now)
        self.pool("a").set_decided(workers, self.now)

    def run(
        self, seconds: int, tokens: float | None, waiting: int = 0, *, running: int = 1, queued: int = 0
    ) -> Recommendation:
        """Run with these tokens in use and waiting requests at each worker."""
        recommendation = Recommendation("", {}, (), {})
        for _ in range(seconds):
            self.now += STEP_MS
            self.sequence += 1
            blocks = None if tokens is None else round(tokens / BLOCK)
            sample = WorkerSample(
                self.sequence, 0, kv_blocks_used=blocks, waiting_requests=waiting, running_requests=running
            )
            for name in self.pool("a").workers:
                self.fleet.ingest(reported(name, sample, pool="a"), self.now)
            traffic = TrafficSample(
                self.sequence, 1_000, 10, 10, queued=queued, isl_tokens=self.isl, osl_tokens=self.osl
            )
            self.model.traffic.ingest(TrafficReported("m", "f", 1, traffic), self.now)
            recommendation = self.plan()
        return recommendation


@pytest.mark.parametrize(("tokens", "targets"), [(70_000, {}), (73_000, {"a": 5}), (30_000, {"a": 2})])
def test_utilisation_is_tokens_in_use_over_token_capacity(tokens: float, targets: dict[str, int]) -> None:
    assert TokenHarness().run(MINUTES, tokens).targets == targets


def test_waiting_requests_count_with_prompt_and_output_tokens() -> None:
    assert TokenHarness().run(30, 70_000.0, waiting=4).targets == {"a": 5}, (
        "4 x (70,000 + 4 x 600) are more than 288,000"
    )
    assert TokenHarness(isl=20.0, osl=5.0).run(30, 70_000.0, waiting=4).targets == {}
    assert TokenHarness().run(30, 70_000.0, queued=200).targets == {"a": 6}, "120,000 more are queued at frontends"


def test_tokens_held_while_requests_queued_are_the_capacity() -> None:
    harness = TokenHarness()
    assert harness.run(30, 60_000.0).targets == {}
    assert harness.run(30, 60_000.0, waiting=6).targets == {"a": 5}, "the capacity is limited by compute"
    assert harness.run(30, 58_000.0).targets == {"a": 5}, "the observed capacity is recorded"
    assert harness.run(30, 65_000.0).targets == {}, "a higher load replaces the observed capacity"


def test_learned_capacities_survive_a_restart() -> None:
    harness, successor = TokenHarness(), TokenHarness()
    assert harness.planner.export_learned() is None
    harness.run(30, 60_000.0, waiting=6)
    data = harness.planner.export_learned()
    assert data is not None
    successor.planner.import_learned(data)
    assert successor.planner.export_learned() == data
    assert successor.run(30, 58_000.0).targets == {"a": 5}


@pytest.mark.parametrize(
    "observed",
    [
        {"0": [1e308]},
        {"0": [0.0]},
        {"0": [1e-300]},
        {"0": [-5.0]},
        {"0": []},
        {"0": [5.0] * 11},
        {"3": [5.0]},
        {"-1": [5.0]},
    ],
)
def test_capacities_above_the_cache_are_not_learned(observed: dict[str, list[float]]) -> None:
    harness = TokenHarness()
    with pytest.raises(msgspec.ValidationError):
        harness.planner.import_learned(
            msgspec.json.encode({"a": {"by_bucket": {"0": [60_000.0]}}, "b": {"by_bucket": observed}})
        )
    assert harness.planner.export_learned() is None


@pytest.mark.parametrize("tokens", [0.0, -1.0, 1e-9, 1e13])
def test_tokens_above_the_cache_are_not_observed(tokens: float) -> None:
    observed = ObservedCapacity()
    observed.record(50.0, tokens)
    assert observed.by_bucket == {}


def test_a_busy_prefill_worker_is_full_at_any_cache_usage() -> None:
    assert TokenHarness("prefill").run(30, 2_000.0, running=1).targets == {"a": 5}
    assert TokenHarness("prefill").run(MINUTES, 2_000.0, running=0).targets == {"a": 1}


def test_workers_without_a_number_of_blocks_are_excluded() -> None:
    recommendation = TokenHarness().run(MINUTES, None)
    assert (recommendation.targets, recommendation.reasons[0].code) == ({}, ReasonCode.NO_DATA)


def test_the_demand_is_in_tokens() -> None:
    (need,) = TokenHarness().run(30, 70_000.0).demands
    assert need.capacities == {"a": 80_000.0}
    assert need.demand == pytest.approx(320_000.0)
