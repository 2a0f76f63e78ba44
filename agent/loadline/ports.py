"""Ports of the agent: Protocols that the adapters implement, and tests implement in memory."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery
from loadline.core.vocabulary.history import DecisionRecord
from loadline.core.vocabulary.status import ModelStatus


class Clock(Protocol):
    """A clock that never goes back."""

    def now_ms(self) -> int:
        """Return Unix time in ms: that of the start plus the time since, suspend included.

        A step of the wall clock does not change it.
        """
        ...


FrameHandler = Callable[[str, bytes], None]
"""Callback for a frame: subject and payload. Must return at once."""

Frames = list[tuple[str, bytes]]
"""Frames in the order of their arrival: subject and payload of each."""

FramesHandler = Callable[[Frames], None]
"""Callback for frames that were read together. Must return at once."""

RequestHandler = Callable[[bytes], Awaitable[bytes | None]]
"""Callback for a request: takes its payload and returns the reply, or None to leave the reply to another agent."""

Unsubscribe = Callable[[], Awaitable[None]]
"""Ends a subscription: once it was called, nothing is delivered, and requests that wait get no answer."""


class Bus(Protocol):
    """A message bus with at-most-once delivery."""

    @property
    def connected(self) -> bool:
        """True while the bus is connected."""
        ...

    async def connect(self, on_connection: Callable[[bool], None]) -> None:
        """Connect, reconnect for ever in the background, and report every change of the connection."""
        ...

    async def subscribe(self, subject: str, offer: FrameHandler) -> Unsubscribe:
        """Pass every frame on the subject (wildcards allowed) to ``offer``. Survives reconnects."""
        ...

    async def subscribe_batches(self, subject: str, offer: FramesHandler) -> Unsubscribe:
        """Pass the frames on the subject to ``offer``, of any size, and together those that were read together."""
        ...

    async def answer(self, subject: str, answer: RequestHandler, *, concurrent_max: int = 1) -> Unsubscribe:
        """Answer requests on the subject, those of one requester in the order of their arrival.

        Args:
            subject: Subject of the requests.
            answer: Handler of each request.
            concurrent_max: Maximum number of requests that are answered at a time; the next ones wait.
        """
        ...

    async def serve(
        self,
        name: str,
        version: str,
        endpoints: Mapping[str, tuple[str, RequestHandler]],
    ) -> None:
        """Offer a NATS micro service of queries: endpoint name -> (subject, answer).

        Queries only read: under load they are answered late, or not at all.
        """
        ...

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Publish now, or fail without queueing.

        Raises:
            BusUnavailable: The bus is not connected; the frame is not queued.
        """
        ...

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Publish and wait for one reply.

        Raises:
            BusUnavailable: The bus is not connected, the subject has no subscriber, or no reply came in time.
        """
        ...

    async def close(self) -> None:
        """Flush pending publishes, then disconnect."""
        ...


class StoreEntry(Struct, frozen=True):
    """A key and its value, as stored; a value above the limit of its key is left out."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int = 0
    bytes_left_out: int = 0
    """Size of a value that was left out; ``value`` is then empty."""


class StoreSnapshot(Struct, frozen=True):
    """Entries under a prefix at one revision, in key order."""

    entries: list[StoreEntry]
    revision: int


class StoreChange(Struct, frozen=True):
    """A write (``entry``) or removal (None) of a key at a revision."""

    key: str
    entry: StoreEntry | None
    revision: int


class Compare(Struct, frozen=True):
    """A condition: the key's create revision, mod revision or lease is ``number`` (0: no such key, or no lease)."""

    key: str
    target: Literal["create", "mod", "lease"]
    number: int


class Write(Struct, frozen=True):
    """A write in a transaction; a value of None removes the key."""

    key: str
    value: bytes | None
    lease_id: int = 0


class CommitResult(Struct, frozen=True):
    """Result of a transaction, and the store's revision after it."""

    committed: bool
    revision: int


class Store(Protocol):
    """A linearizable key-value store with leases. Every call ends within a bounded time.

    Every method raises ``StoreUnavailable`` when the call certainly did not happen and ``StoreDenied`` when the store
    refuses the credentials; writes raise ``OutcomeUnknown`` when they may or may not have happened.
    """

    async def grant(self, ttl_s: int) -> int:
        """Grant a lease and return its id."""
        ...

    async def keep_alive(self, lease_id: int) -> int:
        """Renew a lease and return its TTL in s; 0 when the lease is lost."""
        ...

    async def revoke(self, lease_id: int) -> None:
        """Revoke a lease, which removes its keys; a lease that no longer exists is no error."""
        ...

    async def get(self, key: str) -> StoreEntry | None:
        """Return the entry of a key, with a linearizable read; None: there is no such key."""
        ...

    async def read(self, prefix: str) -> StoreSnapshot:
        """Return all entries under a prefix, with a linearizable read."""
        ...

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        """Apply all writes if all comparisons hold, or none."""
        ...

    async def follow(
        self,
        prefix: str,
        on_snapshot: Callable[[StoreSnapshot], None],
        on_changes: Callable[[list[StoreChange]], None],
        on_connection: Callable[[bool], None],
    ) -> None:
        """Watch a prefix until cancelled: a snapshot, then every change in order; a new snapshot after any gap.

        ``on_connection`` is called whenever the connection to the store is established or lost.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class Journal(Protocol):
    """An append-only record of turns. Never blocks and never raises: records it cannot write count as lost."""

    @property
    def wants_snapshot(self) -> bool:
        """True when a new segment is due: the next append must be a snapshot."""
        ...

    @property
    def lost(self) -> int:
        """Number of records that could not be written."""
        ...

    def append(self, record: bytes, *, at_once: bool = False) -> None:
        """Append one record (no newline inside); ``at_once`` if it must not wait for others to be written with."""
        ...

    def begin(self, snapshot: Callable[[bool], bytes]) -> None:
        """Begin a new segment with the result of ``snapshot``, called with True if it continues the previous segment.

        ``snapshot`` may be called later, from another thread. If the previous segment loses records, the segment that
        continues it is given up too.
        """
        ...

    def close(self) -> None:
        """Write pending records and close."""
        ...


class DecisionTraces(Protocol):
    """An exporter of traces. Never blocks and never raises: what it cannot send is lost."""

    def export(self, record: DecisionRecord) -> None:
        """Export the trace of a decision that has ended."""
        ...

    async def close(self) -> None:
        """Send what is queued, within a few seconds."""
        ...


class SampleFiles(Protocol):
    """Files of samples. Never raises: samples that it cannot write count as lost."""

    @property
    def lost(self) -> int:
        """Number of scalars that could not be written."""
        ...

    async def write(self, models: Iterable[ModelStatus]) -> None:
        """Write one sample of each model."""
        ...


class Fitter(Protocol):
    """Runs predictors and solvers outside the event loop."""

    async def fit(self, query: ForecastQuery, deadline_s: float) -> Forecast | None:
        """Return the forecast, or None if the series is empty. Never raises.

        Queries run one at a time; the deadline starts when this one does. A query that is late or fails returns the
        last value with the reason.
        """
        ...

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
        """Return the best allocation found within the time limit, or None if none was found. Never raises."""
        ...

    async def close(self) -> None:
        """Stop at once; pending calls return the last value, or no allocation."""
        ...
