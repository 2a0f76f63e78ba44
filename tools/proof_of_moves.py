"""Proof that moved streams are those that would have been: 200 at two engines, half of them moved, one engine killed.

  python -m tools.proof_of_moves --model tiny --engine http://127.0.0.1:8001 --engine http://127.0.0.1:8002 \
      --kill "kill -9 4711"

First every stream runs unbroken, twice: engines whose result depends on the batch differ already there. Then the same
streams go through `loadline gateway`, with NATS and etcd of this script. Migrate commands exchange half of them between
the engines, and the command of `--kill` ends the second engine. Streams alternate between chat and plain completions,
and between those that ask for token IDs and those that do not.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from loadline.adapters.logs import configure
from loadline.adapters.nats_bus import NatsBus
from loadline.client.streams import StreamEngine
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.rig.server_processes import EtcdServer, NatsServer
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand, MigrateCommand, MigrateReply
from loadline.wire.subjects import Subjects
from tools.bench.harness import percentile

SUBJECTS: Final = Subjects("loadline")
CHAT_EVERY: Final = 2
IDS_EVERY: Final = 4
"""Of four streams, two ask for token IDs: one of each kind."""


class Answer(NamedTuple):
    """A stream as its client got it."""

    text: str
    ids: tuple[int, ...]
    tokens: int
    finish: str
    times_s: Sequence[float]

    def is_equal(self, other: "Answer") -> bool:
        """Return True if the client got the same."""
        return self[:4] == other[:4]


async def ask(session: aiohttp.ClientSession, url: str, options: argparse.Namespace, number: int) -> Answer:
    """Return the answer to the stream with this number."""
    chat, wants_ids = number % CHAT_EVERY == 0, number % IDS_EVERY < IDS_EVERY // 2
    prompt = f"Stream {number}: tell me about the number {number * 7919}."
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    body |= {"model": options.model, "stream": True, "max_tokens": options.tokens, "temperature": 0}
    # Special tokens are text here: a model of random weights has many, and /detokenize does not skip them.
    body |= {"skip_special_tokens": False, "ignore_eos": True, "stream_options": {"include_usage": True}}
    body |= {"return_token_ids": True} if wants_ids else {}
    ids: list[int] = []
    text, times_s, tokens, finish = "", [time.monotonic()], 0, "none"
    path = "/v1/chat/completions" if chat else "/v1/completions"
    async with session.post(url + path, json=body) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk or answer.status != 200:  # noqa: PLR2004 - HTTP's own number
                raise RuntimeError(f"stream {number}: {line.decode()}")
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            for choice in chunk["choices"]:
                text += (choice["delta"].get("content") or "") if chat else choice["text"]
                ids += choice.get("token_ids") or []
                finish = choice["finish_reason"] or finish
                times_s.append(time.monotonic())
    return Answer(text, tuple(ids), tokens, finish, times_s)


async def ask_all(session: aiohttp.ClientSession, urls: Sequence[str], options: argparse.Namespace) -> list[Answer]:
    """Return the answers to all streams, which run at once."""
    asked = [ask(session, urls[number % len(urls)], options, number) for number in range(options.streams)]
    return await asyncio.gather(*asked)


class Worker:
    """An engine as a worker, as `loadline sidecar` makes one."""

    def __init__(self, name: str, url: str, model: str, bus: NatsBus, etcd: str) -> None:
        record = WorkerRecord(model, "all", name, "aggregated", incarnation=1, address=url)
        self.name = name
        self.streams = StreamEngine(record, bus, "loadline", lambda _tokens: True)
        self.client = WorkerClient(
            record,
            bus=bus,
            etcd=EtcdKnobs(endpoints=(etcd,)),
            sample=lambda: WorkerSample(0, 0),
            on_drain=_drain,
            migration=msgspec.structs.replace(self.streams.options(), slots_out=64),
        )

    @property
    def tokens(self) -> float:
        """Mean output tokens of its streams."""
        found = [one.output_tokens for one in self.streams.migratable_requests()]
        return sum(found) / len(found) if found else 0.0


async def _drain(_command: DrainCommand) -> None:
    return


async def move(bus: NatsBus, model: str, source: Worker, destination: Worker, count: int) -> int:
    """Command the move of so many streams, until as many were selected; return their number."""
    selected = number = 0
    while selected < count and source.streams.migratable_requests():
        number += 1
        command = MigrateCommand(
            command_id=f"{source.name}-{number}",
            model=model,
            source=MigrationEndpoint("all", source.name, 1),
            destination=MigrationEndpoint("all", destination.name, 1),
            trigger="proof",
            epoch=1,
            rule="NUM_REQ",
            order="FCR",
            value=count - selected,
            requests_max=count - selected,
            hops_max=1,
            ttl_ms=20_000,
        )
        payload = await bus.request(SUBJECTS.migrate(model, "all", source.name), encode(command), 5)
        reply = msgspec.json.decode(payload, type=MigrateReply)
        selected += reply.requests
        await asyncio.sleep(0.05)
    return selected


async def moved_run(options: argparse.Namespace, session: aiohttp.ClientSession, folder: Path) -> list[Answer]:
    """Return the answers to streams of which half are moved, and one engine's resumed."""
    nats, etcd = NatsServer(folder / "nats"), EtcdServer(folder / "etcd")
    async with AsyncExitStack() as stack:
        for server in (nats, etcd):
            await server.start_async()
            stack.callback(server.stop)
        bus = NatsBus(NatsKnobs(servers=(nats.url,)), name="proof")
        await bus.connect(lambda _connected: None)
        stack.push_async_callback(bus.close)
        workers = [Worker(f"w{number}", url, options.model, bus, etcd.url) for number, url in enumerate(options.engine)]
        for worker in workers:
            await stack.enter_async_context(worker.client)
            await worker.streams.start()
            await worker.client.ready()
        command = ["-m", "loadline", "gateway", "--model", options.model, "--listen", "127.0.0.1:0"]
        gateway = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, "--nats", nats.url, "--etcd", etcd.url), stdout=subprocess.PIPE
        )
        stack.callback(gateway.terminate)
        if gateway.stdout is None:
            raise AssertionError("stdout is a pipe")
        url = (await gateway.stdout.readline()).decode().split()[-1]
        asking = asyncio.create_task(ask_all(session, [url], options))
        await _until(lambda: min(worker.tokens for worker in workers) >= options.tokens * 0.1, asking)
        began_s = time.monotonic()
        quarter = options.streams // 4
        there = move(bus, options.model, workers[0], workers[1], quarter)
        back = move(bus, options.model, workers[1], workers[0], quarter)
        print(f"moved by command:       {sum(await asyncio.gather(there, back))} streams", flush=True)
        print(f"  all commands took     {time.monotonic() - began_s:.2f} s")
        if options.kill:
            await _until(lambda: workers[1].tokens >= options.tokens * 0.6, asking)
            left = len(workers[1].streams.migratable_requests())
            await asyncio.create_subprocess_shell(options.kill)
            print(f"killed with:            {left} streams")
        return await asking


async def _until(condition: Any, asking: "asyncio.Task[list[Answer]]") -> None:
    while not condition() and not asking.done():  # noqa: ASYNC110 - reports change it
        await asyncio.sleep(0.02)


def compare(name: str, found: Sequence[Answer], expected: Sequence[Answer]) -> int:
    """Print how many answers are equal; return the number of those that are not."""
    different = [number for number, one in enumerate(found) if not one.is_equal(expected[number])]
    print(f"{name:24}{len(found) - len(different)} of {len(found)} equal")
    for number in different:
        pairs = zip(found[number].ids, expected[number].ids, strict=False)
        place = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
        print(f"  {number}: {'other text' if place is None else f'another token {place}'}")
    return len(different)


def print_gaps(name: str, answers: Sequence[Answer]) -> None:
    """Print the longest pause of each stream between two chunks."""
    gaps = sorted(max(b - a for a, b in zip(one.times_s[1:], one.times_s[2:], strict=False)) for one in answers)
    print(f"{name:24}longest pause p50 {percentile(gaps, 0.5) * 1_000:.0f} ms, max {gaps[-1] * 1_000:.0f} ms")


async def run(options: argparse.Namespace) -> int:
    """Run all; return the number of streams that differ."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
    ) as session:
        first = await ask_all(session, options.engine, options)
        compare("unbroken, again:", await ask_all(session, options.engine, options), first)
        print_gaps("unbroken:", first)
        with tempfile.TemporaryDirectory() as folder:
            moved = await moved_run(options, session, Path(folder))
    print_gaps("moved and killed:", moved)
    return compare("moved and killed:", moved, first)


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--engine", action="append", required=True, metavar="URL", help="engine; give two with the same weights")
    add("--model", required=True, help="name of the model at the engines")
    add("--streams", type=int, default=200)
    add("--tokens", type=int, default=200, help="output tokens of each stream")
    add("--kill", default="", metavar="COMMAND", help="ends the second engine, such as 'kill -9 4711'")
    configure("auto", "warning")
    return 1 if asyncio.run(run(parser.parse_args())) else 0


if __name__ == "__main__":
    sys.exit(main())
