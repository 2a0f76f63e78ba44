"""An engine that only says how busy it is: thousands of hours are played, and what requests do matters to none of them.

Its load is the demand of its pool, shared among the workers that serve.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from loadline.core.observed import WorkerSample
from loadline.core.scalars import Role
from loadline.sim.engine import Engine, EngineEvent, EngineKnobs
from loadline.sim.profiles import LinearProfile

_BLOCKS: Final = 1_000
_TIMING: Final = LinearProfile(10.0, 1.0, 10.0, 0.01)


class Share(Struct, frozen=True):
    """What one worker has of the work of its pool."""

    busy: float
    """Work for each worker that serves, in workers' worth: above 1 they cannot do it all."""
    waiting: int
    """Requests that wait at it."""


class StandIn(Engine):
    """Stands in for an engine.

    Args:
        role: Its worker's role.
        share: Gives its share of the work.
    """

    def __init__(self, role: Role, share: Callable[[], Share]) -> None:
        super().__init__(EngineKnobs(role, _BLOCKS), _TIMING)
        self._share = share
        self._busy = True
        self._empty_ms: float | None = None

    @property
    def held(self) -> list[str]:
        """Something, until it has wound down."""
        return ["work"] if self._busy else []

    def wind_down(self, empty_ms: float) -> None:
        """No new work comes: it is empty then."""
        self._empty_ms = empty_ms

    def advance(self, now_ms: float) -> list[EngineEvent]:
        """Only a drain ever ends."""
        if self._empty_ms is not None and now_ms >= self._empty_ms:
            self._busy, self._empty_ms = False, None
        return []

    def next_event_ms(self) -> float | None:
        """When it is empty."""
        return self._empty_ms

    def load(self) -> WorkerSample:
        """Its share of the work."""
        share = self._share()
        full = min(1.0, share.busy)
        return WorkerSample(
            sequence=0,
            timestamp_ms=0,
            kv_blocks_used=int(_BLOCKS * full),
            kv_blocks_total=_BLOCKS,
            waiting_requests=share.waiting,
            running_requests=int(10 * full),
        )
