"""A bus in virtual time: at most once, with a delay, and as bad as it is told to be."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from loadline.errors import BusUnavailable
from loadline.ports import FrameHandler, RequestHandler
from loadline.sim.world.tasks import VirtualFuture, VirtualTask
from loadline.sim.world.timeline import Timeline

# What a client takes to notice that the server is gone, and to come back: 5 s between pings, two may be missed.
_NOTICED_MS: Final = 10_000.0
_BACK_MS: Final = 500.0


class BusFaults(Struct, frozen=True):
    """How bad the bus is: probabilities for each frame and each of its receivers."""

    loss: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    late_ms_max: float = 2_000.0
    """A late frame comes up to so much later, so others overtake it."""


class _Subscription(Struct, eq=False):
    pattern: str
    connection: "BusConnection"
    offer: FrameHandler

    def matches(self, subject: str) -> bool:
        """Whether it is the subject; ``*`` stands for any token, ``>`` for all that follow."""
        if "*" not in self.pattern:
            return subject == self.pattern or (self.pattern.endswith(">") and subject.startswith(self.pattern[:-1]))
        wanted, tokens = self.pattern.split("."), subject.split(".")
        if wanted[-1] == ">" and len(tokens) >= len(wanted):
            wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1]
        same = (mine in {"*", token} for mine, token in zip(wanted, tokens, strict=False))
        return len(wanted) == len(tokens) and all(same)


class VirtualBus:
    """The server. Processes use it through a port of their own.

    Args:
        timeline: Virtual time.
        latency_ms: From a publisher to a receiver; 0: before ``publish`` returns.
        faults: How bad it is now; may be set at any time.
        purpose: Where its rng comes from; each of several buses has its own.
    """

    def __init__(
        self, timeline: Timeline, latency_ms: float = 0.5, faults: BusFaults | None = None, purpose: str = "bus"
    ) -> None:
        self.timeline = timeline
        self.latency_ms = latency_ms
        self.faults = faults or BusFaults()
        self.rng = timeline.rng(purpose)
        self.available = True
        self._connections: list[BusConnection] = []
        self._subscriptions: list[_Subscription] = []
        self._routes: dict[str, tuple[_Subscription, ...]] = {}
        self._answers: dict[str, dict[BusConnection, RequestHandler]] = {}

    def connection(self) -> "BusConnection":
        """A connection for one process."""
        return BusConnection(self)

    def attach(self, port: "BusConnection") -> None:
        """A process is there."""
        self._connections.append(port)

    def set_available(self, *, available: bool) -> None:
        """Stop or start it."""
        self.available = available
        for port in self._connections:
            port.connection_changed()

    def subscribe(self, port: "BusConnection", pattern: str, offer: FrameHandler) -> None:
        """Deliver what matches: a subject, or all that begin with what stands before ``>``."""
        self._subscriptions.append(_Subscription(pattern, port, offer))
        self._routes.clear()

    def answer(self, port: "BusConnection", subject: str, answer: RequestHandler) -> None:
        """Give requests on the subject to this process too."""
        self._answers.setdefault(subject, {})[port] = answer

    def responders(self, subject: str) -> "dict[BusConnection, RequestHandler]":
        """Who may answer requests on the subject: the first answer counts."""
        return self._answers.get(subject, {})

    def detach(self, port: "BusConnection") -> None:
        """A process is gone."""
        if port in self._connections:
            self._connections.remove(port)
        self._subscriptions = [one for one in self._subscriptions if one.connection is not port]
        self._routes.clear()
        for subject in [subject for subject, held in self._answers.items() if held.pop(port, None) and not held]:
            del self._answers[subject]

    def publish(self, sender: "BusConnection", subject: str, payload: bytes) -> None:
        """Carry a frame to everyone who listens."""
        route = self._routes.get(subject)
        if route is None:
            route = tuple(one for one in self._subscriptions if one.matches(subject))
            self._routes[subject] = route
        for one in route:
            self.deliver(sender, one.connection, partial(one.offer, subject, payload))

    def deliver(self, sender: "BusConnection", receiver: "BusConnection", deliver: Callable[[], object]) -> None:
        """From one process to another: not at all, once or twice, in time or late."""
        if not sender.reachable:
            return
        if self.latency_ms == 0.0:
            deliver()
            return
        faults, rng = self.faults, self.rng
        delay_ms = self.latency_ms

        def arrive() -> None:
            if receiver.reachable:
                deliver()

        if faults.loss and rng.random() < faults.loss:
            return
        if faults.late and rng.random() < faults.late:
            delay_ms += rng.uniform(0.0, faults.late_ms_max)
        self.timeline.call_later(delay_ms, arrive)
        if faults.duplicate and rng.random() < faults.duplicate:
            self.timeline.call_later(delay_ms + rng.uniform(0.0, faults.late_ms_max), arrive)


class BusConnection:
    """``ports.Bus`` for one process."""

    def __init__(self, bus: VirtualBus) -> None:
        self.connected = bus.available
        """What the process believes."""
        self.partitioned = False
        """Whether nothing gets through."""
        self._bus = bus
        self._on_connection: Callable[[bool], None] = lambda _connected: None
        bus.attach(self)

    def set_partitioned(self, *, partitioned: bool) -> None:
        """Cut the process off, or let it back. It notices after a while; what it sends until then is lost."""
        if partitioned != self.partitioned:
            self.partitioned = partitioned
            self.connection_changed()

    @property
    def reachable(self) -> bool:
        """Whether frames arrive and get away."""
        return self._bus.available and not self.partitioned

    def connection_changed(self) -> None:
        """The bus or the way to it went or came back; the process notices after a while."""
        reachable = self.reachable

        def notice() -> None:
            if self.reachable == reachable and self.connected != reachable:
                self.connected = reachable
                self._on_connection(reachable)

        self._bus.timeline.call_later(_BACK_MS if reachable else self._bus.rng.uniform(0.0, _NOTICED_MS), notice)

    def publish_now(self, subject: str, payload: bytes) -> None:
        """What ``publish`` does, for those who do not wait.

        Raises:
            BusUnavailable: The bus is away; the frame was not queued.
        """
        if not self.connected:
            raise BusUnavailable("the bus is away")
        self._bus.publish(self, subject, payload)

    async def connect(self, on_connection: Callable[[bool], None]) -> None:
        """Connect; says at every change whether it is connected."""
        self._on_connection = on_connection
        on_connection(self.connected)

    async def subscribe(self, subject: str, offer: FrameHandler) -> None:
        """Hand every frame on the subject (or all that begin with what stands before ``>``) to ``offer``."""
        self._bus.subscribe(self, subject, offer)

    async def answer(self, subject: str, answer: RequestHandler) -> None:
        """Answer requests on the subject."""
        self._bus.answer(self, subject, answer)

    async def serve(self, name: str, version: str, endpoints: Mapping[str, tuple[str, RequestHandler]]) -> None:
        """Answer requests on the subjects of a micro service; it is not announced as one."""
        del name, version
        for subject, answer in endpoints.values():
            self._bus.answer(self, subject, answer)

    async def publish(self, subject: str, payload: bytes) -> None:
        """Publish now or not at all.

        Raises:
            BusUnavailable: The bus is away; the frame was not queued.
        """
        self.publish_now(subject, payload)

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Publish and wait for one reply.

        Raises:
            BusUnavailable: The bus is away, nobody listens, or nobody answered in time.
        """
        bus, promise = self._bus, VirtualFuture[bytes]()
        found = bus.responders(subject)
        if not self.connected or not found:
            raise BusUnavailable("the bus is away" if found else f"nobody listens on {subject}")

        async def reply(receiver: BusConnection, answer: RequestHandler) -> None:
            answered = await answer(payload)
            if answered is not None:
                bus.deliver(receiver, self, partial(promise.set_result, answered))

        for receiver, answer in found.items():
            bus.deliver(self, receiver, partial(lambda *both: VirtualTask(reply(*both)), receiver, answer))
        if not promise.done:
            late = BusUnavailable(f"nobody answered on {subject} within {timeout_s} s")
            bus.timeline.call_later(timeout_s * 1_000, partial(promise.set_exception, late))
        return await promise

    async def close(self) -> None:
        """Hear and say nothing any more."""
        self.partitioned = True
        self.connected = False
        self._bus.detach(self)
