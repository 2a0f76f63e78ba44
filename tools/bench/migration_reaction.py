"""Time from a sample that overloads a worker to the migrate command at that worker, over a real NATS.

100 decode workers report at 1 Hz, 50 of them half full and the others less. One after the other is overloaded by one
sample, accepts its command, reports the migration as done, and reports its load as before. Then 50 are overloaded at
once, and one of them never answers: the wait of the others for their commands, twice. Times are those of one process,
which publishes the samples and acts as the workers. The baseline is an echo over NATS between the samples.

  python -m tools.bench.migration_reaction [--quick]
"""

import asyncio
import time
from pathlib import Path
from typing import Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.rig.rig import Rig
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import LoadReport, MigrateCommand, MigrateReply, MigrationReport
from loadline.wire.subjects import Subjects
from tools.bench.harness import ProbedProcess, format_times, options, percentile, progress, result, rig, subscriber

WORKERS: Final = 100
AT_ONCE: Final = 50
BLOCKS: Final = 20_000
OVERLOADED: Final = BLOCKS - 100
REQUESTS: Final = 40
APART_S: Final = 0.05
WARM_S: Final = 3.0
"""Time by which all have reported."""
RECORDS: Final = [
    WorkerRecord("m", "decode", f"w{n}", "decode", 1, kv_blocks_total=BLOCKS, block_size_tokens=16)
    for n in range(WORKERS)
]
SUBJECTS: Final = Subjects("loadline")
KNOBS: Final = """
[[models]]
name = "m"
planner = "static"
pools = [{ name = "decode", role = "decode", replicas_max = 1000 }]
[models.migration]
enabled = true
decode_load_threshold = 0.9
load_balance_threshold = 0.2
migrations_max = 10000
"""


class Workers:
    """All workers, which report their load and receive commands.

    Args:
        client: Connection of all workers.
    """

    def __init__(self, client: Client) -> None:
        self.received_s: dict[str, float] = {}
        """Times at which each worker last received a command."""
        self.silent = ""
        """Worker that never answers."""
        self.excluded: set[int] = set()
        """Workers excluded from periodic reports."""
        self._client = client
        self._sequence = 0

    async def report(self, number: int, used: int = 0) -> None:
        """Publish one sample of a worker, with its steady load unless ``used`` is given."""
        used = used or (BLOCKS // 2 if number < AT_ONCE else BLOCKS // 4)
        self._sequence += 1
        sample = WorkerSample(
            self._sequence,
            0,
            kv_blocks_used=used,
            waiting_requests=0,
            running_requests=REQUESTS,
            decode_tokens=16 * used,
            migration_slots_in=4,
            migration_slots_out=4,
        )
        record = RECORDS[number]
        report = LoadReport("m", "decode", record.worker, 1, [sample])
        await self._client.publish(SUBJECTS.load("m", "decode", record.worker), encode(report))

    async def on_command(self, message: Msg) -> None:
        """Record the time of a command, and report its migration as done."""
        command = decode_as(MigrateCommand, message.data)
        assert not isinstance(command, Rejected)  # noqa: S101
        name = command.source.worker
        self.received_s[name] = time.monotonic()
        if name == self.silent:
            return
        await message.respond(encode(MigrateReply(command.command_id, accepted=True, requests=1, tokens=1_000)))
        done = MigrationReport(
            command.command_id, "m", command.epoch, command.source, command.destination, command.trigger, "done", 1, 1
        )
        await self._client.publish(SUBJECTS.migration("m", command.source.pool, name), encode(done))

    async def report_periodically(self) -> None:
        """Report all workers once a second, evenly spread."""
        while True:
            for number in range(WORKERS):
                if number not in self.excluded:
                    await self.report(number)
                await asyncio.sleep(1.0 / WORKERS)


async def one_by_one(workers: Workers, client: Client, count: int) -> tuple[list[float], list[float]]:
    """Return the reactions to one overloaded worker at a time, and the echoes, in ms."""
    reactions: list[float] = []
    echoes: list[float] = []
    for turn in range(count):
        number = turn * 37 % WORKERS
        name = RECORDS[number].worker
        workers.received_s.pop(name, None)
        workers.excluded = {number}
        sent_s = time.monotonic()
        await workers.report(number, OVERLOADED)
        reactions.append(await arrives(workers, name, sent_s))
        await workers.report(number)
        began_s = time.monotonic()
        await client.request("echo", bytes(300))
        echoes.append((time.monotonic() - began_s) * 1e3)
        await asyncio.sleep(APART_S)
    return reactions, echoes


async def arrives(workers: Workers, name: str, sent_s: float) -> float:
    """Wait for a command to a worker; return the ms since its sample was sent."""
    while name not in workers.received_s:
        if time.monotonic() > sent_s + 5.0:
            raise SystemExit(f"{name} received no command")
        await asyncio.sleep(0.0005)
    return (workers.received_s[name] - sent_s) * 1e3


async def all_at_once(workers: Workers, silent: str) -> list[float]:
    """Return the reactions of 50 overloaded workers, twice, of which ``silent`` never answers."""
    waits: list[float] = []
    workers.silent = silent
    workers.excluded = set(range(AT_ONCE))
    for _ in range(2):
        workers.received_s.clear()
        sent_s = time.monotonic()
        for number in range(AT_ONCE):
            await workers.report(number, OVERLOADED)
        names = [RECORDS[number].worker for number in range(AT_ONCE)]
        waits += [await arrives(workers, name, sent_s) for name in names if name != silent]
        for number in range(AT_ONCE):
            await workers.report(number)
        await asyncio.sleep(1.0)
    return waits


async def measure(servers: Rig, count: int) -> dict[str, list[float]]:
    """Measure all reactions with a leading agent."""
    client = await nats.connect(servers.nats.url)
    workers = Workers(client)
    await client.subscribe(SUBJECTS.all_of("migrate"), cb=workers.on_command)
    reporting = asyncio.create_task(workers.report_periodically())
    await asyncio.sleep(WARM_S)
    reactions, echoes = await one_by_one(workers, client, count)
    all_answer = await all_at_once(workers, "")
    one_silent = await all_at_once(workers, "w7")
    reporting.cancel()
    await asyncio.gather(reporting, return_exceptions=True)
    await client.close()
    return {"reaction": reactions, "echo": echoes, "all answer": all_answer, "one silent": one_silent}


def agent(servers: Rig) -> ProbedProcess:
    """Start an agent that migrates requests."""
    path: Path = servers.directory / "agent.toml"
    path.write_text(servers.config(KNOBS, http={"port": 0}), encoding="utf-8")
    return ProbedProcess(["agent", str(path)], servers.directory / "agent.log")


def main() -> None:
    """Run the benchmark and print its results."""
    rounds, count = (1, 100) if options(__doc__) else (3, 400)
    found: list[dict[str, list[float]]] = []
    for number in range(1, rounds + 1):
        with rig() as servers:
            asyncio.run(servers.register(RECORDS))
            with agent(servers) as child, subscriber(servers) as echo:
                child.wait(lambda sample: sample.ready)
                echo.wait(lambda sample: sample.ready)
                found.append(asyncio.run(measure(servers, count)))
        progress(
            f"round {number}/{rounds}: "
            + "; ".join(f"{name} {format_times(times)}" for name, times in found[-1].items())
        )
    echoes = [percentile(one["echo"], 0.5) for one in found]
    for name in ("reaction", "all answer", "one silent"):
        every = [ms for one in found for ms in one[name]]
        p99, mean = round(percentile(every, 0.99), 3), round(sum(every) / len(every), 3)
        result(f"move, {name}", "ms", [percentile(one[name], 0.5) for one in found], echoes, p99=p99, mean=mean)


if __name__ == "__main__":
    main()
