"""Accuracy of sizing: a fleet of the computed size meets the objectives, and a clearly smaller one does not."""

import math
from pathlib import Path

import pytest

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.profile_files import read_decode, read_prefill
from loadline.sim.profiles import LinearProfile, MeasuredProfile
from tests.support.sized_pools import ATTAINMENT, SizingCase, attained, fixed, queued, requests, sized, spread

DATA = Path(__file__).parents[1] / "vectors" / "data"
H200 = [DATA / f"dynamo_h200_llama3.1-8b-fp8_tp1_{kind}.npz" for kind in ("prefill", "decode")]
MEASURED = EngineProfile(read_prefill(H200[0]), read_decode(H200[1])), MeasuredProfile(*H200)


def linear(alpha: float, beta: float, gamma: float, delta: float) -> tuple[EngineProfile, LinearProfile]:
    knobs = LinearKnobs(alpha, beta, gamma, delta, max_kv_tokens=400_000.0)
    return EngineProfile(linear=knobs), LinearProfile(alpha, beta, gamma, delta)


LIGHT, HEAVY = linear(10.0, 0.1, 5.0, 0.05), linear(10.0, 0.1, 40.0, 0.02)
MIX = spread(1_000.0, 1.2, 7_000.0), spread(200.0, 1.0, 2_000.0)
EQUAL = fixed(1_000), fixed(200)

CASES = {
    "prefill, measured": SizingCase("prefill", *MEASURED, 400.0, *EQUAL),
    "prefill, of a mix": SizingCase("prefill", *LIGHT, 100.0, *MIX),
    "prefill, short prompts of costly passes": SizingCase(
        "prefill", *HEAVY, 400.0, fixed(150), fixed(2), ttft_ms=200.0
    ),
    "prefill, an objective of less than two passes": SizingCase("prefill", *HEAVY, 200.0, *EQUAL, ttft_ms=100.0),
    "prefill, half of it cached": SizingCase("prefill", *LIGHT, 200.0, *MIX, hit_rate=0.5),
    "decode, measured": SizingCase("decode", *MEASURED, 150.0, *MIX, count=12_000, kv_blocks=59_000),
    "decode, as far as the cache reaches": SizingCase("decode", *LIGHT, 150.0, *MIX, kv_blocks=8_000, count=12_000),
    "aggregated, measured": SizingCase("aggregated", *MEASURED, 60.0, *EQUAL, kv_blocks=59_000),
    "aggregated, of a mix": SizingCase("aggregated", *LIGHT, 60.0, *MIX),
    "aggregated, short outputs that many prompts hold up": SizingCase("aggregated", *LIGHT, 80.0, *MIX, count=12_000),
    "aggregated, costly passes": SizingCase("aggregated", *HEAVY, 60.0, *EQUAL),
    "aggregated, half of it cached": SizingCase("aggregated", *LIGHT, 60.0, *MIX, hit_rate=0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_the_size_is_sufficient_and_close_to_the_minimum(name: str) -> None:
    case = CASES[name]
    arriving = requests(case)
    count = sized(case, arriving).replicas
    assert attained(case, arriving, count) >= ATTAINMENT
    fewer = count - 1 - max(1, int(0.15 * count))
    assert fewer >= 1, "the load is too small to compare sizes"
    assert attained(case, arriving, fewer) < ATTAINMENT


@pytest.mark.parametrize("name", CASES)
def test_the_size_by_queue_is_sufficient_and_close_to_the_minimum(name: str) -> None:
    case = CASES[name]
    arriving = requests(case)
    count = queued(case, arriving)
    assert attained(case, arriving, count) >= ATTAINMENT
    assert count <= math.ceil(1.2 * sized(case, arriving).replicas), "the queueing model knows only mean lengths"
