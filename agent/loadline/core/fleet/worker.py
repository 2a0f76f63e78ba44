"""State of one worker, and its last reported load."""

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.status import WorkerStatus

MICRO = 1_000_000
"""Unit of KV usage: millionths, since integer totals do not drift."""

_ORDINAL: Final = re.compile(r"[0-9]+$")

Availability = Literal["ready", "starting", "out"]


class WorkerLoad(Struct, omit_defaults=True, gc=False):
    """Load of one worker, or the total over the counted workers of a pool."""

    kv_reporting: int = 0
    """Workers that report KV usage; for the others it is unknown, not 0."""
    queue_reporting: int = 0
    """Workers that report waiting requests."""
    kv_micro: int = 0
    """KV usage in millionths."""
    waiting: int = 0
    waiting_while_running: int = 0
    """Waiting requests of ranks that have running requests."""
    running: int = 0

    def replace(self, before: "WorkerLoad", after: "WorkerLoad") -> None:
        """Subtract one load and add another. Most fields are equal most of the time and are skipped."""
        if before.kv_reporting != after.kv_reporting:
            self.kv_reporting += after.kv_reporting - before.kv_reporting
        if before.queue_reporting != after.queue_reporting:
            self.queue_reporting += after.queue_reporting - before.queue_reporting
        if before.kv_micro != after.kv_micro:
            self.kv_micro += after.kv_micro - before.kv_micro
        if before.waiting != after.waiting:
            self.waiting += after.waiting - before.waiting
        if before.waiting_while_running != after.waiting_while_running:
            self.waiting_while_running += after.waiting_while_running - before.waiting_while_running
        if before.running != after.running:
            self.running += after.running - before.running


NO_LOAD: Final = WorkerLoad()
"""Load of a worker that is not counted."""


class WorkerState(Struct, omit_defaults=True, gc=False):
    """A worker: its record, the newest sample of every rank, and its part in the totals of the pool."""

    record: WorkerRecord
    lease_id: int
    registered_at_ms: int
    latest: list[WorkerSample | None]
    """Newest sample by rank; None before the first."""
    create_revision: int = 0
    """Revision of the store in which its key was created."""
    registered: bool = True
    draining: bool = False
    drain_held: bool = False
    """True while its drain waits for a scaler to accept the decision that names it; until then it serves."""
    drain_ended: bool = False
    """True if its drain has ended; the worker is removed with its key."""
    drain_handed_over: bool = False
    """True if another agent continues the drain; this agent resumes it if it leads again."""
    unschedulable: bool = False
    """True if a rank reports that it must not receive work."""
    overdue: bool = False
    """True if it is starting and past the start deadline, as of the last ``Pool.expire_silent``."""
    seen_at_ms: int = -1
    """Time of its last report, by the agent's clock; -1: none."""
    load: WorkerLoad = field(default_factory=WorkerLoad)
    """Load that is included in the totals of the pool while ``counted``."""
    counted: bool = False
    """True if the totals of the pool include it."""
    counted_as: Availability = "out"
    """Availability in the counts of the pool."""
    counted_from: str = ""
    """Home pool that counts it as moved; empty: none does."""

    @property
    def availability(self) -> Availability:
        """State in the counts of the pool: ready, starting, or out of them."""
        return "out" if self.unschedulable else self.phase

    @property
    def phase(self) -> Availability:
        """State for its scaler: ready, starting, or out if it drains or is gone; it may be unschedulable."""
        if self.draining or not self.registered or self.record.state == "draining":
            return "out"
        return self.record.state

    @property
    def moved_from(self) -> str:
        """Home pool while it serves in another one; empty: it serves at home, or it drains."""
        record = self.record
        draining = self.draining or record.state == "draining"
        return "" if draining or record.home == record.pool else record.home

    @property
    def ordinal(self) -> int | None:
        """Number at the end of its name; None if there is none."""
        found = _ORDINAL.search(self.record.worker)
        return int(found[0]) if found else None

    def copy(self) -> "WorkerState":
        """Return a copy. The parts that it shares with this object are immutable."""
        return msgspec.structs.replace(self, latest=list(self.latest))

    def status(self, now: int) -> WorkerStatus:
        """Return the status for people."""
        load = self.measure_load()
        return WorkerStatus(
            worker=self.record.worker,
            state=self._status_name(),
            age_ms=None if self.seen_at_ms < 0 else now - self.seen_at_ms,
            kv_usage_ratio=load.kv_micro / MICRO,
            waiting_requests=load.waiting,
            running_requests=load.running,
            kv_reported=load.kv_reporting > 0,
        )

    def _status_name(self) -> str:
        if self.draining:
            return "draining"
        return "unschedulable" if self.unschedulable else self.record.state

    def reports_unschedulable(self) -> bool:
        """Return True if a rank reports that it must not receive work."""
        for sample in self.latest:  # noqa: SIM110 - any() with a generator takes three times as long
            if sample is not None and not sample.schedulable:
                return True
        return False

    def measure_load(self) -> WorkerLoad:
        """Compute the load from the newest samples of all ranks: mean KV usage, sums of requests."""
        ranks = kv_sum_micro = waiting = waiting_while_running = running = 0
        kv_known = queue_known = 1
        record_total = self.record.kv_blocks_total
        for sample in self.latest:
            if sample is None:
                continue
            ranks += 1
            queued = sample.waiting_requests
            if queued is None:
                queue_known = queued = 0
            if sample.running_requests:
                running += sample.running_requests
                waiting_while_running += queued
            waiting += queued
            used = sample.kv_blocks_used
            total = None if used is None else sample.kv_blocks_total or record_total
            if used is not None and total:
                kv_micro = used * MICRO // total
                kv_sum_micro += kv_micro if kv_micro < MICRO else MICRO  # noqa: FURB136 - min() takes 3x
            elif sample.kv_usage_ratio is not None:
                kv_sum_micro += int(sample.kv_usage_ratio * MICRO)
            else:
                kv_known = 0
        if not ranks:
            return WorkerLoad()
        return WorkerLoad(kv_known, queue_known, kv_sum_micro // ranks, waiting, waiting_while_running, running)


def staying(workers: Mapping[str, WorkerState]) -> list[WorkerState]:
    """Return the workers that neither drain nor are gone, unschedulable ones included; O(workers)."""
    return [worker for worker in workers.values() if worker.phase != "out"]
