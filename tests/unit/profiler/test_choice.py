"""Suggested parallelisation and thresholds."""

import pytest

from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.profiler.choice import Parallelisation, Workload, decode_candidates, prefill_candidates, thresholds

WORKLOAD = Workload(isl_tokens=3_000, osl_tokens=150, ttft_ms=200, itl_ms=20)


def prefill(gpus: int, ttft_ms: float) -> PrefillSweep:
    """Return an engine that takes ``ttft_ms`` for 3,000 tokens."""
    isl, times = (100.0, 3_000.0, 8_000.0), (ttft_ms / 20, ttft_ms, ttft_ms * 3)
    return PrefillSweep(isl, times, tuple(n / t * 1_000 / gpus for n, t in zip(isl, times, strict=True)))


def decode(gpus: int, itl_ms: float, slope: float = 0.5) -> DecodeSweep:
    """Return an engine whose ITL is ``itl_ms`` and ``slope`` for each request, with 100,000 tokens of cache."""
    batches, contexts = (1.0, 8.0, 16.0, 24.0), (1_000.0, 4_000.0)
    points = [(n * context / 100_000, context, itl_ms + slope * n, n) for context in contexts for n in batches]
    usage, context, itl, n = zip(*points, strict=True)
    rates = tuple(one / ms * 1_000 / gpus for one, ms in zip(n, itl, strict=True))
    return DecodeSweep(usage, context, itl, rates, 100_000.0)


def test_the_highest_throughput_per_gpu_within_the_objective_is_suggested() -> None:
    found = prefill_candidates({"tp1": prefill(1, 300), "tp2": prefill(2, 160), "tp4": prefill(4, 100)}, WORKLOAD)
    assert [(one.name, one.within) for one in found] == [("tp2", True), ("tp4", True), ("tp1", False)]
    assert found[0].tokens_per_s_per_gpu == pytest.approx(3_000 / 0.160 / 2)
    batches = decode_candidates({"tp1": decode(1, 15), "tp2": decode(2, 14)}, WORKLOAD)
    assert [one.name for one in batches] == ["tp1", "tp2"]
    assert batches[0].latency_ms <= 20
    assert 0.1 < batches[0].kv_usage < 0.5  # at 4,000 tokens 10 requests take 20 ms and 0.4 of the cache


def test_without_one_within_the_objective_the_fastest_is_suggested() -> None:
    assert [one.name for one in prefill_candidates({"tp1": prefill(1, 900), "tp2": prefill(2, 800)}, WORKLOAD)] == [
        "tp2",
        "tp1",
    ]
    found = decode_candidates({"tp1": decode(1, 90), "tp2": decode(2, 40)}, WORKLOAD)
    assert [(one.name, one.within) for one in found] == [("tp2", False), ("tp1", False)]


def test_thresholds_are_those_of_the_original_profiler() -> None:
    chosen = (
        Parallelisation("tp1", 48.37, 1.0, within=True),
        Parallelisation("tp1", 4.0, 1.0, within=True, kv_usage=0.55),
    )
    found = thresholds(*chosen, Workload(3_000, 500, ttft_ms=50, itl_ms=5))
    assert found.prefill_queue_scale_up_threshold == pytest.approx(0.24, abs=0.005)
    assert found.prefill_queue_scale_down_threshold == 0.1
    assert (found.decode_kv_scale_down_threshold, found.decode_kv_scale_up_threshold) == (0.35, 0.75)
