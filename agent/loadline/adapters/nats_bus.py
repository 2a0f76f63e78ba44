"""NATS as ``ports.Bus``, on nats-py. Delivery is at most once; nothing buffered before an outage is sent after it.

Every connection is a new client of the library that must not reconnect by itself. Credentials are read again for each
connection, and one that the server closed for good (because its user expired, for example) is replaced like any other.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping

import nats.errors
from nats import micro
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.micro.request import Request

from loadline.adapters.backoff import backoff
from loadline.adapters.logs import bounded
from loadline.adapters.nats_client import NatsClient
from loadline.adapters.nats_logins import check_credentials, login_options, tls_context, tls_only
from loadline.adapters.outage_reasons import OutageReasons
from loadline.errors import BusUnavailable, NoSubscriber
from loadline.ports import FrameHandler, FramesHandler, RequestHandler, Unsubscribe
from loadline.servers import NatsKnobs

_log = bounded("nats")

_CONNECT_S = 2.0
# The third unanswered ping reveals a frozen server or a cut link, after 6 to 9 s.
_PING_S = 3
_PINGS_MAX = 2
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0
_CANCEL_AGAIN_S = 0.2
_DENIED = "Permit it to this user of nats-server; `loadline doctor` lists what an agent's lacks."
_REMEDY = "Start the server, or correct nats.servers or the login in the configuration; commands have --nats too"
# Limit on bytes waiting for a server that does not read.
_UNSENT_BYTES_MAX = 8 * 2**20
# Lower limit for replies, so that replies to queries leave buffer space for decisions and commands.
_UNSENT_REPLIES_MAX = 2**20
# Rate limit for all replies together: writing 8 MiB occupies the event loop for about 5 ms.
_REPLY_BYTES_PER_S = 8 * 2**20

_Listen = Callable[[NatsClient], Awaitable[Subscription | None]]
_Endpoints = Mapping[str, tuple[str, RequestHandler]]


class NatsBus:
    """A connection to NATS that reconnects for ever.

    Args:
        knobs: Servers and credentials. List all members of a cluster.
        name: Name in the server's list of connections.
        on_oversized: Called with the subject of every frame dropped for exceeding ``frame_bytes_max``.
        read_pause_s: Pause after each read of at most 32 KiB, for a connection whose input can wait.

    Raises:
        ConfigError: A file for TLS or the login cannot be used, a user has no password file, or credentials need a
            missing package.
    """

    def __init__(
        self,
        knobs: NatsKnobs,
        *,
        name: str,
        on_oversized: Callable[[str], None] = lambda _subject: None,
        read_pause_s: float = 0.0,
    ) -> None:
        check_credentials(knobs)
        tls_context(knobs)  # checks the files, which are read again for each connection
        self._knobs = knobs
        self._name = name
        self._on_oversized = on_oversized
        self._read_pause_s = read_pause_s
        # Held while a subscription is added and while all are created again on a new connection, so that none is lost.
        self._subscriptions_lock = asyncio.Lock()
        self._subscriptions: dict[_Listen, Subscription | None] = {}
        """Subscriptions, with that of the newest connection."""
        self._client: NatsClient | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reply_budget_used_until_s = 0.0
        self.last_error = ""
        """Text of the newest error of the connection; empty after a good connect."""
        self._reasons = OutageReasons()
        self.denied = 0
        """Publishes and subscriptions that the server denied, which it reports asynchronously."""
        self.slow_consumer_drops = 0
        """Frames that nats-py dropped because a subscription did not keep up."""
        self.requests_dropped = 0
        """Requests that were dropped: too many waited, or the reply subject is no inbox."""
        self.replies_dropped = 0
        """Replies that were dropped because too much waited to be sent."""

    @property
    def connected(self) -> bool:
        """True while the bus is connected."""
        return self._client is not None and self._client.is_connected

    async def connect(self, on_connection: Callable[[bool], None]) -> None:
        """Connect in the background for ever; return after the first attempt, successful or not."""
        attempted = asyncio.Event()
        self._connecting = asyncio.create_task(self._reconnect(on_connection, attempted.set), name="nats-reconnect")
        await attempted.wait()

    async def subscribe(self, subject: str, offer: FrameHandler) -> Unsubscribe:
        """Pass every frame on the subject to ``offer``; if connected, the server has subscribed when this returns."""
        bytes_max, on_oversized = self._knobs.frame_bytes_max, self._on_oversized

        def offer_unless_oversized(frame_subject: str, data: bytes) -> None:
            if len(data) <= bytes_max:
                offer(frame_subject, data)
            else:
                on_oversized(frame_subject)

        return await self._subscribe(lambda client: client.subscribe_frames(subject, offer_unless_oversized))

    async def subscribe_batches(self, subject: str, offer: FramesHandler) -> Unsubscribe:
        """Pass the frames on the subject to ``offer``, of any size, and together those that were read together."""
        return await self._subscribe(lambda client: client.subscribe_batches(subject, offer))

    async def answer(self, subject: str, handler: RequestHandler, *, concurrent_max: int = 1) -> Unsubscribe:
        """Answer requests on the subject, at most ``concurrent_max`` at a time."""

        async def respond(message: Msg) -> None:
            reply = await self._compute_reply(message.subject, message.data, handler)
            if reply is not None and message.reply:
                await self._send_reply(message.subject, reply, message.respond)

        return await self._subscribe(lambda client: client.subscribe_commands(subject, respond, concurrent_max))

    async def serve(
        self,
        name: str,
        version: str,
        endpoints: Mapping[str, tuple[str, RequestHandler]],
    ) -> None:
        """Offer a NATS micro service of queries; see ``QUERY_LIMITS``.

        Every agent receives every request; only an agent whose handler returns a reply sends one.

        Args:
            name: Name of the service.
            version: Version of the service.
            endpoints: Subject and handler of each endpoint, by name.
        """

        async def listen(client: NatsClient) -> None:
            await self._serve(client, name, version, endpoints)

        await self._subscribe(listen)

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Publish now, or fail without queueing.

        Raises:
            BusUnavailable: NATS is not connected, too many bytes wait to be sent, or the payload is too large for it.
        """
        client = self._reachable()
        if client.unsent_bytes > _UNSENT_BYTES_MAX:
            raise BusUnavailable(f"the NATS server reads too slowly: {client.unsent_bytes} bytes wait to be sent")
        try:
            await client.publish(subject, payload, headers=None if headers is None else dict(headers))
        except nats.errors.Error as error:
            raise BusUnavailable(f"not published on {subject}: {_text(error)}") from error

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Publish and wait for one reply.

        Raises:
            NoSubscriber: The subject has no subscriber.
            BusUnavailable: NATS is not connected, there is no reply in time, or the reply is an error.
        """
        try:
            reply = await self._reachable().request_reply(subject, payload, timeout_s)
        except nats.errors.NoRespondersError as error:
            raise NoSubscriber(f"no subscriber on {subject}: {_text(error)}") from error
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"no reply on {subject}: {_text(error)}") from error
        problem = (reply.headers or {}).get("Nats-Service-Error")
        if problem is not None:
            raise BusUnavailable(f"error reply on {subject}: {problem}")
        data: bytes = reply.data
        return data

    async def request_all(self, subject: str, payload: bytes, replies_max: int, timeout_s: float) -> list[bytes]:
        """Publish and return the replies of several programs: at most ``replies_max``, and those that come in time.

        Raises:
            BusUnavailable: NATS is not connected.
        """
        client, replies, complete = self._reachable(), list[bytes](), asyncio.Event()
        inbox = client.new_inbox()

        def take(_subject: str, data: bytes) -> None:
            replies.append(data)
            if len(replies) >= replies_max:
                complete.set()

        try:
            subscription = await client.subscribe_frames(inbox, take)
            await client.publish(subject, payload, reply=inbox)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await complete.wait()
            await client.unsubscribe(subscription)
        except nats.errors.Error as error:
            raise BusUnavailable(f"not published on {subject}: {_text(error)}") from error
        return replies

    async def close(self) -> None:
        """Flush pending publishes, then disconnect; within 2 s."""
        if self._connecting is not None:
            await _cancel(self._connecting)
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                await client.flush_all()
            await client.close_or_abort()

    async def _reconnect(self, on_connection: Callable[[bool], None], attempted: Callable[[], None]) -> None:
        waits = backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            client = NatsClient(
                tls_only=tls_only(self._knobs), read_pause_s=self._read_pause_s, on_dropped=self._count_dropped
            )
            try:
                await self._open(client)
            except asyncio.CancelledError:
                await client.close_or_abort()
                raise
            except Exception as error:  # noqa: BLE001 - retried, as a broken credentials file
                self._note(error)
                self._log_failure()
                attempted()
            else:
                waits = backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
                on_connection(True)  # noqa: FBT003 - the port's callback
                attempted()
                await client.wait_closed()
                self._client = None
                on_connection(False)  # noqa: FBT003
            await client.close_or_abort()
            await asyncio.sleep(next(waits))

    async def _open(self, client: NatsClient) -> None:
        knobs = self._knobs
        options = login_options(knobs, tls_context(knobs))
        # Each server is tried twice.
        async with asyncio.timeout((2 * len(knobs.servers) + 1) * _CONNECT_S):
            await client.connect(
                name=self._name,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=_RETRY_FIRST_S,
                connect_timeout=_CONNECT_S,
                ping_interval=_PING_S,
                max_outstanding_pings=_PINGS_MAX,
                pending_size=0,
                error_cb=self._on_error,
                disconnected_cb=client.on_closed,
                closed_cb=client.on_closed,
                **options,
            )
            async with self._subscriptions_lock:
                for listen in self._subscriptions:
                    self._subscriptions[listen] = await listen(client)
                await client.flush_all()
                self._client, self.last_error = client, ""
                if self._reasons.end():
                    _log.info("nats_connected", client=self._name)

    async def _subscribe(self, listen: _Listen) -> Unsubscribe:
        async with self._subscriptions_lock:
            self._subscriptions[listen] = None
            try:
                if self._client is not None:
                    with contextlib.suppress(nats.errors.Error):  # it was lost; the next one subscribes again
                        self._subscriptions[listen] = await listen(self._client)
                        await self._client.flush_all()
            except asyncio.CancelledError:
                # Its caller gets no function that ends it: it would answer, on every connection, for a client that has
                # never started.
                await self._end_subscription(listen)
                raise

        async def unsubscribe() -> None:
            async with self._subscriptions_lock:
                await self._end_subscription(listen)

        return unsubscribe

    async def _end_subscription(self, listen: _Listen) -> None:
        subscription = self._subscriptions.pop(listen, None)
        if self._client is not None and subscription is not None:
            with contextlib.suppress(nats.errors.Error):  # the connection was lost, and the subscription too
                await self._client.unsubscribe(subscription)

    async def _serve(self, client: NatsClient, name: str, version: str, endpoints: _Endpoints) -> None:
        # The library puts all services into one queue group, which passes a request to any one of them. With a group
        # for each agent, every agent receives it.
        own_queue_group = secrets.token_hex(8)
        service = await micro.add_service(
            client, name=name, version=version, queue_group=own_queue_group, metadata={"agent": self._name}
        )
        for endpoint, (subject, handler) in endpoints.items():
            await service.add_endpoint(name=endpoint, subject=subject, handler=self._service_handler(handler))

    def _service_handler(self, handler: RequestHandler) -> Callable[[Request], Awaitable[None]]:
        async def handle(request: Request) -> None:
            reply = await self._compute_reply(request.subject, request.data, handler)
            if reply is not None:
                await self._send_reply(request.subject, reply, request.respond)

        return handle

    async def _send_reply(self, subject: str, reply: bytes, respond: Callable[[bytes], Awaitable[None]]) -> None:
        client = self._client
        if client is None or client.unsent_bytes > _UNSENT_REPLIES_MAX:
            self.replies_dropped += 1
            return
        try:
            await respond(reply)
        except nats.errors.Error as error:
            _log.warning("not_answered", subject=subject, detail=_text(error))
        now_s = asyncio.get_running_loop().time()
        start_s = max(now_s, self._reply_budget_used_until_s)
        self._reply_budget_used_until_s = start_s + len(reply) / _REPLY_BYTES_PER_S
        await asyncio.sleep(self._reply_budget_used_until_s - now_s)  # delays the next answer on this subject

    def _count_dropped(self, requests: int) -> None:
        self.requests_dropped += requests

    async def _compute_reply(self, subject: str, data: bytes, handler: RequestHandler) -> bytes | None:
        if len(data) > self._knobs.frame_bytes_max:
            self._on_oversized(subject)
            return None
        try:
            return await handler(data)
        except Exception as error:  # noqa: BLE001 - a failing request must not stop the service, and the client must not see internal errors
            _log.error("answer_failed", subject=subject, detail=repr(error))
            return None

    async def _on_error(self, error: Exception) -> None:
        denied = "permissions violation" in str(error).lower()
        self.denied += denied
        self.slow_consumer_drops += isinstance(error, nats.errors.SlowConsumerError)
        self._note(error)
        if denied or self._client is not None:  # others end the attempt to connect, which is logged
            remedy = {"remedy": _DENIED} if denied else {}
            _log.warning("nats_error", client=self._name, detail=_text(error), **remedy)

    def _note(self, error: Exception) -> None:
        if not (self.last_error and isinstance(error, nats.errors.NoServersError)):  # the earlier one has the cause
            self.last_error = _text(error)

    def _log_failure(self) -> None:
        """Log why there is no connection, each reason once until there is one."""
        if not self._reasons.is_new(self.last_error):
            return
        servers = ", ".join(self._knobs.servers)
        detail = f"no connection to NATS at {servers}: {self.last_error}. It is tried again until there is one."
        _log.warning("nats_unreachable", client=self._name, detail=detail, remedy=_REMEDY)

    def _reachable(self) -> NatsClient:
        client = self._client
        if client is None or not client.is_connected:
            raise BusUnavailable(f"not connected to NATS: {self.last_error or 'no connection yet'}")
        return client


async def _cancel(task: "asyncio.Task[None]") -> None:
    """Cancel a task, again if it keeps running.

    The library waits with asyncio.wait_for, which in Python 3.11 swallows a cancellation that arrives with the result:
    an agent that was stopped while it connected then never ended.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
