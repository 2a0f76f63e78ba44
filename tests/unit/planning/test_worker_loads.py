"""Worker loads: each reported TTFT and each prompt counts once."""

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.load.worker_loads import PoolLoads
from loadline.core.vocabulary.samples import WorkerSample
from tests.support.fleet_harness import START, fleet_of, registered, reported


class PrefillReports:
    """Prefill workers whose ranks report TTFTs and prompts."""

    def __init__(self, workers: int = 1, ranks: int = 1) -> None:
        self.fleet = fleet_of(PoolKnobs("p", "prefill"))
        self.model = self.fleet.models["m"]
        for number in range(workers):
            self.fleet.register(registered(f"w{number}", "p", "prefill", ranks=ranks), START)
        self.loads = PoolLoads(5_000)
        self.now = START
        self.sequence = 0

    def report(self, *figures: list[tuple[float, float]]) -> None:
        """Report the last TTFT and ISL of each rank of each worker, one second later."""
        self.now += 1_000
        self.sequence += 1
        for number, ranks in enumerate(figures):
            samples = [
                WorkerSample(self.sequence, 0, rank, active_prefill_tokens=100, ttft_ms=ttft_ms, isl_tokens=isl)
                for rank, (ttft_ms, isl) in enumerate(ranks)
            ]
            self.fleet.ingest(reported(f"w{number}", *samples, pool="p"), self.now)
        self.model.expire_silent(self.now, self.fleet.knobs)
        self.model.refresh_totals(self.now, self.fleet.knobs)
        self.loads.update(self.model.pools["p"], self.now)


def test_the_last_prompt_of_an_idle_worker_counts_once() -> None:
    harness = PrefillReports(workers=2)
    for second in range(200):
        harness.report([(2_000.0, 30_000.0)], [(100.0 + second / 10, 500.0)])
    # The first prompt sets the mean; each of the 200 prompts of 500 tokens moves it by a 64th.
    assert harness.loads.isl_tokens == pytest.approx(500.0 + 29_500.0 * (63 / 64) ** 200)


def test_one_long_prompt_hardly_moves_the_mean_length() -> None:
    harness = PrefillReports()
    for second in range(300):
        harness.report([(100.0 + second / 10, 500.0)])
    harness.report([(2_000.0, 30_000.0)])
    assert harness.loads.isl_tokens == pytest.approx(500.0 + 29_500.0 / 64)


def test_repeated_ttfts_are_detected_per_rank() -> None:
    harness = PrefillReports(ranks=2)
    for _ in range(20):
        harness.report([(100.0, 500.0), (200.0, 900.0)])
    harness.report([(100.0, 500.0), (210.0, 900.0)])
    harness.report([(210.0, 500.0), (210.0, 900.0)])
    line = harness.loads.prefill
    drawn = sorted(zip(line.loads, line.latencies_ms, strict=True))
    assert drawn == [(600.0, 100.0), (600.0, 210.0), (1_000.0, 200.0), (1_000.0, 210.0)]


def test_every_report_of_an_aggregated_worker_is_a_sample() -> None:
    """Dynamo fits means over an interval, so its first line takes five intervals."""
    fleet = fleet_of(PoolKnobs("p", "aggregated"))
    fleet.register(registered("w", "p", "aggregated"), START)
    model, loads = fleet.models["m"], PoolLoads(5_000)
    for second in range(1, 6):
        sample = WorkerSample(second, 0, kv_blocks_used=100 * second, running_requests=1, itl_ms=10.0 + second)
        now = START + 1_000 * second
        fleet.ingest(reported("w", sample, pool="p"), now)
        model.refresh_totals(now, fleet.knobs)
        loads.update(model.pools["p"], now)
    assert loads.decode.loads == [100.0, 200.0, 300.0, 400.0, 500.0]
    assert loads.decode.line() is not None
