"""From a sample that overloads a worker to the migrate command in the hands of that worker, over a real NATS.

100 decode workers report at 1 Hz, 50 of them half full and the others less. One after the other is overloaded by one
sample; it accepts its command, says that the move is done, and reports as before. Then the 50 are overloaded at once
and one of them never answers: what the others wait for their command, twice. Times are those of one process, which
publishes the samples and is the workers too. Beside it: an echo over NATS, measured between the samples.

  python tools/bench/migration_reaction.py [--quick]
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.rig.bench import ProbedProcess, options, percentile, result, rig, say, subscriber
from loadline.rig.rig import Rig
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import LoadReport, MigrateCommand, MigrateReply, MigrationReport
from loadline.wire.subjects import Subjects

WORKERS: Final = 100
AT_ONCE: Final = 50
BLOCKS: Final = 20_000
OVERLOADED: Final = BLOCKS - 100
REQUESTS: Final = 40
APART_S: Final = 0.05
WARM_S: Final = 3.0
"""All have reported by then."""
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
    """All workers: what they report, and the commands that they get.

    Args:
        client: Their connection.
    """

    def __init__(self, client: Client) -> None:
        self.got_s: dict[str, float] = {}
        """When each worker last got a command."""
        self.silent = ""
        """This one never answers."""
        self.apart: set[int] = set()
        """These do not report by themselves."""
        self._client = client
        self._sequence = 0

    async def report(self, number: int, used: int = 0) -> None:
        """One sample of a worker; as steady as ever unless it is said otherwise."""
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

    async def obey(self, message: Msg) -> None:
        """Take a command, note when, and say that it is done."""
        command = decode_as(MigrateCommand, message.data)
        assert not isinstance(command, Rejected)  # noqa: S101
        name = command.source.worker
        self.got_s[name] = time.monotonic()
        if name == self.silent:
            return
        await message.respond(encode(MigrateReply(command.command_id, accepted=True, requests=1, tokens=1_000)))
        done = MigrationReport(
            command.command_id, "m", command.epoch, command.source, command.destination, command.trigger, "done", 1, 1
        )
        await self._client.publish(SUBJECTS.migration(name), encode(done))

    async def beat(self) -> None:
        """Report once a second, spread over it."""
        while True:
            for number in range(WORKERS):
                if number not in self.apart:
                    await self.report(number)
                await asyncio.sleep(1.0 / WORKERS)


async def one_by_one(workers: Workers, client: Client, count: int) -> tuple[list[float], list[float]]:
    """Reactions to one overloaded worker at a time, and echoes, in ms."""
    reactions: list[float] = []
    echoes: list[float] = []
    for turn in range(count):
        number = turn * 37 % WORKERS
        name = RECORDS[number].worker
        workers.got_s.pop(name, None)
        workers.apart = {number}
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
    """Wait for a command to a worker; ms since its sample was sent."""
    while name not in workers.got_s:
        if time.monotonic() > sent_s + 5.0:
            raise SystemExit(f"{name} got no command")
        await asyncio.sleep(0.0005)
    return (workers.got_s[name] - sent_s) * 1e3


async def all_at_once(workers: Workers, silent: str) -> list[float]:
    """Reactions of 50 overloaded workers, twice; one of them never answers, or none does not."""
    waits: list[float] = []
    workers.silent = silent
    workers.apart = set(range(AT_ONCE))
    for _ in range(2):
        workers.got_s.clear()
        sent_s = time.monotonic()
        for number in range(AT_ONCE):
            await workers.report(number, OVERLOADED)
        names = [RECORDS[number].worker for number in range(AT_ONCE)]
        waits += [await arrives(workers, name, sent_s) for name in names if name != silent]
        for number in range(AT_ONCE):
            await workers.report(number)
        await asyncio.sleep(1.0)
    return waits


async def measure(made: Rig, count: int) -> dict[str, list[float]]:
    """All of it, against an agent that leads."""
    client = await nats.connect(made.nats.url)
    workers = Workers(client)
    await client.subscribe(SUBJECTS.all_of("migrate"), cb=workers.obey)
    beating = asyncio.create_task(workers.beat())
    await asyncio.sleep(WARM_S)
    reactions, echoes = await one_by_one(workers, client, count)
    all_answer = await all_at_once(workers, "")
    one_silent = await all_at_once(workers, "w7")
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await client.close()
    return {"reaction": reactions, "echo": echoes, "all answer": all_answer, "one silent": one_silent}


def agent(made: Rig) -> ProbedProcess:
    """An agent that moves requests."""
    path: Path = made.directory / "agent.toml"
    path.write_text(made.config(KNOBS, http={"port": 0}), encoding="utf-8")
    return ProbedProcess(["agent", str(path)], made.directory / "agent.log")


def main() -> None:
    """Measure and print."""
    rounds, count = (1, 100) if options(__doc__) else (3, 400)
    found: list[dict[str, list[float]]] = []
    for number in range(1, rounds + 1):
        with rig() as made:
            asyncio.run(made.register(RECORDS))
            with agent(made) as child, subscriber(made) as echo:
                child.wait(lambda look: look.ready)
                echo.wait(lambda look: look.ready)
                found.append(asyncio.run(measure(made, count)))
        say(f"round {number}/{rounds}: " + "; ".join(f"{name} {told(times)}" for name, times in found[-1].items()))
    echoes = [percentile(one["echo"], 0.5) for one in found]
    for name in ("reaction", "all answer", "one silent"):
        every = [ms for one in found for ms in one[name]]
        p99, mean = round(percentile(every, 0.99), 3), round(sum(every) / len(every), 3)
        result(f"move, {name}", "ms", [percentile(one[name], 0.5) for one in found], echoes, p99=p99, mean=mean)


def told(times_ms: Sequence[float]) -> str:
    """For people."""
    return f"p50 {percentile(times_ms, 0.5):.2f} ms, p99 {percentile(times_ms, 0.99):.2f} ms"


if __name__ == "__main__":
    main()
