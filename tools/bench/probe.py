"""Child process of a benchmark that reports its progress: the agent, or a bare subscriber as baseline.

    python -m tools.bench.probe agent CONFIG [delays]
    python -m tools.bench.probe subscriber NATS-URL SUBJECT [delays]

For every line on stdin it writes a ``ProbeSample`` to stdout. The agent is ``app.Agent``, unmodified,
as ``loadline run`` runs it.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import nats
from msgspec import Struct
from nats.aio.msg import Msg

from loadline.adapters.hidden_module import import_at_first_use

if __name__ == "__main__":
    import_at_first_use("numpy")  # as `loadline run` does, before its imports

from loadline.adapters import garbage, logs
from loadline.app import Agent
from loadline.config import load
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import AnyEvent, LoadReported
from loadline.core.vocabulary.samples import WorkerSample
from loadline.runtime.turns import Turns


class ProbeSample(Struct, frozen=True):
    """Progress of a probed process."""

    frames: int = 0
    """Frames taken since the start."""
    taken_at_s: float = 0.0
    """Time of the last frame, on the monotonic clock of the machine."""
    lost: int = 0
    """Frames dropped by the library or the inbox, and rejected samples."""
    journal_lost: int = 0
    cpu_s: float = 0.0
    ready: bool = True
    workers: int = 0
    sequences: int = 0
    """Sum of the newest known sequences of all workers."""
    turns: list[tuple[float, float]] = []
    """End time and duration of every turn since the last sample, in s."""
    turns_cpu_s: list[float] = []
    """Processor time of the same turns, which other programs of the machine change less than the duration."""
    delays_ms: list[int] = []
    """Time from the newest sample of each load report until the end of its turn, or until it was decoded."""


class BareLoadReport(Struct):
    """Load report with the same fields and without bounds on names."""

    model: str
    pool: str
    worker: str
    incarnation: int
    samples: list[WorkerSample]


class ProbedAgent(Agent):
    """Agent that records the time of every turn."""

    def start_recording(self, *, delays: bool) -> None:
        """Start recording turns, and the delays of load reports if asked: their cost counts as the agent's."""
        self._turns: list[tuple[float, float]] = []
        self._turns_cpu_s: list[float] = []
        self._delays_ms: list[int] = []
        self._taken_at_s = 0.0
        for runtime in self.shards.runtimes:
            self._record_turns(runtime._turns)  # noqa: SLF001 - measured where it runs
        if delays:
            self._record_delays()

    def _record_turns(self, turns: Turns) -> None:
        turn = turns.turn

        def timed(now: int) -> None:
            frames, began_s = turns.frames, time.thread_time()
            turn(now)
            self._turns_cpu_s.append(time.thread_time() - began_s)
            if turns.frames != frames:
                self._taken_at_s = time.monotonic()

        turns.turn = timed  # type: ignore[method-assign]

    def _record_delays(self) -> None:
        turns = self.runtime._turns  # noqa: SLF001 - measured where it runs
        handle, turn = turns.controller.handle, turns.turn
        sent_ms: list[int] = []

        def noted(events: Sequence[AnyEvent], now: int) -> list[AnyEffect]:
            sent_ms.extend(e.samples[-1].timestamp_ms for e in events if e.__class__ is LoadReported)
            return handle(events, now)

        def delayed(now: int) -> None:
            turn(now)
            ended_ms = time.time_ns() // 1_000_000
            self._delays_ms += [ended_ms - one for one in sent_ms]
            sent_ms.clear()

        turns.controller.handle = noted  # type: ignore[method-assign]
        turns.turn = delayed  # type: ignore[method-assign]

    def sample(self) -> ProbeSample:
        """Return the progress so far."""
        states, counted = self.shards.states, self._counters()
        pools = [pool for state in states for model in state.fleet.models.values() for pool in model.pools.values()]
        newest = [sample.sequence for pool in pools for w in pool.workers.values() for sample in w.latest if sample]
        refused = sum(count for name, count in counted.items() if name.startswith("refused_"))
        turns, self._turns = self._turns, []
        turns_cpu_s, self._turns_cpu_s = self._turns_cpu_s, []
        delays_ms, self._delays_ms = self._delays_ms, []
        led = [state for state in states if state.leading]
        return ProbeSample(
            frames=counted["frames"],
            taken_at_s=self._taken_at_s,
            lost=counted["frames_dropped"]
            + counted["slow_consumer_drops"]
            + refused
            + sum(sum(state.rejected.values()) for state in states),
            journal_lost=counted["journal_lost"],
            cpu_s=time.process_time(),
            ready=not self._readiness_problems() and bool(led) and all(state.decisions_read for state in led),
            workers=len(newest),
            sequences=sum(newest),
            turns=turns,
            turns_cpu_s=turns_cpu_s,
            delays_ms=delays_ms,
        )

    def _on_turn(self, seconds: float) -> None:
        super()._on_turn(seconds)
        self._turns.append((time.monotonic(), seconds))


class Subscriber:
    """Subscriber whose callback only decodes; it also answers echo requests."""

    def __init__(self, *, delays: bool) -> None:
        self._decode = msgspec.json.Decoder(BareLoadReport).decode
        self._take = self._take_with_delay if delays else self._take_frame
        self._delays_ms: list[int] = []
        self._frames, self._taken_at_s = 0, 0.0
        self._ready = False

    async def run(self, url: str, subject: str) -> None:
        """Subscribe until cancelled."""
        client = await nats.connect(url)
        await client.subscribe(subject, cb=self._take, pending_msgs_limit=2**20, pending_bytes_limit=2**30)
        await client.subscribe("echo", cb=self._echo)
        await asyncio.sleep(0)  # flush does not wait for writes of the same turn of the event loop
        await client.flush()
        self._ready = True
        await asyncio.Event().wait()

    def sample(self) -> ProbeSample:
        """Return the progress so far."""
        delays_ms, self._delays_ms = self._delays_ms, []
        return ProbeSample(
            frames=self._frames,
            taken_at_s=self._taken_at_s,
            cpu_s=time.process_time(),
            ready=self._ready,
            delays_ms=delays_ms,
        )

    async def _take_frame(self, message: Msg) -> None:
        self._decode(message.data)
        self._frames += 1
        self._taken_at_s = time.monotonic()

    async def _take_with_delay(self, message: Msg) -> None:
        report = self._decode(message.data)
        self._frames += 1
        self._taken_at_s = time.monotonic()
        self._delays_ms.append(time.time_ns() // 1_000_000 - report.samples[-1].timestamp_ms)

    async def _echo(self, message: Msg) -> None:
        await message.respond(message.data)


def answer_requests(sample: Callable[[], ProbeSample]) -> None:
    """Answer every line on stdin with a sample; exit at its end."""

    def answer() -> None:
        requests = os.read(0, 65_536)
        if not requests:
            os._exit(0)  # nothing to clean up
        for _ in range(requests.count(b"\n")):
            sys.stdout.buffer.write(msgspec.json.encode(sample()) + b"\n")
        sys.stdout.buffer.flush()

    asyncio.get_running_loop().add_reader(0, answer)


async def main(kind: str, *arguments: str) -> None:
    """Run the agent or the subscriber."""
    if kind == "agent":
        config = load(Path(arguments[0]))
        logs.configure(config.agent.log_format, config.agent.log_level)
        agent = ProbedAgent(config)
        garbage.configure()
        agent.start_recording(delays="delays" in arguments)
        answer_requests(agent.sample)
        await agent.run()
    else:
        url, subject, *more = arguments
        subscriber = Subscriber(delays="delays" in more)
        answer_requests(subscriber.sample)
        await subscriber.run(url, subject)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
