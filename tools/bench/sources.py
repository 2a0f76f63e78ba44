"""CPU that the source of routers' traffic takes for a thousand routers, each read once a second.

Four processes serve a page of a Dynamo frontend with two models, 16 KB, whose counters rise. The value is the processor
time that the source takes for a page, user and system, and as many percent of a core for ten pages a second; the
baseline is that of a client which only fetches the pages. The number of pages that it read shows whether it kept up:
the servers of the pages need two cores more.

  python -m tools.bench.sources [--quick]
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aiohttp import web

from loadline.adapters.http_reader import HttpReader
from loadline.adapters.nats_bus import NatsBus
from loadline.adapters.parent_death import ending_with_parent
from loadline.rig.rig import Rig
from loadline.rig.server_processes import free_port
from loadline.servers import NatsKnobs
from loadline.wire.subjects import Subjects
from tools.bench.harness import options, progress, result, rig

SERVERS: Final = 4
PER_SERVER: Final = 250
HISTOGRAMS: Final = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "input_sequence_tokens",
    "output_sequence_tokens",
    "request_duration_seconds",
)
BINS: Final = 20
MODELS: Final = ("llama", "qwen")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
SELF: Final = [sys.executable, str(Path(__file__))]


def page(requests: int) -> bytes:
    """Return the page of a frontend that has served a number of requests of each model."""
    lines = []
    for model in MODELS:
        labels = f'model="{model}"'
        lines += [
            f"dynamo_frontend_requests_started_total{{{labels}}} {requests}",
            f'dynamo_frontend_requests_total{{{labels},status="success"}} {requests}',
            f"dynamo_frontend_active_requests{{{labels}}} 7",
        ]
        for name in HISTOGRAMS:
            metric = f"dynamo_frontend_{name}"
            lines += [f'{metric}_bucket{{{labels},le="{2**at}"}} {requests * at // BINS}' for at in range(BINS)]
            lines += [f"{metric}_sum{{{labels}}} {requests * 100}", f"{metric}_count{{{labels}}} {requests}"]
    return "\n".join([*lines, ""]).encode()


def serve(port: int) -> None:
    """Serve the pages of a quarter of the routers."""
    began_s = time.monotonic()

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=pages[int(time.monotonic() - began_s) % len(pages)])

    pages = [page(40 * second) for second in range(600)]
    application = web.Application()
    application.router.add_get("/{router}", answer)
    web.run_app(application, host="127.0.0.1", port=port, print=None, access_log=None)


async def fetch(urls: list[str], seconds: float) -> int:
    """Fetch all pages once a second, and do nothing with them; return their number."""
    count = 0
    async with HttpReader(5.0) as reader:

        async def poll(url: str, phase: float) -> None:
            nonlocal count
            await asyncio.sleep(phase)
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                due_s = time.monotonic() + 1.0
                await reader.get(url)
                count += 1
                await asyncio.sleep(max(due_s - time.monotonic(), 0.0))

        await asyncio.gather(*(poll(url, number / len(urls)) for number, url in enumerate(urls)))
    return count


def bare(seconds: float, ports: list[str]) -> None:
    """Print the processor time of a fetched page, in ms."""
    before_s = time.process_time()
    count = asyncio.run(fetch([f"http://127.0.0.1:{port}/{n}" for n in range(PER_SERVER) for port in ports], seconds))
    print(1_000 * (time.process_time() - before_s) / count)


@contextlib.contextmanager
def child(*command: str) -> Iterator[int]:
    """Run a process; yield its id."""
    process = subprocess.Popen(ending_with_parent(command))  # noqa: S603 - our own programs
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    """Wait until a server listens."""
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return
    time.sleep(0.1)
    wait_for(port)


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has taken, in s."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def configuration(servers: Rig, urls: list[str]) -> str:
    """Return the configuration of a source of all routers."""
    groups = [urls[first : first + SERVERS] for first in range(0, len(urls), SERVERS)]
    frontends = "".join(
        f'[[frontends]]\nname = "router-{number}"\nrouter = "dynamo"\nurls = {group}\n'
        for number, group in enumerate(groups)
    )
    models = "".join(f'{model} = "{model}"\n' for model in MODELS)
    return f'[models]\n{models}{frontends}[nats]\nservers = ["{servers.nats.url}"]\n'


async def measure(url: str, pid: int, seconds: float) -> tuple[float, float]:
    """Return the processor time of the source for a page, in ms, and the pages per second that it reports."""
    bus, count = NatsBus(NatsKnobs(servers=(url,)), name="bench"), 0

    def on_report(_subject: str, _data: bytes) -> None:
        nonlocal count
        count += 1

    await bus.connect(lambda _connected: None)
    await bus.subscribe(Subjects("loadline").all_of("traffic"), on_report)
    before, before_s = count, cpu_s(pid)
    await asyncio.sleep(seconds)
    pages, took_s = (count - before) / len(MODELS), cpu_s(pid) - before_s
    await bus.close()
    return 1_000 * took_s / max(pages, 1), pages / seconds


def main() -> None:
    """Run the benchmark and print its results."""
    seconds, rounds = (5.0, 1) if options(__doc__) else (10.0, 3)
    ports = [free_port() for _ in range(SERVERS)]
    # A group of four routers is on four servers, so that each has an address of its own.
    urls = [f"http://127.0.0.1:{port}/router-{number}" for number in range(PER_SERVER) for port in ports]
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(child(*SELF, "serve", str(port)))
        for port in ports:
            wait_for(port)
        servers = stack.enter_context(rig())
        config = servers.directory / "gateway.toml"
        config.write_text(configuration(servers, urls), encoding="utf-8")
        times_ms, baselines_ms, per_s = [], [], 0.0
        for number in range(rounds):
            with child(sys.executable, "-m", "loadline", "source", "gateway", "--config", str(config)) as pid:
                time.sleep(5.0)  # the first pages are slower
                time_ms, per_s = asyncio.run(measure(servers.nats.url, pid, seconds))
            command = [*SELF, "fetch", str(seconds), *map(str, ports)]
            alone = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
            times_ms.append(time_ms)
            baselines_ms.append(float(alone.stdout))
            progress(
                f"round {number + 1}/{rounds}: {time_ms:.2f} ms, {per_s:.0f} pages/s, bare {baselines_ms[-1]:.2f} ms"
            )
    result("sources", "ms", times_ms, baselines_ms, pages_per_s=round(per_s), kilobytes=len(page(1)) // 1_000)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
    elif sys.argv[1:2] == ["fetch"]:
        bare(float(sys.argv[2]), sys.argv[3:])
    else:
        main()
