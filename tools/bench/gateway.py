"""Cost of the gateway: what it adds to a TTFT, and the streams that one of its cores carries.

An engine in another process sends the first chunk at once and one every 20 ms, with token IDs as vLLM does. TTFTs are
those of single streams, in turn directly and through the gateway. Then 100 streams of 100 chunks run at a time, and the
gateway's CPU time gives its rate on one core. ``movable`` streams have their token IDs kept; the others do not.

  python -m tools.bench.gateway [--quick]
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.wire.messages import DrainCommand
from tools.bench.harness import options, percentile, progress, result, rig

MODEL: Final = "m"
PATH: Final = "/v1/chat/completions"
ITL_S: Final = 0.02
CHUNKS: Final = 100
AT_ONCE: Final = 100
UNMOVABLE: Final = {"seed": 1}
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


async def serve() -> None:
    """Be the engine: print the address, then answer for ever."""
    application = web.Application()
    application.add_routes([web.post(PATH, _answer)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print("http://{}:{}".format(*runner.addresses[0]), flush=True)
    await asyncio.Event().wait()


async def _answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    ids = bool(body.get("return_token_ids"))
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    for number in range(body["max_tokens"]):
        last = number == body["max_tokens"] - 1
        choice = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
        choice |= {"finish_reason": "length"} if last else {}
        choice |= {"token_ids": [1234]} if ids else {}
        chunk = {**base, "choices": [choice], **({"prompt_token_ids": [1] * 500} if ids and not number else {})}
        await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
        if not last:
            await asyncio.sleep(ITL_S)
    await response.write(b"data: [DONE]\n\n")
    return response


async def ttft_ms(session: aiohttp.ClientSession, url: str, chunks: int, **more: Any) -> float:
    """Return the TTFT of a stream, of which all is read."""
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": chunks,
        "messages": [{"role": "user", "content": "a" * 2_000}],
    }
    began_s = time.perf_counter()
    async with session.post(url + PATH, json={**body, **more}) as answer:
        answer.raise_for_status()
        await answer.content.readline()
        first_s = time.perf_counter()
        await answer.read()
    return (first_s - began_s) * 1_000


@asynccontextmanager
async def _child(*command: str) -> AsyncIterator[tuple[int, str]]:
    """Run a child; yield its process id, and the URL at the end of its first line."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        if child.stdout is None:
            raise AssertionError("stdout is a pipe")
        yield child.pid, (await child.stdout.readline()).decode().split()[-1]
    finally:
        child.terminate()
        await child.wait()


def cpu_s(process_id: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{process_id}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def streams_per_core(session: aiohttp.ClientSession, url: str, process_id: int, count: int, **more: Any) -> float:
    """Return the streams that the gateway carries per second of its CPU time."""
    before_s = cpu_s(process_id)
    for _ in range(0, count, AT_ONCE):
        await asyncio.gather(*(ttft_ms(session, url, CHUNKS, **more) for _ in range(AT_ONCE)))
    return count / (cpu_s(process_id) - before_s)


async def _drain(_command: DrainCommand) -> None:
    return


async def measure(nats: str, etcd: str, *, quick: bool) -> None:
    """Measure everything, and print the results."""
    async with AsyncExitStack() as stack:
        _, engine = await stack.enter_async_context(_child(__file__, "serve"))
        record = WorkerRecord(MODEL, "all", "w", "aggregated", incarnation=1, address=engine)
        servers = {"nats": NatsKnobs(servers=(nats,)), "etcd": EtcdKnobs(endpoints=(etcd,))}
        worker = WorkerClient(record, sample=lambda: WorkerSample(0, 0), on_drain=_drain, **servers)  # type: ignore[arg-type]
        await stack.enter_async_context(worker)
        await worker.ready()
        command = ("-m", "loadline", "gateway", "--model", MODEL, "--listen", "127.0.0.1:0")
        process_id, gateway = await stack.enter_async_context(_child(*command, "--nats", nats, "--etcd", etcd))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        direct: list[float] = []
        through: list[float] = []
        for _ in range(50 if quick else 1_000):
            direct.append(await ttft_ms(session, engine, 1))
            through.append(await ttft_ms(session, gateway, 1))
        added = {f"added_p{share * 100:.0f}": _added(through, direct, share) for share in (0.5, 0.99)}
        result("ttft", "ms", through, direct, **added)
        count = AT_ONCE if quick else 10 * AT_ONCE
        progress("streams")
        movable = await streams_per_core(session, gateway, process_id, count)
        unmovable = await streams_per_core(session, gateway, process_id, count, **UNMOVABLE)
        result("streams", "1/s", [movable], [unmovable], chunks_per_s=round(movable * CHUNKS))


def _added(through: Sequence[float], direct: Sequence[float], share: float) -> float:
    return round(percentile(through, share) - percentile(direct, share), 2)


def main() -> None:
    """Run the benchmark, or its engine."""
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
        return
    quick = options(__doc__)
    with rig() as servers:
        asyncio.run(measure(servers.nats.url, servers.etcd.url, quick=quick))


if __name__ == "__main__":
    main()
