"""Simulated engines under random arrivals, compared with queueing theory.

Seeds are fixed, so a test gives the same figures every time. A tolerance is at least three standard errors of the mean,
which for M/M/1 follow from the autocorrelation of its waiting times, and are as large for the others.
"""

import math
import random
from collections.abc import Callable

import pytest
from msgspec import Struct

from loadline.sim.engine import EngineKnobs, Request, SimulatedEngine
from loadline.sim.profiles import LinearProfile

ONE_AT_A_TIME = EngineKnobs(role="prefill", kv_blocks_total=10**9, max_batch_requests=10**6, max_batched_tokens=1)
# 0.1 ms per prompt token: 1,000 tokens take 100 ms.
SERVER = LinearProfile(alpha=1.0, beta=0.0, gamma=0.0, delta=0.1)
SERVICE_MS = 100.0


class Seen(Struct):
    """Mean time in the system in ms, and distribution of the number in it as seen by arrivals."""

    mean_ms: float
    shares: list[float]

    @property
    def mean_number(self) -> float:
        return sum(number * share for number, share in enumerate(self.shares))


def feed(
    engine: SimulatedEngine, count: int, rate_per_ms: float, request: Callable[[str, random.Random], Request]
) -> Seen:
    """Feed Poisson arrivals, which see time averages and are therefore comparable with the stationary distribution."""
    rng = random.Random(1)
    arrived_ms: dict[str, float] = {}
    numbers: dict[int, int] = {}
    total_ms = now_ms = 0.0

    def leave(until_ms: float) -> float:
        return sum(event.at_ms - arrived_ms.pop(event.request_id) for event in engine.advance(until_ms))

    for i in range(count):
        now_ms += rng.expovariate(rate_per_ms)
        total_ms += leave(now_ms)
        sample = engine.load()
        inside = (sample.waiting_requests or 0) + (sample.running_requests or 0)
        assert inside == len(arrived_ms)
        numbers[inside] = numbers.get(inside, 0) + 1
        arrived_ms[f"r{i}"] = now_ms
        engine.submit(request(f"r{i}", rng), now_ms)
    total_ms += leave(1e15)
    assert not arrived_ms
    return Seen(total_ms / count, [numbers.get(number, 0) / count for number in range(max(numbers) + 1)])


def test_exponential_prompts_make_an_m_m_1_queue() -> None:
    # The standard error of the mean time over 100,000 requests at this load is 1.2%. Rounding prompts up to whole
    # tokens adds half a token in a thousand.
    rho = 0.6
    engine = SimulatedEngine(ONE_AT_A_TIME, SERVER)
    seen = feed(engine, 100_000, rho / SERVICE_MS, lambda name, rng: Request(name, int(rng.expovariate(1e-3)) + 1, 1))
    assert seen.mean_ms == pytest.approx(SERVICE_MS / (1 - rho), rel=0.04)
    assert seen.mean_number == pytest.approx(rho / (1 - rho), rel=0.04)
    for number in range(8):
        assert seen.shares[number] == pytest.approx((1 - rho) * rho**number, abs=0.01)


def test_equal_prompts_make_an_m_d_1_queue() -> None:
    # Pollaczek-Khinchine: half of the waiting time of M/M/1.
    rho = 0.7
    seen = feed(
        SimulatedEngine(ONE_AT_A_TIME, SERVER), 100_000, rho / SERVICE_MS, lambda name, _rng: Request(name, 1_000, 1)
    )
    waiting_ms = rho / (2 * (1 - rho)) * SERVICE_MS
    assert seen.mean_ms - SERVICE_MS == pytest.approx(waiting_ms, rel=0.04)
    assert seen.mean_number == pytest.approx(rho + rho * waiting_ms / SERVICE_MS, rel=0.04)
    assert seen.shares[0] == pytest.approx(1 - rho, abs=0.01)


def stationary(rate: float, service_rate: Callable[[int], float], states: int) -> list[float]:
    """Return the stationary distribution of a birth-death chain with these arrival and service rates."""
    weights = [1.0]
    for number in range(1, states):
        weights.append(weights[-1] * rate / service_rate(number))
    total = sum(weights)
    return [weight / total for weight in weights]


@pytest.mark.parametrize(("batch_max", "load"), [(32, 0.8), (32, 0.4), (4, 0.7)])
def test_a_decode_engine_is_a_state_dependent_queue(batch_max: int, load: float) -> None:
    # OSL is geometric, which is exponential in iterations; the batch of n serves n / (OSL * ITL(n)) requests a ms.
    # An arrival waits for half an iteration of 500; chain and engine count it half an iteration apart: 0.2 %.
    osl_tokens, profile = 500.0, LinearProfile(alpha=10.0, beta=0.5, gamma=1.0, delta=0.0)

    def service_rate(number: int) -> float:
        batch = min(number, batch_max)
        return batch / (osl_tokens * profile.itl_ms(batch, 0))

    def request(name: str, rng: random.Random) -> Request:
        generated = 1 + int(rng.expovariate(1.0) / -math.log1p(-1 / osl_tokens))
        return Request(name, 100, 1 + generated, generated_tokens=1, prefilled=True)

    rate = load * service_rate(batch_max)
    expected = stationary(rate, service_rate, 2_000)
    mean_number = sum(number * share for number, share in enumerate(expected))
    knobs = EngineKnobs(role="decode", kv_blocks_total=10**6, max_batch_requests=batch_max)
    seen = feed(SimulatedEngine(knobs, profile), 60_000, rate, request)
    assert seen.mean_ms == pytest.approx(mean_number / rate, rel=0.04)
    assert seen.mean_number == pytest.approx(mean_number, rel=0.04)
    for number in range(0, 40, 4):
        share = seen.shares[number] if number < len(seen.shares) else 0.0
        assert share == pytest.approx(expected[number], abs=0.01)
