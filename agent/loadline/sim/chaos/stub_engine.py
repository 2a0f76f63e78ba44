"""Stub engine for thousands of simulated hours: its load is given from outside, and requests only take time.

The load is the pool's demand, divided among the serving workers. A request gets a token every 50 ms, regardless of
the batch.
"""

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.sim.engine import EngineEvent, EngineKnobs, Request, SimulatedEngine
from loadline.sim.profiles import LinearProfile

TOKEN_MS: Final = 50.0
_BLOCKS: Final = 1_000
_ANONYMOUS_REQUESTS: Final = 10
"""Anonymous requests of a fully busy worker."""
_TOKENS_MODULO: Final = 100  # tokens of anonymous requests change with time, so that reports differ
_TIMING: Final = LinearProfile(10.0, 1.0, 10.0, 0.01)


class WorkShare(Struct, frozen=True):
    """Share of a pool's work on one worker."""

    busy: float
    """Load of each serving worker, as a fraction of its capacity; above 1 it is overloaded."""
    waiting: int
    """Requests waiting at this worker."""


class RunObserver(Protocol):
    """Observer of the requests that run in an engine."""

    def started(self, request: Request) -> None:
        """Record the start of a request."""
        ...

    def stopped(self, request: Request) -> None:
        """Record the end of a request."""
        ...


class _RunningRequest(Struct):
    request: Request
    since_ms: float

    @property
    def ends_ms(self) -> float:
        return self.since_ms + (self.request.osl_tokens - self.request.generated_tokens) * TOKEN_MS

    def generated(self, now_ms: float) -> int:
        generated = self.request.generated_tokens + int((now_ms - self.since_ms) / TOKEN_MS)
        return min(generated, self.request.osl_tokens)


class StubEngine(SimulatedEngine):
    """Engine whose load is given from outside.

    Args:
        role: Role of its worker.
        share: Returns its share of the work.
        observer: Observes its requests.
    """

    def __init__(self, role: Role, share: Callable[[], WorkShare], observer: RunObserver) -> None:
        super().__init__(EngineKnobs(role, _BLOCKS), _TIMING)
        self._work_share = share
        self._observer = observer
        self._busy = True
        self._empty_at_ms: float | None = None
        self._running: dict[str, _RunningRequest] = {}

    @property
    def held(self) -> list[str]:
        """Ids of its requests, and ``work`` for anonymous requests until ``empty_at``."""
        return ["work", *self._running] if self._busy else list(self._running)

    def empty_at(self, at_ms: float) -> None:
        """Finish the work other than its requests at this time; no new work arrives."""
        self._empty_at_ms = at_ms

    def kv_tokens(self, request_id: str) -> int:
        """Return the KV tokens of a request; 0 when it is not inside."""
        one = self._running.get(request_id)
        return one.request.isl_tokens + one.generated(self._now_ms) if one else 0

    def fits(self, kv_tokens: int, kv_tokens_max: int) -> bool:
        """Return True: requests take no cache, whose reported usage is that of anonymous requests."""
        del kv_tokens, kv_tokens_max
        return True

    def submit(self, request: Request, now_ms: float) -> None:
        """Start a request at once."""
        self._now_ms = max(self._now_ms, now_ms)
        self._running[request.request_id] = _RunningRequest(request, self._now_ms)
        self._observer.started(request)

    def abort(self, request_id: str, now_ms: float) -> bool:
        """Drop a request at once; False when it is not inside."""
        self._now_ms = max(self._now_ms, now_ms)
        one = self._running.pop(request_id, None)
        if one is not None:
            self._observer.stopped(one.request)
        return one is not None

    def detach(self, request_id: str, now_ms: float) -> Request | None:
        """Remove a request at once, for submission to another engine; None when it is not inside or at its end."""
        one = self._running.get(request_id)
        generated = one.generated(now_ms) if one else 0
        if one is None or generated == one.request.osl_tokens or not self.abort(request_id, now_ms):
            return None
        self._events.append(EngineEvent("detached", request_id, self._now_ms))
        return replace(one.request, generated_tokens=generated)

    def advance(self, now_ms: float) -> list[EngineEvent]:
        """Finish requests whose time is over, and the drain if it is due."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._empty_at_ms is not None and now_ms >= self._empty_at_ms:
            self._busy, self._empty_at_ms = False, None
        ended_ids = [one.request.request_id for one in self._running.values() if one.ends_ms <= now_ms]
        for name in ended_ids:
            self.abort(name, now_ms)
        events, self._events = self._events, []
        return [*events, *(EngineEvent("finished", name, now_ms) for name in ended_ids)]

    def next_event_ms(self) -> float | None:
        """Return the end of the next request or of the drain."""
        times = [one.ends_ms for one in self._running.values()]
        return min(times if self._empty_at_ms is None else [*times, self._empty_at_ms], default=None)

    def migratable_requests(self) -> list[MigratableRequest]:
        """Return its requests in the order of submission."""
        return [
            MigratableRequest(name, one.request.isl_tokens, one.generated(self._now_ms), hops=one.request.migrations)
            for name, one in self._running.items()
        ]

    def load(self) -> WorkerSample:
        """Return a load sample: its share of the work, and its requests."""
        share, requests = self._work_share(), len(self._running)
        full = min(1.0, share.busy)
        others = int(_ANONYMOUS_REQUESTS * full)
        return WorkerSample(
            sequence=0,
            timestamp_ms=0,
            kv_blocks_used=int(_BLOCKS * full),
            kv_blocks_total=_BLOCKS,
            waiting_requests=share.waiting,
            running_requests=others + requests,
            decode_tokens=sum(self.kv_tokens(name) for name in self._running)
            + int(others * self._now_ms) % _TOKENS_MODULO,
            decode_batch_requests=requests,
            waiting_to_decode_requests=0,
            unmovable_requests=others + share.waiting,
        )
