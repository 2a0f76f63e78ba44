"""What the agent needs from outside, as Protocols.

Adapters implement them on the real thing; tests have some in memory.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery


class Clock(Protocol):
    """Time that only goes forward."""

    def now_ms(self) -> int:
        """Unix time in ms at start plus the time since, suspend included: a jump of the wall clock does not move it."""
        ...


FrameHandler = Callable[[str, bytes], None]
"""Takes a frame: subject and payload. Must return at once."""

RequestHandler = Callable[[bytes], Awaitable[bytes | None]]
"""Takes a request's payload and gives the reply's, or None to leave the answer to another agent."""


class Bus(Protocol):
    """Publish and subscribe, at most once."""

    @property
    def connected(self) -> bool:
        """Whether the bus can be reached now."""
        ...

    async def connect(self, on_connection: Callable[[bool], None]) -> None:
        """Connect, and keep connecting for ever in the background; says at every change whether it is connected."""
        ...

    async def subscribe(self, subject: str, offer: FrameHandler) -> None:
        """Hand every frame on the subject (wildcards allowed) to ``offer``. Survives reconnects."""
        ...

    async def answer(self, subject: str, answer: RequestHandler) -> None:
        """Answer requests on the subject."""
        ...

    async def serve(self, name: str, version: str, endpoints: Mapping[str, tuple[str, RequestHandler]]) -> None:
        """Offer a NATS micro service: endpoint name -> (subject, answer)."""
        ...

    async def publish(self, subject: str, payload: bytes) -> None:
        """Publish now or not at all.

        Raises:
            BusUnavailable: The bus is away; the frame was not queued.
        """
        ...

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Publish and wait for one reply.

        Raises:
            BusUnavailable: The bus is away, nobody listens, or nobody answered in time.
        """
        ...

    async def close(self) -> None:
        """Deliver what was published, then disconnect."""
        ...


class StoreEntry(Struct, frozen=True):
    """A key as the store holds it."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int = 0


class StoreSnapshot(Struct, frozen=True):
    """All entries under a prefix, at one revision, in key order."""

    entries: list[StoreEntry]
    revision: int


class StoreChange(Struct, frozen=True):
    """A key was written (``entry``) or removed (None) at this revision."""

    key: str
    entry: StoreEntry | None
    revision: int


class Compare(Struct, frozen=True):
    """A condition: the key's create or mod revision equals ``revision`` (0: there is no such key)."""

    key: str
    target: Literal["create", "mod"]
    revision: int


class Write(Struct, frozen=True):
    """A write in a transaction; a value of None removes the key."""

    key: str
    value: bytes | None
    lease_id: int = 0


class CommitResult(Struct, frozen=True):
    """What became of a transaction, and the store's revision after it."""

    committed: bool
    revision: int


class Store(Protocol):
    """A linearizable key-value store with leases. Every call ends within a bounded time.

    Every method raises ``StoreUnavailable`` when the store was certainly not reached and ``StoreDenied`` when it
    refuses the credentials; writes raise ``OutcomeUnknown`` when they may or may not have happened.
    """

    async def grant(self, ttl_s: int) -> int:
        """A new lease's id."""
        ...

    async def keep_alive(self, lease_id: int) -> int:
        """Extend a lease; gives its TTL in s, 0 when it is lost."""
        ...

    async def revoke(self, lease_id: int) -> None:
        """End a lease and remove its keys; a lease that is gone already is no error."""
        ...

    async def read(self, prefix: str) -> StoreSnapshot:
        """Everything under a prefix, linearizably."""
        ...

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        """Do all writes if all comparisons hold, or none."""
        ...

    async def follow(
        self,
        prefix: str,
        on_snapshot: Callable[[StoreSnapshot], None],
        on_changes: Callable[[list[StoreChange]], None],
        on_connection: Callable[[bool], None],
    ) -> None:
        """Follow a prefix until cancelled: a snapshot, then every change in order; a new snapshot after any gap.

        ``on_connection`` is told at every change whether the store can be reached.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class Journal(Protocol):
    """An append-only record of turns. Never blocks and never raises: when it cannot write it counts what is missing."""

    @property
    def wants_snapshot(self) -> bool:
        """True when a new segment is due: the next append must be a snapshot."""
        ...

    @property
    def lost(self) -> int:
        """Records that could not be written."""
        ...

    def append(self, record: bytes) -> None:
        """Append one record (no newline inside)."""
        ...

    def begin(self, snapshot: Callable[[bool], bytes]) -> None:
        """Begin a new segment with what ``snapshot`` gives, told whether the segment goes on where the last one ended.

        It may be called later, from another thread. A segment that goes on never outlives a loss in the one before it.
        """
        ...

    def close(self) -> None:
        """Write out what is pending."""
        ...


class Fitter(Protocol):
    """Asks predictors and solvers, where they hold up nobody."""

    async def fit(self, question: ForecastQuery, deadline_s: float) -> Forecast | None:
        """The forecast; None where nothing is known of the series. It raises nothing.

        Questions are taken in turn; the deadline counts from when this one is. The last value stands in, with the
        reason, for what was late or failed.
        """
        ...

    async def solve(self, problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
        """The best allocation that is found in so much time; None where none was found. It raises nothing."""
        ...

    async def close(self) -> None:
        """Stop at once: whoever waits gets the last value, or no allocation."""
        ...
