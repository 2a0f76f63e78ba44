"""Lower bounds of the engine time of requests: no engine that meets the objectives takes less."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from loadline.demo.defaults import DECODE_PROFILE, PREFILL_PROFILE
from loadline.sim.compare.costs import decode_ms, prefill_ms
from loadline.sim.engine import EngineKnobs, EngineTiming, Request, SimulatedEngine
from loadline.sim.profiles import LinearProfile, MeasuredProfile

LINEAR = LinearProfile(alpha=10.0, beta=0.5, gamma=20.0, delta=0.1)
FIXED = LinearProfile(alpha=10.0, beta=0.001, gamma=200.0, delta=0.001)  # a fixed cost per pass and iteration only
MEASURED = MeasuredProfile(PREFILL_PROFILE, DECODE_PROFILE)
DECODE = EngineKnobs(role="decode", kv_blocks_total=1_000, max_batch_requests=64)
WHOLE = EngineKnobs(role="prefill", kv_blocks_total=10_000, max_batch_requests=64, max_batched_tokens=2_000)
CHUNKED = structs.replace(WHOLE, chunked_prefill=True)
BOTH = EngineKnobs(role="aggregated", kv_blocks_total=2_000, max_batch_requests=64, max_batched_tokens=2_000)
RIDING = structs.replace(BOTH, chunked_prefill=True)

# The engine approximates runs of iterations to 0.1 %, and contexts are sampled 2 % apart.
ROUNDING = 1.002

Lengths = list[tuple[int, int]]


def least_ms(timing: EngineTiming, knobs: EngineKnobs, lengths: Lengths, ttft_ms: float, itl_ms: float) -> float:
    isl, osl = (np.array(column) for column in zip(*lengths, strict=True))
    prefill = prefill_ms(timing, knobs, isl, isl, ttft_ms) if knobs.role != "decode" else np.zeros(1)
    decode = decode_ms(timing, knobs, isl, osl, itl_ms) if knobs.role != "prefill" else np.zeros(1)
    return float(prefill.sum() + decode.sum())


def simulate_engine(
    timing: EngineTiming, knobs: EngineKnobs, lengths: Lengths, at_ms: list[float]
) -> tuple[float, float, float]:
    """Simulate an engine; return its busy time, the longest TTFT and the longest mean ITL."""
    engine = SimulatedEngine(knobs, timing)
    decoding = knobs.role == "decode"
    first = dict(enumerate(at_ms)) if decoding else {}
    ttft, itl = [0.0], [0.0]
    busy_ms = now_ms = 0.0
    coming = list(enumerate(at_ms))
    while coming or engine.held:
        ends_ms = engine.next_event_ms()
        next_ms = min(coming[0][1] if coming else math.inf, math.inf if ends_ms is None else ends_ms)
        busy_ms += 0.0 if ends_ms is None else next_ms - now_ms
        now_ms = next_ms
        for event in engine.advance(now_ms):
            number = int(event.request_id)
            if event.kind == "first_token":
                first[number] = event.at_ms
                ttft.append(event.at_ms - at_ms[number])
            elif event.kind == "finished" and lengths[number][1] > 1:
                itl.append((event.at_ms - first[number]) / (lengths[number][1] - 1))
        while coming and coming[0][1] <= now_ms:
            number, _ = coming.pop(0)
            isl, osl = lengths[number]
            if not decoding or osl > 1:
                engine.submit(Request(str(number), isl, osl, int(decoding), prefilled=decoding), now_ms)
    return busy_ms, max(ttft), max(itl)


CASES = {
    "unlike prompts that fill a pass": (WHOLE, [(1_001, 1), (999, 1)] * 100),
    "prompts of any length": (WHOLE, [(isl, 1) for isl in range(1, 1_500, 7)]),
    "prompts longer than a pass": (WHOLE, [(isl, 1) for isl in range(500, 6_000, 41)]),
    "chunks": (CHUNKED, [(isl, 1) for isl in range(500, 6_000, 41)]),
    "few long beside many short": (DECODE, [(2_000, 400), *[(10, 40)] * 40] * 5),
    "equal requests that grow in step": (DECODE, [(100, 600)] * 640),
    "one after the other": (DECODE, [(500, 50)] * 5),
    "whole prompts between iterations": (BOTH, [(1_001, 30), (999, 300)] * 50),
    "chunks beside iterations": (RIDING, [(1_001, 30), (999, 300)] * 50),
}


@pytest.mark.parametrize("timing", [LINEAR, FIXED, MEASURED], ids=["linear", "fixed", "measured"])
@pytest.mark.parametrize("gap_ms", [0.0, 50.0, 5_000.0])
@pytest.mark.parametrize("case", CASES)
def test_no_engine_takes_less(case: str, gap_ms: float, timing: EngineTiming) -> None:
    knobs, lengths = CASES[case]
    busy_ms, ttft_ms, itl_ms = simulate_engine(
        timing, knobs, lengths, [gap_ms * number for number in range(len(lengths))]
    )
    # Objectives that the engine just met, and looser ones.
    tight = least_ms(timing, knobs, lengths, ttft_ms, itl_ms)
    loose = least_ms(timing, knobs, lengths, 10 * ttft_ms, 10 * itl_ms)
    assert 0.0 < loose <= tight * ROUNDING
    assert tight <= busy_ms * ROUNDING


@given(
    st.integers(0, 2**32),
    st.sampled_from([WHOLE, CHUNKED, DECODE, BOTH, RIDING]),
    st.sampled_from([LINEAR, FIXED, MEASURED]),
    st.sampled_from([0.0, 10.0, 100.0, 1_000.0]),
)
@settings(max_examples=60, deadline=None)
def test_no_engine_takes_less_for_any_trace(seed: int, knobs: EngineKnobs, timing: EngineTiming, gap_ms: float) -> None:
    rng = random.Random(seed)
    spread = rng.uniform(0.0, 1.5)
    isl, osl = rng.choice([20, 200, 1_000]), rng.choice([2, 40, 200])

    def length(mean: int) -> int:
        return min(max(round(mean * rng.lognormvariate(0.0, spread)), 1), 5_000)

    lengths = [(length(isl), length(osl)) for _ in range(rng.randrange(5, 120))]
    at_ms = [0.0]
    for _ in lengths[1:]:
        at_ms.append(at_ms[-1] + rng.expovariate(1.0) * gap_ms)
    busy_ms, ttft_ms, itl_ms = simulate_engine(timing, knobs, lengths, at_ms)
    assert least_ms(timing, knobs, lengths, ttft_ms, itl_ms) <= busy_ms * ROUNDING


def test_a_saturated_engine_nearly_reaches_the_bound() -> None:
    for knobs, lengths in (CASES["unlike prompts that fill a pass"], CASES["equal requests that grow in step"]):
        busy_ms, ttft_ms, itl_ms = simulate_engine(LINEAR, knobs, lengths, [0.0] * len(lengths))
        assert least_ms(LINEAR, knobs, lengths, ttft_ms, itl_ms) >= 0.85 * busy_ms


def test_tighter_objectives_never_lower_the_bound() -> None:
    lengths = [(isl, 5 + isl // 10) for isl in range(100, 1_900, 100)]
    found = [least_ms(LINEAR, BOTH, lengths, ms, ms / 25) for ms in (300, 350, 400, 600, 1_000, 1e9)]
    assert all(loose <= tight * (1 + 1e-6) for tight, loose in pairwise(found))
    assert found[0] > 1.1 * found[-1]


def test_cached_tokens_are_not_computed() -> None:
    isl = np.array([1_000, 1_000])
    cold, warm = prefill_ms(LINEAR, WHOLE, isl, np.array([1_000, 400]), 1e9)
    # Half and a fifth of a pass of 20 ms, plus 0.1 ms per token.
    assert (cold, warm) == pytest.approx((110.0, 44.0))


@pytest.mark.parametrize(
    ("ttft_ms", "share"), [(1e9, 1_000 / 4_000), (320.0, 1 / 3), (120.0, 1.0), (119.0, 1_000 / 4_000)]
)
def test_the_size_of_a_pass_is_limited_by_the_objective(ttft_ms: float, share: float) -> None:
    # A prompt takes 100 ms and the pass 20 ms. A prompt that cannot meet the objective has no pass.
    knobs = structs.replace(WHOLE, max_batched_tokens=4_000)
    [found] = prefill_ms(LINEAR, knobs, np.array([1_000]), np.array([1_000]), ttft_ms)
    assert found == pytest.approx(100.0 + 20.0 * share)


@pytest.mark.parametrize(
    ("isl", "itl_ms", "batch"), [(100, 20.0, 20), (100, 1e9, 64), (4_000, 1e9, 4), (100, 10.4, 64)]
)
def test_the_size_of_an_iteration_is_limited_by_batch_cache_and_objective(isl: int, itl_ms: float, batch: int) -> None:
    # A batch of n takes 10 + n / 2 ms; the cache holds 16,000 tokens. Infeasible requests have no batch.
    knobs = structs.replace(DECODE, kv_blocks_total=1_006)
    [found] = decode_ms(LINEAR, knobs, np.array([isl]), np.array([11]), itl_ms)
    assert found == pytest.approx(10 * (10 + batch / 2) / batch, rel=1e-3)
