"""Ports in virtual time for tests that run on asyncio; virtual time advances with real time."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from loadline.ports import (
    CommitResult,
    Compare,
    FrameHandler,
    FramesHandler,
    RequestHandler,
    StoreChange,
    StoreEntry,
    StoreSnapshot,
    Unsubscribe,
    Write,
)
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.store import StoreConnection
from loadline.sim.world.tasks import VirtualTask
from loadline.sim.world.timeline import Timeline

T = TypeVar("T")

STEP_S = 0.001


class Driver:
    """Driver that advances a timeline while the event loop of its first caller runs."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._driving: asyncio.Task[None] | None = None

    async def until_done(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in virtual time and return its result; on cancellation it is killed."""
        if self._driving is None or self._driving.done():
            self._driving = asyncio.create_task(self._drive())
        ended = asyncio.Event()
        done: list[T] = []
        raised: list[Exception] = []

        async def run() -> None:
            try:
                done.append(await coroutine)
            except Exception as error:  # noqa: BLE001 - raised again in the awaiting task
                raised.append(error)

        task = VirtualTask(run(), ended.set)
        try:
            await ended.wait()
        finally:
            task.kill()
        if raised:
            raise raised[0]
        return done[0]

    async def _drive(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            self.timeline.run_until(self.timeline.now_ms + STEP_S * 1_000.0)


class DrivenStore:
    """``ports.Store``."""

    def __init__(self, driver: Driver, port: StoreConnection) -> None:
        self._driver, self._port = driver, port

    async def grant(self, ttl_s: int) -> int:
        return await self._driver.until_done(self._port.grant(ttl_s))

    async def keep_alive(self, lease_id: int) -> int:
        return await self._driver.until_done(self._port.keep_alive(lease_id))

    async def revoke(self, lease_id: int) -> None:
        await self._driver.until_done(self._port.revoke(lease_id))

    async def get(self, key: str) -> StoreEntry | None:
        return await self._driver.until_done(self._port.get(key))

    async def read(self, prefix: str) -> StoreSnapshot:
        return await self._driver.until_done(self._port.read(prefix))

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        return await self._driver.until_done(self._port.commit(compares, writes))

    async def follow(
        self,
        prefix: str,
        on_snapshot: Callable[[StoreSnapshot], None],
        on_changes: Callable[[list[StoreChange]], None],
        on_connection: Callable[[bool], None],
    ) -> None:
        await self._driver.until_done(self._port.follow(prefix, on_snapshot, on_changes, on_connection))

    async def close(self) -> None:
        await self._driver.until_done(self._port.close())


class DrivenBus:
    """``ports.Bus``."""

    def __init__(self, driver: Driver, port: BusConnection) -> None:
        self._driver, self._port = driver, port

    @property
    def connected(self) -> bool:
        return self._port.connected

    async def connect(self, on_connection: Callable[[bool], None]) -> None:
        await self._driver.until_done(self._port.connect(on_connection))

    async def subscribe(self, subject: str, offer: FrameHandler) -> Unsubscribe:
        return await self._driver.until_done(self._port.subscribe(subject, offer))

    async def subscribe_batches(self, subject: str, offer: FramesHandler) -> Unsubscribe:
        return await self._driver.until_done(self._port.subscribe_batches(subject, offer))

    async def answer(self, subject: str, answer: RequestHandler, *, concurrent_max: int = 1) -> Unsubscribe:
        return await self._driver.until_done(self._port.answer(subject, answer, concurrent_max=concurrent_max))

    async def serve(
        self,
        name: str,
        version: str,
        endpoints: Mapping[str, tuple[str, RequestHandler]],
    ) -> None:
        await self._driver.until_done(self._port.serve(name, version, endpoints))

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        await self._driver.until_done(self._port.publish(subject, payload, headers))

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        return await self._driver.until_done(self._port.request(subject, payload, timeout_s))

    async def close(self) -> None:
        await self._driver.until_done(self._port.close())
