"""The simulated bus and store without any delay: what is called is done before the call returns, on any event loop."""

from loadline.sim.world.bus import BusConnection, VirtualBus
from loadline.sim.world.store import StoreConnection, VirtualStore
from loadline.sim.world.timeline import Timeline


class MemoryBus(BusConnection):
    """A bus with one process on it, which hears itself; ``connected`` may be set. Answers must not wait."""

    def __init__(self) -> None:
        super().__init__(VirtualBus(Timeline(), latency_ms=0.0))
        self.published: list[tuple[str, bytes]] = []

    def publish_now(self, subject: str, payload: bytes) -> None:
        if self.connected:
            self.published.append((subject, payload))
        super().publish_now(subject, payload)


class MemoryStore(StoreConnection):
    """A store with one process at it. Leases end only when they are revoked; ``server`` is the other end."""

    def __init__(self) -> None:
        self.server = VirtualStore(Timeline(), latency_ms=0.0)
        super().__init__(self.server)
