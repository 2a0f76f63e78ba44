"""Profiling of simulated engines over sockets and in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from loadline.profiler.endpoint import LINE_BYTES_MAX, TIMEOUTS, EngineEndpoint
from loadline.profiler.plan import Grid
from loadline.profiler.probe import find_dialect, find_limits
from loadline.profiler.record import Record, Setup
from loadline.profiler.run import ProfilerRun, RunProgress

GRID = Grid(prompts=4, contexts=2, batches=3, osl_tokens=32, repeats=1)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MODELS = {"object": "list", "data": [{"id": "tiny", "max_model_len": 4_096}]}
METRICS = """\
vllm:num_requests_running{engine="0",model_name="tiny"} 0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="500"} 1
"""
TOKEN = json.dumps({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})


@asynccontextmanager
async def endpoint_of(url: str, api_key: str = "") -> AsyncIterator[EngineEndpoint]:
    async with aiohttp.ClientSession(timeout=TIMEOUTS, read_bufsize=LINE_BYTES_MAX) as session:
        yield EngineEndpoint(session, "tp1", url, api_key)


async def profiled(
    url: str,
    folder: Path,
    *,
    grid: Grid = GRID,
    reuse: float = 0.0,
    seconds: float | None = None,
    gpus: int = 1,
    batch_max: int = 256,
    context_max: int | None = None,
    kv_tokens: int | None = None,
    on_progress: Callable[[RunProgress], None] = lambda _progress: None,
) -> tuple[ProfilerRun, bool]:
    """Profile an engine; return the run, and whether it is complete."""
    async with endpoint_of(url) as endpoint:
        card = await endpoint.card("")
        prompts = await find_dialect(endpoint, card.id)
        limits = await find_limits(endpoint, card, context_max, kv_tokens, batch_max)
        record = Record(folder, Setup(card.id, gpus, grid, reuse))
        run = ProfilerRun(endpoint, prompts, record, limits)
        return run, await run.run(on_progress, seconds)


@asynccontextmanager
async def stub(handler: Handler, models: Any = MODELS, metrics: str = METRICS) -> AsyncIterator[str]:
    """Serve completions by a handler; yield the URL."""

    async def card(_request: web.Request) -> web.Response:
        return models if isinstance(models, web.Response) else web.json_response(models)

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=metrics)

    application = web.Application(client_max_size=2**24)
    application.add_routes([web.get("/v1/models", card), web.get("/metrics", page)])
    application.add_routes([web.post("/v1/completions", handler), web.post("/v1/chat/completions", handler)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def virtual_ms() -> float:
    return asyncio.get_running_loop().time() * 1_000.0


def sse(*chunks: Any) -> bytes:
    """Return a stream of chunks in bytes."""
    return b"".join(b"data: " + (chunk if isinstance(chunk, bytes) else chunk.encode()) + b"\n\n" for chunk in chunks)
