"""Simulated bus and store without latency: calls complete before they return, on any event loop."""

import asyncio
from collections.abc import Callable

from loadline.core.vocabulary.events import AnyEvent
from loadline.ports import StoreChange, StoreSnapshot
from loadline.runtime.effects import EffectRunner
from loadline.runtime.problem_log import Log
from loadline.sim.world.agent import NullLog
from loadline.sim.world.bus import BusConnection, VirtualBus
from loadline.sim.world.fitter import InlineFitter
from loadline.sim.world.store import StoreConnection, VirtualStore
from loadline.sim.world.tasks import VirtualTask
from loadline.sim.world.timeline import Timeline
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects

KEYS = Keys("default")


class MemoryBus(BusConnection):
    """Bus of one process, which receives its own messages; ``connected`` may be set. Handlers must not wait."""

    def __init__(self) -> None:
        super().__init__(VirtualBus(Timeline(), latency_ms=0.0))
        self.published: list[tuple[str, bytes]] = []

    def publish_now(self, subject: str, payload: bytes) -> None:
        if self.connected:
            self.published.append((subject, payload))
        super().publish_now(subject, payload)


class MemoryStore(StoreConnection):
    """Store of one process, whose leases end only when they are revoked; ``server`` is the other side."""

    def __init__(self) -> None:
        self.server = VirtualStore(Timeline(), latency_ms=0.0)
        super().__init__(self.server)


class FollowedStore(MemoryStore):
    """Store whose watch waits on the loop of asyncio."""

    def __init__(self) -> None:
        super().__init__()
        self.server._connections.append(self)  # so that it hears of its own writes

    async def follow(
        self,
        prefix: str,
        on_snapshot: Callable[[StoreSnapshot], None],
        on_changes: Callable[[list[StoreChange]], None],
        on_connection: Callable[[bool], None],
    ) -> None:
        watch = VirtualTask(super().follow(prefix, on_snapshot, on_changes, on_connection))
        try:
            await asyncio.Event().wait()
        finally:
            watch.kill()
            self._watches.clear()


def effect_runner(
    put: Callable[[AnyEvent], None],
    store: MemoryStore | None = None,
    fitter: InlineFitter | None = None,
    log: Log | None = None,
) -> EffectRunner:
    """Return a runner of the effects of agent ``a``, which passes their results to ``put``."""
    return EffectRunner(
        agent="a",
        bus=MemoryBus(),
        store=store or MemoryStore(),
        fitter=fitter or InlineFitter(),
        subjects=Subjects("loadline"),
        keys=KEYS,
        put=put,
        log=log or NullLog(),
    )
