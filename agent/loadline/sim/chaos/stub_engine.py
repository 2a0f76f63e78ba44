"""An engine of which thousands of hours are played: how busy it is comes from outside, and its requests only take time.

Its load is the demand of its pool, shared among the workers that serve. A request has a token every 50 ms, whoever else
is there.
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
_OTHERS: Final = 10
"""Requests of which nothing is known but that a busy worker has so many."""
_CHANGING: Final = 100
_TIMING: Final = LinearProfile(10.0, 1.0, 10.0, 0.01)


class WorkShare(Struct, frozen=True):
    """What one worker has of the work of its pool."""

    busy: float
    """Work for each worker that serves, in workers' worth: above 1 they cannot do it all."""
    waiting: int
    """Requests that wait at it."""


class RunObserver(Protocol):
    """Whoever is told which requests run in an engine."""

    def started(self, request: Request) -> None:
        """It runs here now."""
        ...

    def stopped(self, request: Request) -> None:
        """It does so no more."""
        ...


class _RunningRequest(Struct):
    request: Request
    since_ms: float

    @property
    def ends_ms(self) -> float:
        return self.since_ms + (self.request.osl_tokens - self.request.generated_tokens) * TOKEN_MS

    def generated(self, now_ms: float) -> int:
        made = self.request.generated_tokens + int((now_ms - self.since_ms) / TOKEN_MS)
        return min(made, self.request.osl_tokens)


class StubEngine(SimulatedEngine):
    """Stands in for an engine.

    Args:
        role: Its worker's role.
        share: Gives its share of the work.
        watch: Is told of its requests.
    """

    def __init__(self, role: Role, share: Callable[[], WorkShare], watch: RunObserver) -> None:
        super().__init__(EngineKnobs(role, _BLOCKS), _TIMING)
        self._work_share = share
        self._observer = watch
        self._busy = True
        self._empty_at_ms: float | None = None
        self._running: dict[str, _RunningRequest] = {}

    @property
    def held(self) -> list[str]:
        """Its requests, and something more until it has wound down."""
        return ["work", *self._running] if self._busy else list(self._running)

    def empty_at(self, empty_ms: float) -> None:
        """No new work comes: it is empty then, but for its requests."""
        self._empty_at_ms = empty_ms

    def kv_tokens(self, request_id: str) -> int:
        """Tokens of a request; 0 when it is not inside."""
        one = self._running.get(request_id)
        return one.request.isl_tokens + one.generated(self._now_ms) if one else 0

    def fits(self, kv_tokens: int, kv_tokens_max: int) -> bool:
        """Always: how full it is only stands for the work of others."""
        del kv_tokens, kv_tokens_max
        return True

    def submit(self, request: Request, now_ms: float) -> None:
        """It runs at once."""
        self._now_ms = max(self._now_ms, now_ms)
        self._running[request.request_id] = _RunningRequest(request, self._now_ms)
        self._observer.started(request)

    def abort(self, request_id: str, now_ms: float) -> bool:
        """Drop a request at once. False when it is not inside."""
        self._now_ms = max(self._now_ms, now_ms)
        one = self._running.pop(request_id, None)
        if one is not None:
            self._observer.stopped(one.request)
        return one is not None

    def detach(self, request_id: str, now_ms: float) -> Request | None:
        """Take a request out at once, to submit it to another engine; None when it is not inside, or is at its end."""
        one = self._running.get(request_id)
        generated = one.generated(now_ms) if one else 0
        if one is None or generated == one.request.osl_tokens or not self.abort(request_id, now_ms):
            return None
        self._events.append(EngineEvent("detached", request_id, self._now_ms))
        return replace(one.request, generated_tokens=generated)

    def advance(self, now_ms: float) -> list[EngineEvent]:
        """Requests end when their time is over, and so does a drain."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._empty_at_ms is not None and now_ms >= self._empty_at_ms:
            self._busy, self._empty_at_ms = False, None
        over = [one.request.request_id for one in self._running.values() if one.ends_ms <= now_ms]
        for name in over:
            self.abort(name, now_ms)
        taken, self._events = self._events, []
        return [*taken, *(EngineEvent("finished", name, now_ms) for name in over)]

    def next_event_ms(self) -> float | None:
        """When the next request ends, or it is empty."""
        times = [one.ends_ms for one in self._running.values()]
        return min(times if self._empty_at_ms is None else [*times, self._empty_at_ms], default=None)

    def migratable_requests(self) -> list[MigratableRequest]:
        """Its requests, in the order in which they came."""
        return [
            MigratableRequest(name, one.request.isl_tokens, one.generated(self._now_ms), hops=one.request.migrations)
            for name, one in self._running.items()
        ]

    def load(self) -> WorkerSample:
        """Its share of the work, and what its requests take."""
        share, requests = self._work_share(), len(self._running)
        full = min(1.0, share.busy)
        others = int(_OTHERS * full)
        return WorkerSample(
            sequence=0,
            timestamp_ms=0,
            kv_blocks_used=int(_BLOCKS * full),
            kv_blocks_total=_BLOCKS,
            waiting_requests=share.waiting,
            running_requests=others + requests,
            decode_tokens=sum(self.kv_tokens(name) for name in self._running) + int(others * self._now_ms) % _CHANGING,
            decode_batch_requests=requests,
            waiting_to_decode_requests=0,
            unmovable_requests=others + share.waiting,
        )
