"""Workers of one model that a gateway routes to, and the requests that wait for one."""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from loadline.client.frontend import FrontendClient
from loadline.client.resources import wait_at_most
from loadline.core.vocabulary.events import LoadReported
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.gateway.errors import ApiError

# A worker that could not be reached gets no requests for this time; its lease ends after 10 s if it died.
_UNREACHABLE_S: Final = 2.0
_OTHER_MODEL_S: Final = 5.0
"""Time without requests after an answer of another model's engine: the entry of a worker that was killed, and whose
address that one has got, expires after 10 s, and a request is sent three times."""
_PAUSE_S: Final = 1.0
"""Time after which a request is sent again to a worker that failed it, if there is no other."""
_RETRY_AFTER_S: Final = 10


class Backend(Struct, eq=False):
    """One worker at one address, over all of its incarnations: its open requests survive a new sidecar."""

    record: WorkerRecord
    in_flight: int = 0
    """Requests that this gateway has there."""
    engine_requests: int = 0
    """Requests at the engine as of its last report, those of other gateways included."""
    unreachable_until_s: float = 0.0
    refuses_ids: set[str] = set()
    """Endpoints that refuse to stream token IDs."""
    is_registered: bool = True
    """False: its sidecar has ended, or was cut off from etcd for longer than its lease."""
    context_tokens: int | None = None
    """Longest context of its engine; None: not asked yet, or unknown."""

    @property
    def is_away(self) -> bool:
        """True if its engine does not answer, or makes no progress, as its sidecar says."""
        return self.record.state == "starting"

    @property
    def key(self) -> tuple[str, str, str]:
        """Pool, worker and address."""
        return self.record.pool, self.record.worker, self.record.base_url

    def register(self, record: WorkerRecord) -> None:
        """Apply a record of the worker; a new incarnation may be another engine."""
        if record.incarnation != self.record.incarnation:
            self.engine_requests, self.unreachable_until_s, self.context_tokens = 0, 0.0, None
            self.refuses_ids.clear()
        self.record = record


class Backends:
    """Workers of one model.

    Args:
        model: The model.
        held_max: Maximum requests that wait for a worker.
        held_bytes_max: Maximum bytes of their bodies.
        frontend: Reporter of the model's traffic, which has the counts of requests.
    """

    def __init__(self, model: str, held_max: int, held_bytes_max: int, frontend: FrontendClient) -> None:
        self._model = model
        self._held_max = held_max
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._frontend = frontend
        self._backends: dict[tuple[str, str, str], Backend] = {}
        self._left: dict[tuple[str, str, str], Backend] = {}
        """Workers that are not registered and have requests."""
        self._changed = asyncio.Event()
        self._stopping_s: float | None = None
        """Time from which all waiting requests are refused; None: the gateway is not stopping."""

    @property
    def ready(self) -> list[Backend]:
        """Workers that take requests."""
        return [one for one in self._backends.values() if one.record.state == "ready"]

    def update(self, records: Iterable[WorkerRecord]) -> None:
        """Apply the registered workers.

        Only aggregated workers serve a whole request. One without an address cannot be reached.
        """
        known, found = self._left | self._backends, {}
        for record in records:
            if record.role == "aggregated" and record.base_url:
                fresh = Backend(record)
                backend = found[fresh.key] = known.get(fresh.key, fresh)
                backend.register(record)
        self._backends = found
        for key, one in (known | found).items():
            one.is_registered = key in found
        self._left = {key: one for key, one in known.items() if key not in found and one.in_flight}
        self._wake()

    def stop_holding(self, grace_s: float = 0.0) -> None:
        """Refuse the requests that wait for their first worker, and later ones, since the gateway is stopping.

        Args:
            grace_s: Time after which those are refused too that wait for another worker.
        """
        self._stopping_s = time.monotonic() + grace_s
        self._wake()

    def find(self, worker: str, incarnation: int) -> Backend | None:
        """Return the backend of a registered worker; None: there is none."""
        found = (one for one in self._backends.values() if one.record.worker == worker)
        return next((one for one in found if one.record.incarnation == incarnation), None)

    def apply_load(self, report: LoadReported) -> None:
        """Apply a load report of a worker."""
        backend = self.find(report.worker, report.incarnation)
        if backend is not None and backend.record.pool == report.pool:
            backend.engine_requests = _requests(report.samples)

    def pick(self, now_s: float, avoided: Collection[Backend] = ()) -> Backend | None:
        """Return the worker with the fewest requests; one of ``avoided`` only if there is no other. None: no worker."""
        reachable = (one for one in self.ready if one.unreachable_until_s <= now_s)
        return min(
            reachable, key=lambda one: (one in avoided, one.in_flight, one.engine_requests, one.key), default=None
        )

    async def choose(
        self, deadline_s: float, body_bytes: int, avoided: Collection[Backend] = (), *, was_served: bool = False
    ) -> Backend:
        """Return a worker for a request, and wait for one if there is none.

        Args:
            deadline_s: Time of ``time.monotonic`` until which it waits, or tries those to avoid.
            body_bytes: Size of its body.
            avoided: Workers that are picked only if there is no other, after a pause.
            was_served: True if a worker had it before: then only its time is limited.

        Raises:
            ApiError: Too many requests or bytes wait already, or no worker came in time.
        """
        picked = self.pick(time.monotonic(), avoided)
        if picked in avoided:
            left_s = max(deadline_s - time.monotonic(), 0.0)  # the pause must end before it does
            await wait_at_most(self._changed, min(_PAUSE_S, left_s / 2.0))
            picked = self.pick(time.monotonic(), avoided)
        if picked is not None and (picked not in avoided or time.monotonic() < deadline_s):
            return picked
        with self._holding(body_bytes, was_served=was_served):
            return await self._wait(deadline_s, avoided, was_served=was_served)

    @contextmanager
    def using(self, backend: Backend) -> Iterator[None]:
        """Count a request at a worker."""
        backend.in_flight += 1
        self._frontend.in_flight += 1
        try:
            yield
        finally:
            backend.in_flight -= 1
            self._frontend.in_flight -= 1

    def mark_unreachable(self, backend: Backend) -> None:
        """Send no requests to a worker for a while, since nobody answers at its address."""
        backend.unreachable_until_s = time.monotonic() + _UNREACHABLE_S

    def mark_other_model(self, backend: Backend) -> None:
        """Send no requests to a worker for a while, since an engine of another model answers at its address."""
        backend.unreachable_until_s = time.monotonic() + _OTHER_MODEL_S

    def has_other(self, backend: Backend) -> bool:
        """Return True if another worker takes requests now."""
        return any(one is not backend and one.unreachable_until_s <= time.monotonic() for one in self.ready)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @contextmanager
    def _holding(self, body_bytes: int, *, was_served: bool) -> Iterator[None]:
        """Count a request that waits.

        Raises:
            ApiError: Too many requests or bytes wait already, and no worker had it before.
        """
        is_full = self._frontend.queued >= self._held_max or self._held_bytes + body_bytes > self._held_bytes_max
        if is_full and not was_served:
            waiting = f"{self._frontend.queued} requests of {self._held_bytes} bytes"
            text = f"{waiting} wait for a worker of {self._model!r} already"
            raise ApiError(503, text, code="no_worker", retry_after_s=_RETRY_AFTER_S)
        self._frontend.queued += 1
        self._held_bytes += body_bytes
        try:
            yield
        finally:
            self._frontend.queued -= 1
            self._held_bytes -= body_bytes

    async def _wait(self, deadline_s: float, avoided: Collection[Backend], *, was_served: bool) -> Backend:
        changed = self._changed  # a worker may register while the report is sent
        try:
            if self._frontend.queued == 1:
                await self._frontend.report_now()  # an agent starts the first worker on it
            async with asyncio.timeout(deadline_s - time.monotonic()):
                while not self._is_refused(was_served=was_served):
                    # A change wakes all; unreachable workers are tried again without one.
                    await wait_at_most(changed, _UNREACHABLE_S)
                    changed = self._changed
                    backend = self.pick(time.monotonic(), avoided)
                    if backend is not None:
                        return backend
        except TimeoutError:
            text = f"no worker of {self._model!r} became ready in time"
            raise ApiError(503, text, code="no_worker", retry_after_s=_RETRY_AFTER_S) from None
        else:
            raise ApiError(503, "the gateway ends", code="no_worker", retry_after_s=_RETRY_AFTER_S)

    def _is_refused(self, *, was_served: bool) -> bool:
        """Return True if a waiting request is refused because the gateway is stopping."""
        return self._stopping_s is not None and not (was_served and time.monotonic() < self._stopping_s)


def _requests(samples: Sequence[WorkerSample]) -> int:
    return sum((one.waiting_requests or 0) + (one.running_requests or 0) for one in samples)
