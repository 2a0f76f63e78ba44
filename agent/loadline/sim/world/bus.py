"""Message bus in virtual time: at-most-once delivery with latency and configurable faults."""

from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from loadline.errors import BusUnavailable, NoSubscriber
from loadline.ports import FrameHandler, FramesHandler, RequestHandler, Unsubscribe
from loadline.sim.world.tasks import VirtualFuture, VirtualTask
from loadline.sim.world.timeline import Timeline

# Times of a client to detect the loss of the server and to reconnect: 5 s between pings, two may be missed.
_NOTICED_MS: Final = 10_000.0
_BACK_MS: Final = 500.0


class BusFaults(Struct, frozen=True):
    """Fault probabilities for each frame and each of its receivers."""

    loss: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    late_ms_max: float = 2_000.0
    """Maximum extra delay of a late frame, so that others overtake it."""


class _Subscription(Struct, eq=False):
    pattern: str
    connection: "BusConnection"
    offer: FrameHandler

    def matches(self, subject: str) -> bool:
        """Return True if a subject matches; ``*`` stands for one token, ``>`` for all that follow."""
        if "*" not in self.pattern:
            return subject == self.pattern or (self.pattern.endswith(">") and subject.startswith(self.pattern[:-1]))
        wanted, tokens = self.pattern.split("."), subject.split(".")
        if wanted[-1] == ">" and len(tokens) >= len(wanted):
            wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1]
        same = (mine in {"*", token} for mine, token in zip(wanted, tokens, strict=False))
        return len(wanted) == len(tokens) and all(same)


class _Responder:
    """Answers of one connection to the requests on a subject.

    Args:
        answer: Handler of each request.
        concurrent_max: Maximum number of requests that are answered at a time.
    """

    def __init__(self, answer: RequestHandler, concurrent_max: int) -> None:
        self.answer = answer
        self.ended = False
        """True once the subscription has ended: no reply is sent any more."""
        self._concurrent_max = concurrent_max
        self._running = 0
        self._waiting: deque[Callable[[], Coroutine[object, object, None]]] = deque()

    def offer(self, reply: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a coroutine that replies to a request, once fewer than the maximum run."""
        if self.ended:
            return
        self._waiting.append(reply)
        if self._running < self._concurrent_max:
            VirtualTask(self._run())

    def end(self) -> None:
        """Answer no request any more."""
        self.ended = True
        self._waiting.clear()

    async def _run(self) -> None:
        self._running += 1
        try:
            while self._waiting:
                await self._waiting.popleft()()
        finally:
            self._running -= 1


class VirtualBus:
    """The server; processes use it through connections.

    Args:
        timeline: Virtual time.
        latency_ms: Latency of delivery; 0: before ``publish`` returns.
        faults: Current faults; may be set at any time.
        purpose: Name of its random stream, one for each bus.
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
        self._answers: dict[str, dict[BusConnection, _Responder]] = {}

    def connection(self) -> "BusConnection":
        """Return a new connection for one process."""
        return BusConnection(self)

    def attach(self, port: "BusConnection") -> None:
        """Register a connection."""
        self._connections.append(port)

    def set_available(self, *, available: bool) -> None:
        """Stop or start the server."""
        self.available = available
        for port in self._connections:
            port.connection_changed()

    def subscribe(self, port: "BusConnection", pattern: str, offer: FrameHandler) -> Unsubscribe:
        """Deliver matching subjects to a connection; a pattern may end in ``>``."""
        subscription = _Subscription(pattern, port, offer)
        self._subscriptions.append(subscription)
        self._routes.clear()

        async def unsubscribe() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                self._routes.clear()

        return unsubscribe

    def answer(
        self, port: "BusConnection", subject: str, answer: RequestHandler, *, concurrent_max: int = 1
    ) -> Unsubscribe:
        """Let this connection answer requests on a subject, at most ``concurrent_max`` at a time."""
        responder = self._answers.setdefault(subject, {})[port] = _Responder(answer, concurrent_max)

        async def unsubscribe() -> None:
            responder.end()
            held = self._answers.get(subject, {})
            if held.get(port) is responder:
                del held[port]
                if not held:
                    del self._answers[subject]

        return unsubscribe

    def responders(self, subject: str) -> "dict[BusConnection, _Responder]":
        """Return all responders of a subject; the first answer counts."""
        return self._answers.get(subject, {})

    def detach(self, port: "BusConnection") -> None:
        """Remove a connection."""
        if port in self._connections:
            self._connections.remove(port)
        self._subscriptions = [one for one in self._subscriptions if one.connection is not port]
        self._routes.clear()
        for subject, held in list(self._answers.items()):
            if port in held:
                held.pop(port).end()
            if not held:
                del self._answers[subject]

    def publish(self, sender: "BusConnection", subject: str, payload: bytes) -> None:
        """Deliver a frame to all subscribers."""
        route = self._routes.get(subject)
        if route is None:
            route = tuple(one for one in self._subscriptions if one.matches(subject))
            self._routes[subject] = route
        for one in route:
            self.deliver(sender, one.connection, partial(one.offer, subject, payload))

    def deliver(self, sender: "BusConnection", receiver: "BusConnection", deliver: Callable[[], object]) -> None:
        """Deliver from one connection to another under the current faults: lost, once or twice, late."""
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
        """True if the process considers itself connected; it detects changes late."""
        self.partitioned = False
        """True if the process is partitioned from the server."""
        self._bus = bus
        self._on_connection: Callable[[bool], None] = lambda _connected: None
        bus.attach(self)

    def set_partitioned(self, *, partitioned: bool) -> None:
        """Partition or reconnect the process. It detects this late; frames until then are lost."""
        if partitioned != self.partitioned:
            self.partitioned = partitioned
            self.connection_changed()

    @property
    def reachable(self) -> bool:
        """True if frames are exchanged with the server."""
        return self._bus.available and not self.partitioned

    def connection_changed(self) -> None:
        """Notify the process late of a change of reachability."""
        reachable = self.reachable

        def notice() -> None:
            if self.reachable == reachable and self.connected != reachable:
                self.connected = reachable
                self._on_connection(reachable)

        self._bus.timeline.call_later(_BACK_MS if reachable else self._bus.rng.uniform(0.0, _NOTICED_MS), notice)

    def publish_now(self, subject: str, payload: bytes) -> None:
        """Publish without waiting.

        Raises:
            BusUnavailable: The bus is unreachable; the frame is not queued.
        """
        if not self.connected:
            raise BusUnavailable("the bus is disconnected")
        self._bus.publish(self, subject, payload)

    async def connect(self, on_connection: Callable[[bool], None]) -> None:
        """Connect; report every change of the connection."""
        self._on_connection = on_connection
        on_connection(self.connected)

    async def subscribe(self, subject: str, offer: FrameHandler) -> Unsubscribe:
        """Pass every frame on a subject (which may end in ``>``) to ``offer``."""
        return self._bus.subscribe(self, subject, offer)

    async def subscribe_batches(self, subject: str, offer: FramesHandler) -> Unsubscribe:
        """Pass the frames on a subject (which may end in ``>``) to ``offer``, each by itself."""
        return await self.subscribe(subject, lambda of, payload: offer([(of, payload)]))

    async def answer(self, subject: str, answer: RequestHandler, *, concurrent_max: int = 1) -> Unsubscribe:
        """Answer requests on the subject, at most ``concurrent_max`` at a time."""
        return self._bus.answer(self, subject, answer, concurrent_max=concurrent_max)

    async def serve(
        self,
        name: str,
        version: str,
        endpoints: Mapping[str, tuple[str, RequestHandler]],
    ) -> None:
        """Answer requests on the subjects of a micro service, without its discovery."""
        del name, version
        for subject, answer in endpoints.values():
            self._bus.answer(self, subject, answer)

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Publish now or not at all; headers are left out.

        Raises:
            BusUnavailable: The bus is unreachable; the frame is not queued.
        """
        del headers
        self.publish_now(subject, payload)

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Publish and wait for one reply.

        Raises:
            BusUnavailable: The bus is unreachable, there is no subscriber, or no answer came in time.
        """
        promise: VirtualFuture[bytes] = VirtualFuture()
        bus = self._bus
        found = bus.responders(subject)
        if not self.connected or not found:
            raise BusUnavailable("the bus is disconnected") if found else NoSubscriber(f"nobody listens on {subject}")

        async def reply(receiver: BusConnection, responder: _Responder) -> None:
            answered = await responder.answer(payload)
            if answered is not None and not responder.ended:
                bus.deliver(receiver, self, partial(promise.set_result, answered))

        for receiver, responder in found.items():
            bus.deliver(self, receiver, partial(responder.offer, partial(reply, receiver, responder)))
        if not promise.done:
            late = BusUnavailable(f"nobody answered on {subject} within {timeout_s} s")
            bus.timeline.call_later(timeout_s * 1_000, partial(promise.set_exception, late))
        return await promise

    async def close(self) -> None:
        """Close the connection."""
        self.partitioned = True
        self.connected = False
        self._bus.detach(self)
