"""What a benchmark looks at, as a child process: the agent itself, or a bare subscriber to compare it with.

    python -m loadline.rig.probe agent CONFIG
    python -m loadline.rig.probe subscriber NATS-URL SUBJECT

For every line on stdin it writes a ``ProbeSample`` to stdout. The agent is ``app.Agent``, unmodified,
as ``loadline run`` runs it.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import nats
from msgspec import Struct
from nats.aio.msg import Msg

from loadline.adapters import logs
from loadline.app import Agent, configure_gc
from loadline.config import load
from loadline.core.vocabulary.samples import WorkerSample


class ProbeSample(Struct, frozen=True):
    """How far a child has got."""

    frames: int = 0
    """Frames taken since it started."""
    taken_at_s: float = 0.0
    """When the last of them was taken, on the clock that all processes of the machine share."""
    lost: int = 0
    """Frames that the library or the inbox dropped, and samples that were refused."""
    journal_lost: int = 0
    cpu_s: float = 0.0
    ready: bool = True
    workers: int = 0
    sequences: int = 0
    """Sum over all workers of the newest sequence that is known."""
    turns: list[tuple[float, float]] = []
    """When every turn since the last look ended, and how long it took, both in s."""


class BareLoadReport(Struct):
    """A load report as a program without any care would read it: the same fields, no bounds on the names."""

    model: str
    pool: str
    worker: str
    incarnation: int
    samples: list[WorkerSample]


class ProbedAgent(Agent):
    """The agent, with a note of every turn."""

    def note(self) -> None:
        """Begin to take notes."""
        self._turns: list[tuple[float, float]] = []
        self._frames, self._taken_at_s = 0, 0.0

    def look(self) -> ProbeSample:
        """How far it has got."""
        state, counted = self.runtime.controller.state, self._counters()
        pools = [pool for model in state.fleet.models.values() for pool in model.pools.values()]
        newest = [sample.sequence for pool in pools for w in pool.workers.values() for sample in w.latest if sample]
        refused = sum(count for name, count in counted.items() if name.startswith("refused_"))
        turns, self._turns = self._turns, []
        return ProbeSample(
            frames=self._frames,
            taken_at_s=self._taken_at_s,
            lost=counted["frames_dropped"] + counted["slow_consumer_drops"] + refused + sum(state.rejected.values()),
            journal_lost=counted["journal_lost"],
            cpu_s=time.process_time(),
            ready=not self._readiness_problems() and self.runtime.controller.leading and state.decisions_read,
            workers=len(newest),
            sequences=sum(newest),
            turns=turns,
        )

    def _on_turn(self, seconds: float) -> None:
        super()._on_turn(seconds)
        now_s = time.monotonic()
        self._turns.append((now_s, seconds))
        if self.runtime.frames != self._frames:
            self._frames, self._taken_at_s = self.runtime.frames, now_s


class Subscriber:
    """A callback that decodes, and echoes what asks for a reply."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(BareLoadReport).decode
        self._frames, self._taken_at_s = 0, 0.0
        self._ready = False

    async def run(self, url: str, subject: str) -> None:
        """Listen until cancelled."""
        client = await nats.connect(url)
        await client.subscribe(subject, cb=self._take, pending_msgs_limit=2**20, pending_bytes_limit=2**30)
        await client.subscribe("echo", cb=self._echo)
        await asyncio.sleep(0)  # a flush overtakes what was only written in this turn of the loop
        await client.flush()
        self._ready = True
        await asyncio.Event().wait()

    def look(self) -> ProbeSample:
        """How far it has got."""
        return ProbeSample(
            frames=self._frames, taken_at_s=self._taken_at_s, cpu_s=time.process_time(), ready=self._ready
        )

    async def _take(self, message: Msg) -> None:
        self._decode(message.data)
        self._frames += 1
        self._taken_at_s = time.monotonic()

    async def _echo(self, message: Msg) -> None:
        await message.respond(message.data)


def answer_looks(look: Callable[[], ProbeSample]) -> None:
    """Answer every line on stdin; the end of it ends the process."""

    def answer() -> None:
        asked = os.read(0, 65_536)
        if not asked:
            os._exit(0)  # a measured process has nothing to hand over
        for _ in range(asked.count(b"\n")):
            sys.stdout.buffer.write(msgspec.json.encode(look()) + b"\n")
        sys.stdout.buffer.flush()

    asyncio.get_running_loop().add_reader(0, answer)


async def main(kind: str, *arguments: str) -> None:
    """Run one of the two."""
    if kind == "agent":
        config = load(Path(arguments[0]))
        logs.configure(config.agent.log_format, config.agent.log_level)
        configure_gc()
        agent = ProbedAgent(config)
        agent.note()
        answer_looks(agent.look)
        await agent.run()
    else:
        subscriber = Subscriber()
        answer_looks(subscriber.look)
        await subscriber.run(*arguments)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
