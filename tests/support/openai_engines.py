"""Simulated engines with an OpenAI-compatible API inside the test's event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from loadline.demo.openai.application import EngineApi
from loadline.demo.openai.engine import PacedEngine
from loadline.demo.openai.metrics import VllmMetrics
from loadline.sim.engine import EngineKnobs, EngineTiming, SimulatedEngine
from loadline.sim.profiles import LinearProfile

MODEL = "tiny"
TIMING = LinearProfile(8.0, 0.25, 10.0, 0.05)
KNOBS = EngineKnobs("aggregated", 500, 16, 16, 8_192, chunked_prefill=True)


@asynccontextmanager
async def openai_engine(
    knobs: EngineKnobs = KNOBS,
    timing: EngineTiming = TIMING,
    *,
    mean_osl: int | None = None,
    context_max: int = 4_096,
    paced: type[PacedEngine] = PacedEngine,
    api: type[EngineApi] = EngineApi,
) -> AsyncIterator[str]:
    """Serve an engine; yield its URL."""
    engine = paced(SimulatedEngine(knobs, timing), VllmMetrics(MODEL, knobs), 1.0, mean_osl)
    runner = api(engine, MODEL, context_max).runner()
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        engine.cut()
        await runner.cleanup()
