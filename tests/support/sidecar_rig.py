"""Sidecar with an engine on a real socket, and bus and store in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.sidecar.options import SidecarOptions
from loadline.sidecar.sidecar import Sidecar
from loadline.wire.codec import Codec, encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply
from loadline.wire.subjects import Subjects
from tests.support.engine_pages import vllm
from tests.support.engine_server import EngineServer, engine_server
from tests.support.memory import MemoryBus, MemoryStore
from tests.waiting import until

SUBJECTS = Subjects("loadline")
CODEC = Codec(SUBJECTS, 262_144)
NAMES = ("tiny", "aggregated", "w")


class SidecarRig:
    """A sidecar, its engine, and the agent's side of bus and store."""

    def __init__(self, engine: EngineServer, /, **options: Any) -> None:
        self.engine = engine
        self.bus, self.store = MemoryBus(), MemoryStore()
        self.sidecar = Sidecar(
            SidecarOptions(**{"url": engine.url, "worker": "w", "interval_s": 0.005, "lease_ttl_s": 60, **options}),
            bus=self.bus,
            store=self.store,
        )
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.running = asyncio.create_task(self.sidecar.run())

    def record(self, worker: str = "w") -> WorkerRecord | None:
        for key, entry in self.store.server.keys.items():
            record = msgspec.json.decode(entry.value, type=WorkerRecord)
            if key == Keys("default").worker(*record.names) and record.worker == worker:
                return record
        return None

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for a condition; fail if the sidecar fails."""

        def it_holds() -> object:
            if self.running is not None and self.running.done():
                self.running.result()
            return condition()

        await until(it_holds, what, deadline_s=20)

    async def state_is(self, state: str | None) -> WorkerRecord:
        def it_is() -> bool:
            record = self.record()
            return (record.state if record else None) == state

        await self.until(it_is, f"state {state}")
        return self.record() or WorkerRecord(*NAMES, "aggregated", 0)

    async def answers(self, count: int) -> None:
        """Wait until the engine was asked so often again."""
        asked = self.engine.asked
        await self.until(lambda: self.engine.asked >= asked + count, "the engine is asked")

    def received(self, kind: type[Any]) -> list[Any]:
        events = [CODEC.decode(subject, payload) for subject, payload in self.bus.published]
        return [event for event in events if isinstance(event, kind)]

    async def drain(self, incarnation: int) -> DrainReply:
        command = DrainCommand("d", *NAMES, "aggregated", incarnation, 1, 60_000)
        reply = await self.bus.request(SUBJECTS.drain(*NAMES), encode(command), 5)
        return msgspec.json.decode(reply, type=DrainReply)

    async def ended(self) -> None:
        assert self.running is not None
        await self.running


@asynccontextmanager
async def rig(
    series: dict[str, float | str] | bytes | None = None, path: str = "/metrics", **options: Any
) -> AsyncIterator[SidecarRig]:
    async with asyncio.timeout(60), engine_server() as engine:
        engine.path = path
        engine.body = vllm() if series is None else series
        made = SidecarRig(engine, **options)
        made.start()
        try:
            yield made
        finally:
            if made.running is not None and not made.running.done():
                made.sidecar.stop()
                made.sidecar.stop()
                await made.running


def scenario(run: Callable[[], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        await run()

    asyncio.run(wrapped())
