"""Server of a simulated engine with an OpenAI-compatible API: what a gateway, a sidecar or a profiler sees of vLLM.

python -m loadline.demo.openai.server --port 8000 --kv-blocks 500 --max-batch-requests 16

On SIGTERM it cuts its streams and exits, or with ``--shutdown-timeout`` refuses new requests and waits for the others.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from aiohttp import web

from loadline.demo import defaults
from loadline.demo.openai.application import EngineApi
from loadline.demo.openai.engine import PacedEngine
from loadline.demo.openai.metrics import VllmMetrics
from loadline.errors import DataError
from loadline.sim.engine import EngineKnobs, SimulatedEngine
from loadline.sim.profiles import MeasuredProfile

_CONTEXT_MAX = 16_384


async def serve(options: argparse.Namespace) -> None:
    """Serve until a signal, then shut down as vLLM does."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    knobs = EngineKnobs(
        "aggregated",
        options.kv_blocks,
        options.block_size,
        options.max_batch_requests,
        options.max_batched_tokens,
        chunked_prefill=True,
    )
    timing = MeasuredProfile(options.prefill_profile, options.decode_profile)
    engine = PacedEngine(
        SimulatedEngine(knobs, timing), VllmMetrics(options.model, knobs), options.speed, options.mean_osl
    )
    api = EngineApi(engine, options.model, options.max_model_len)
    runner = api.runner()
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port).start()
        print(f"serves {options.model} on http://{options.host}:{runner.addresses[0][1]}", flush=True)  # noqa: T201
        await stop.wait()
        api.refuse()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.shutdown_timeout):
                await engine.idle()
        engine.cut()
    finally:
        await runner.cleanup()


def _options(arguments: list[str]) -> argparse.Namespace:
    text = (__doc__ or "").split("\n", maxsplit=1)[0]
    parser = argparse.ArgumentParser(prog="python -m loadline.demo.openai.server", description=text)
    add = parser.add_argument
    add("--model", default=defaults.MODEL, help="name of the served model")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8_000)
    add("--speed", type=float, default=1.0, help="how many times as fast as its profile the engine is")
    add("--kv-blocks", type=int, default=defaults.KV_BLOCKS)
    add("--block-size", type=int, default=defaults.BLOCK_SIZE_TOKENS, help="tokens in a KV block")
    add("--max-batch-requests", type=int, default=defaults.MAX_BATCH_REQUESTS)
    add("--max-batched-tokens", type=int, default=defaults.MAX_BATCHED_TOKENS, help="tokens in an iteration")
    add("--max-model-len", type=int, default=_CONTEXT_MAX, help="largest prompt with its output, in tokens")
    add("--prefill-profile", type=Path, default=defaults.PREFILL_PROFILE)
    add("--decode-profile", type=Path, default=defaults.DECODE_PROFILE)
    add("--mean-osl", type=int, help="mean output of requests without ignore_eos (default: their maximum)")
    add("--shutdown-timeout", type=float, default=0.0, help="seconds for running requests after SIGTERM")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = _options(sys.argv[1:] if arguments is None else arguments)
    try:
        asyncio.run(serve(options))
    except (DataError, ValueError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
