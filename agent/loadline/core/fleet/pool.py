"""One pool as we believe it to be: its workers, and exact integer sums over those that are ready and fresh."""

from bisect import bisect_left
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from loadline.core.engines.accelerator import UNNAMED_ACCELERATOR, AcceleratorKnobs
from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.schedule_windows import ScheduleKnobs
from loadline.core.fleet.worker import MICRO, NO_LOAD, WorkerLoad, WorkerState
from loadline.core.vocabulary.learned import START_UPS_MAX
from loadline.core.vocabulary.scalars import WORKERS_MAX, Name, Role
from loadline.core.vocabulary.status import PoolStatus

WORKERS_IN_STATUS = 64
"""Workers listed per pool in a status: 10,000 would make a message of 1 MB."""


class PoolKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Interchangeable workers: same model, role and accelerator arrangement."""

    name: Annotated[Name, Meta(description="Name of the pool, unique within its model.")]
    role: Annotated[Role, Meta(description="prefill, decode or aggregated.")]
    gpus_per_worker: Annotated[int, Meta(ge=1, le=4096, description="GPUs that one worker occupies.")] = 1
    replicas_min: Annotated[int, Meta(ge=0, le=WORKERS_MAX, description="Never fewer workers.")] = 1
    replicas_max: Annotated[int, Meta(ge=1, le=WORKERS_MAX, description="Never more workers: a hard cap on cost.")] = 8
    start_deadline_ms: Annotated[int, Meta(ge=1, description="A worker asked for counts as supply for this long.")] = (
        600_000
    )
    prefill_profile: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Prefill sweep of a profiler, NPZ or JSON, or the folder that holds it; from this file on.",
        ),
    ] = ""
    decode_profile: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Decode sweep of a profiler, NPZ or JSON, or the folder that holds it; from this file on.",
        ),
    ] = ""
    linear: Annotated[LinearKnobs | None, Meta(description="Six numbers in the place of the profiles.")] = None
    schedules: Annotated[
        tuple[ScheduleKnobs, ...], Meta(max_length=64, description="Windows in which it has a floor.")
    ] = ()
    accelerator: Annotated[
        str, Meta(max_length=128, description="One of [[accelerators]]: its cost and its type; empty: a GPU costs 1.")
    ] = ""


class WorkerCounts(Struct, frozen=True):
    """Workers of a pool by how near they are to serving."""

    ready: int
    starting: int
    pending: int
    """Asked for and not registered, within the start deadline."""
    missing: int
    """Asked for or starting, past the deadline: not supply."""

    @property
    def expected(self) -> int:
        """What may be counted on."""
        return self.ready + self.starting + self.pending


class ScheduleMinimum(Struct, frozen=True):
    """What the schedules of a pool ask for at the moment."""

    replicas: int = 0
    until_ms: int = -1
    """When the window ends in Unix ms; -1: there is none."""


NO_PROFILE: Final = EngineProfile()
NO_SCHEDULE_MINIMUM: Final = ScheduleMinimum()


class Pool(Struct):
    """One pool: its workers, and sums over those that are ready and fresh."""

    knobs: PoolKnobs
    workers: dict[str, WorkerState] = {}
    dirty: dict[str, None] = {}
    changed: dict[str, None] = {}
    """Workers of which the last ``settle`` heard something new."""
    engine: EngineProfile = NO_PROFILE
    """What its engines can do; as the knobs, it changes with the settings alone."""
    accelerator: AcceleratorKnobs = UNNAMED_ACCELERATOR
    """What its workers run on."""
    fresh: int = 0
    ready: int = 0
    starting: int = 0
    late: int = 0
    """Of those that are starting: past the start deadline at the last sweep."""
    load: WorkerLoad = field(default_factory=WorkerLoad)
    desired: int | None = None
    """Workers that there should be, by the last decision; None while that is unknown."""
    requested_at_ms: list[int] = []
    """When each worker that is not there was asked for, oldest first: as many as are missing from ``desired``."""
    schedule_minimum: ScheduleMinimum = NO_SCHEDULE_MINIMUM
    surplus_since_ms: int = -1
    """Since when there are more workers than ``desired``."""
    ready_changed_at_ms: int = -1
    target_reached_at_ms: int = -1
    """When the workers that were last asked for had all become ready."""
    start_ups_ms: list[int] = []
    """The last few times from a growth until all of its workers were ready; the longest is planned with."""
    scaled_up_at_ms: int = -1
    """When a decision last asked for more."""
    scaled_down_at_ms: int = -1
    rerequested_at_ms: int = -1
    """When what is missing was last asked for again."""
    removed_count: int = 0
    """Workers that it has ever lost."""
    changes: dict[str, int] = {}
    """Committed changes of the count by direction and first reason."""

    @property
    def name(self) -> str:
        """Name of the pool within its model."""
        return self.knobs.name

    @property
    def minimum(self) -> int:
        """Never fewer workers at the moment."""
        return max(self.knobs.replicas_min, self.schedule_minimum.replicas)

    @property
    def cost_per_hour(self) -> float:
        """What one worker costs an hour."""
        return self.accelerator.units(self.knobs.gpus_per_worker) * self.accelerator.cost_per_hour

    def apply_settings(self, knobs: PoolKnobs, engine: EngineProfile, accelerator: AcceleratorKnobs, now: int) -> None:
        """It is described otherwise from now on; its workers and what was decided of them stay."""
        self.knobs, self.engine, self.accelerator = knobs, engine, accelerator
        self.schedule_minimum = NO_SCHEDULE_MINIMUM  # until its schedules are looked at
        for worker in self.workers.values():  # a longer deadline takes back what was late
            if worker.late and now - worker.registered_at_ms <= knobs.start_deadline_ms:
                worker.late = False
                self.late -= 1

    def worker_counts(self, now: int) -> WorkerCounts:
        """The workers by how near they are to serving."""
        given_up = self._overdue_requests(now)
        return WorkerCounts(
            self.ready, self.starting - self.late, len(self.requested_at_ms) - given_up, self.late + given_up
        )

    def expected_workers(self, now: int) -> int:
        """Workers that may be counted on: those of ``supply``."""
        return self.ready + self.starting - self.late + len(self.requested_at_ms) - self._overdue_requests(now)

    def missing_workers(self, now: int) -> int:
        """Workers that were asked for or are starting, past the deadline: those of ``supply``."""
        return self.late + self._overdue_requests(now)

    def _overdue_requests(self, now: int) -> int:
        return bisect_left(self.requested_at_ms, now - self.knobs.start_deadline_ms) if self.requested_at_ms else 0

    def effective_target(self, now: int) -> int:
        """The count that stands: the decision's, or what there is while there is none."""
        return self.expected_workers(now) if self.desired is None else self.desired

    def needs_rerequest(self, now: int) -> bool:
        """Whether workers did not come in time, and were not asked for again within another start deadline."""
        asked_again = self.rerequested_at_ms >= 0 and now - self.rerequested_at_ms <= self.knobs.start_deadline_ms
        return self.missing_workers(now) > 0 and not asked_again

    def scaling_base(self, now: int) -> int:
        """The count from which to step: what stands, less what was asked for and did not come in time."""
        total = self.expected_workers(now)
        return total if self.desired is None else min(self.desired, total)

    def draining_workers(self) -> int:
        """Workers on their way out, which still occupy their GPUs."""
        return len(self.workers) - self.ready - self.starting

    def occupied_workers(self, now: int) -> int:
        """Workers whose GPUs are taken or promised: those that there are, will be, or must always be."""
        return (
            max(self.effective_target(now), self.ready + self.starting, self.knobs.replicas_min)
            + self.draining_workers()
        )

    def has_quorum(self, ratio: float) -> bool:
        """Whether enough of the ready workers are fresh to believe in a low load."""
        return self.ready == 0 or self.fresh >= self.ready * ratio

    def set_desired(self, replicas: int, now: int) -> None:
        """A decision about this pool stands."""
        if self.desired is not None and replicas > self.desired:
            self.scaled_up_at_ms = now
        elif self.desired is not None and replicas < self.desired:
            self.scaled_down_at_ms = now
        self.reset_desired(replicas, now)

    def start_up_ms(self, default_ms: int) -> int:
        """How long workers take to come: the longest of the last few times, or the default before the first."""
        return max(self.start_ups_ms, default=default_ms)

    def expected_ready_at_ms(self, now: int) -> int | None:
        """When the last of the pending workers should be ready; None where none is pending or none has ever come."""
        if not self.start_ups_ms or self._overdue_requests(now) == len(self.requested_at_ms):
            return None
        return self.requested_at_ms[-1] + max(self.start_ups_ms)

    def count_change(self, previous: int, replicas: int, reason: str) -> None:
        """Count a committed change of the count, if it is one."""
        if replicas != previous:
            what = f"{'up' if replicas > previous else 'down'}:{reason}"
            self.changes[what] = self.changes.get(what, 0) + 1

    def reset_desired(self, replicas: int, now: int) -> None:
        """So many workers are desired, without anybody having decided on a change."""
        self.desired = replicas
        self._update_requests(now)

    def _update_requests(self, now: int) -> None:
        """What there is against what is desired: who is missing, since when there are too many."""
        if self.desired is None:
            return
        there_are = self.ready + self.starting
        missing = max(0, self.desired - there_are)
        self.requested_at_ms += [now] * (missing - len(self.requested_at_ms))
        # Whoever comes or is no longer wanted closes the newest gap: a worker that flaps must not excuse another.
        del self.requested_at_ms[missing:]
        if there_are <= self.desired:
            self.surplus_since_ms = -1
        elif self.surplus_since_ms < 0:
            self.surplus_since_ms = now
        if self.ready >= self.desired and self.target_reached_at_ms < self.scaled_up_at_ms:
            self.target_reached_at_ms = now

    def refresh_totals(self, now: int, stale_after_ms: int) -> None:
        """Bring the sums up to date with the workers that changed since the last call."""
        heard, self.dirty = self.dirty, {}
        for name in heard:
            worker = self.workers.get(name)
            if worker is not None:
                self._recount(worker, now, stale_after_ms)
        self.dirty, self.changed = {}, heard

    def expire_silent(self, now: int, stale_after_ms: int) -> None:
        """Stop counting workers that went silent or start too slowly; O(workers)."""
        for worker in self.workers.values():
            if worker.counted and now - worker.seen_at_ms > stale_after_ms:
                self._uncount(worker)
            elif worker.counted_as == "starting" and now - worker.registered_at_ms > self.knobs.start_deadline_ms:
                self.late += not worker.late
                worker.late = True

    def _recount(self, worker: WorkerState, now: int, stale_after_ms: int) -> None:
        unschedulable = worker.reports_unschedulable()
        if unschedulable is not worker.unschedulable:
            worker.unschedulable = unschedulable
            self.reclassify(worker, now)
        if worker.counted_as != "ready" or worker.seen_at_ms < 0 or now - worker.seen_at_ms > stale_after_ms:
            self._uncount(worker)
            return
        load = worker.measure_load()
        self.load.replace(worker.load if worker.counted else NO_LOAD, load)
        worker.load = load
        if not worker.counted:
            self.fresh += 1
            worker.counted = True

    def _uncount(self, worker: WorkerState) -> None:
        if worker.counted:
            self.load.replace(worker.load, NO_LOAD)
            self.fresh -= 1
            worker.counted = False

    def reclassify(self, worker: WorkerState, now: int) -> None:
        """Account for a worker whose standing may have changed."""
        before, after = worker.counted_as, worker.availability
        worker.counted_as = after
        self.dirty[worker.record.worker] = None
        if before == after:
            return
        self.starting += (after == "starting") - (before == "starting")
        self.late -= worker.late
        worker.late = False
        if "ready" in {before, after}:
            self.ready += (after == "ready") - (before == "ready")
            self.ready_changed_at_ms = now
        filling = self.target_reached_at_ms < self.scaled_up_at_ms
        self._update_requests(now)
        # What was given up fills a pool too, without anybody having come: it is no worker that places it.
        if filling and self.target_reached_at_ms == now and self.scaled_down_at_ms < self.scaled_up_at_ms:
            # Past the deadline a worker is missing, and was asked for again: six hours would be planned for.
            self.start_ups_ms.append(min(now - self.scaled_up_at_ms, self.knobs.start_deadline_ms))
            del self.start_ups_ms[:-START_UPS_MAX]

    def remove(self, name: str, now: int) -> None:
        """Forget a worker."""
        worker = self.workers[name]
        worker.registered = False
        self._uncount(worker)
        self.reclassify(worker, now)
        del self.workers[name]
        self.removed_count += 1
        self.dirty.pop(name, None)

    def status(self, now: int) -> PoolStatus:
        """For people and metrics."""
        supply, accelerator = self.worker_counts(now), self.accelerator
        units = accelerator.units(len(self.workers) * self.knobs.gpus_per_worker)
        listed = sorted(self.workers)[:WORKERS_IN_STATUS]
        return PoolStatus(
            pool=self.name,
            role=self.knobs.role,
            desired=self.effective_target(now),
            ready=self.ready,
            starting=supply.starting,
            pending=supply.pending,
            draining=self.draining_workers(),
            fresh=self.fresh,
            kv_usage_ratio=self.load.kv_micro / MICRO / self.load.kv_reporting if self.load.kv_reporting else 0.0,
            waiting_requests=self.load.waiting,
            running_requests=self.load.running,
            workers=tuple(self.workers[name].status(now) for name in listed),
            expected_ready_at_ms=self.expected_ready_at_ms(now),
            schedule_replicas_min=self.schedule_minimum.replicas,
            schedule_ends_at_ms=self.schedule_minimum.until_ms if self.schedule_minimum.replicas else None,
            decided=self.desired is not None,
            start_up_ms=max(self.start_ups_ms, default=None),
            accelerator_type=accelerator.gpu_type if self.knobs.accelerator else "",
            cost_per_hour=units * accelerator.cost_per_hour if self.knobs.accelerator else None,
            power_w=units * accelerator.power_w if accelerator.power_w else None,
            changes=dict(sorted(self.changes.items())),
        )
