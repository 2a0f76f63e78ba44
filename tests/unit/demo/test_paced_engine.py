"""Pace of simulated engines: each iteration ends at its time, whatever the rounding of clocks."""

import asyncio

import pytest

from loadline.demo.openai.engine import PacedEngine
from loadline.demo.openai.metrics import VllmMetrics
from loadline.sim.engine import SimulatedEngine
from loadline.sim.profiles import LinearProfile
from tests.support.openai_engines import KNOBS, MODEL
from tests.support.virtual_time import run_virtual

TOKENS = 500


class CountedEngine(SimulatedEngine):
    """Engine that is asked for the end of an iteration a limited number of times."""

    asked = 0

    def next_iteration_ms(self) -> float | None:
        self.asked += 1
        assert self.asked < 10 * TOKENS, "the timer of an iteration fires again and again before its end"
        return super().next_iteration_ms()


@pytest.mark.parametrize("speed", [1.0, 3.0, 7.3])
def test_an_iteration_ends_when_its_timer_fires_though_clocks_are_rounded(speed: float) -> None:
    async def main() -> None:
        timing = LinearProfile(1.7, 0.3, 5.1, 0.05)
        simulated = CountedEngine(KNOBS, timing)
        engine = PacedEngine(simulated, VllmMetrics(MODEL, KNOBS), speed)
        began_s = asyncio.get_running_loop().time()
        generation = engine.submit(range(100), TOKENS, ignore_eos=True)
        async with asyncio.timeout(60.0):
            tokens = [token async for chunk in generation.chunks() for token in chunk]
        assert len(tokens) == TOKENS
        took_ms = (asyncio.get_running_loop().time() - began_s) * 1_000.0 * speed
        expected_ms = timing.prefill_ms(100) + (TOKENS - 1) * timing.itl_ms(1, 100)
        assert took_ms == pytest.approx(expected_ms, rel=1e-3)

    run_virtual(main())
