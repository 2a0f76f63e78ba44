"""State of one pool: its workers, and exact integer totals over those that are ready and fresh."""

from bisect import bisect_left
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from loadline.core.engines.accelerator import UNNAMED_ACCELERATOR, AcceleratorKnobs
from loadline.core.engines.profile import NO_PROFILE, EngineProfile, LinearKnobs
from loadline.core.fleet.schedule_windows import NO_SCHEDULE_MINIMUM, ScheduleKnobs, ScheduleMinimum
from loadline.core.fleet.worker import MICRO, NO_LOAD, WorkerLoad, WorkerState
from loadline.core.vocabulary.decisions import VictimRule
from loadline.core.vocabulary.learned import START_UPS_MAX
from loadline.core.vocabulary.scalars import WORKERS_MAX, Name, Role
from loadline.core.vocabulary.status import PoolStatus

WORKERS_IN_STATUS = 64
"""Workers listed per pool in a status; 10,000 would make a message of 1 MB."""
DRAINS_MAX: Final = 64
"""Largest number of victims of a pool in one decision, and of drain commands to a pool that are unanswered."""


class PoolKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Interchangeable workers: same model, role and accelerator arrangement."""

    name: Annotated[Name, Meta(description="Name of the pool, unique within its model.")]
    role: Annotated[Role, Meta(description="prefill, decode, aggregated or encode.")]
    gpus_per_worker: Annotated[int, Meta(ge=1, le=4096, description="GPUs that one worker occupies.")] = 1
    replicas_min: Annotated[int, Meta(ge=0, le=WORKERS_MAX, description="Minimum replicas.")] = 1
    replicas_max: Annotated[
        int, Meta(ge=1, le=WORKERS_MAX, description="Maximum replicas; no pool grows above it.")
    ] = 8
    start_deadline_ms: Annotated[int, Meta(ge=1, description="Time that a requested worker counts as pending.")] = (
        600_000
    )
    prefill_profile: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Prefill sweep of a profiler (NPZ or JSON), or its folder, relative to this file.",
        ),
    ] = ""
    decode_profile: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Decode sweep of a profiler (NPZ or JSON), or its folder, relative to this file.",
        ),
    ] = ""
    linear: Annotated[LinearKnobs | None, Meta(description="Six parameters instead of profiles.")] = None
    schedules: Annotated[
        tuple[ScheduleKnobs, ...], Meta(max_length=64, description="Time windows with other minimum replicas.")
    ] = ()
    accelerator: Annotated[
        str,
        Meta(
            max_length=128,
            description="Name of one of [[accelerators]], which sets cost and GPU type; empty: a GPU costs 1.",
        ),
    ] = ""


class WorkerCounts(Struct, frozen=True):
    """Workers of a pool by state."""

    ready: int
    starting: int
    pending: int
    """Requested and not registered, within the start deadline."""
    overdue: int
    """Requested or starting, past the start deadline; not counted as expected."""

    @property
    def expected(self) -> int:
        """Workers that serve or will serve."""
        return self.ready + self.starting + self.pending


class Pool(Struct):
    """A pool of interchangeable workers, with totals over those that are ready and fresh."""

    knobs: PoolKnobs
    workers: dict[str, WorkerState] = {}
    dirty: dict[str, None] = {}
    """Workers that the next ``refresh_totals`` must update."""
    changed: dict[str, None] = {}
    """Workers that the last ``refresh_totals`` updated."""
    engine: EngineProfile = NO_PROFILE
    """Performance profile of its engines, from the settings."""
    accelerator: AcceleratorKnobs = UNNAMED_ACCELERATOR
    """Accelerator of its workers."""
    fresh: int = 0
    ready: int = 0
    starting: int = 0
    overdue: int = 0
    """Starting workers past the start deadline, as of the last ``expire_silent``."""
    load: WorkerLoad = field(default_factory=WorkerLoad)
    decided: int | None = None
    """Replicas of the last decision, which counts the workers that its scaler starts; None while unknown."""
    moved_in: int = 0
    """Workers of other pools that serve in this one, without those that drain."""
    moved_out: int = 0
    """Workers of this pool that serve in other ones, without those that drain."""
    undecided_max: int = 0
    """Most workers of this pool, wherever they serve, that existed at once before the first decision."""
    requested_at_ms: list[int] = []
    """Request times of the workers that are missing from ``decided``, oldest first."""
    schedule_minimum: ScheduleMinimum = NO_SCHEDULE_MINIMUM
    surplus_since_ms: int = -1
    """Time since which there are more workers than ``places``; -1: there is no surplus."""
    ready_changed_at_ms: int = -1
    """Time of the last change of ``ready``; -1 before the first."""
    target_reached_at_ms: int = -1
    """Time at which all workers of the last scale-up were ready."""
    start_ups_ms: list[int] = []
    """Latest times from a scale-up until all of its workers were ready; plans use the longest."""
    scaled_up_at_ms: int = -1
    """Time of the last decision to scale up."""
    scaled_down_at_ms: int = -1
    """Time of the last decision to scale down."""
    rerequested_at_ms: int = -1
    """Time at which overdue workers were last requested again."""
    removed_count: int = 0
    """Number of workers removed so far."""
    workers_max: int = 0
    """Largest number of workers, from ``Fleet.divide_workers``; 0: not divided yet."""
    victim_rule: VictimRule | None = None
    """Rule by which its platform selects the workers to remove, as its scaler declared; None: as for ``named``."""
    changes: dict[str, int] = {}
    """Number of committed changes by direction and first reason."""

    @property
    def name(self) -> str:
        """Name of the pool within its model."""
        return self.knobs.name

    @property
    def minimum(self) -> int:
        """Current minimum replicas: ``replicas_min``, or more during a schedule."""
        return max(self.knobs.replicas_min, self.schedule_minimum.replicas)

    @property
    def moved(self) -> int:
        """Workers of other pools that serve in this one, minus those of this one that serve in others."""
        return self.moved_in - self.moved_out

    @property
    def target(self) -> int | None:
        """Workers that should serve: those that were decided, and those that have moved; None while unknown."""
        return None if self.decided is None else max(0, self.decided + self.moved_in - self.moved_out)

    @property
    def places(self) -> int:
        """Number of workers that keep their places: the target, or ``replicas_max`` while it is unknown."""
        target = self.target
        return self.knobs.replicas_max if target is None else target

    @property
    def can_name_victims(self) -> bool:
        """True if its platform removes the workers that decisions name."""
        return self.victim_rule in {None, "named"}

    @property
    def workers_quota(self) -> int:
        """Number of workers that the pool may register if ``workers_max`` of the fleet suffices for all pools.

        A rolling replacement starts ``replicas_max`` workers in addition to the old ones, and ``DRAINS_MAX`` may be
        draining.
        """
        return 2 * self.knobs.replicas_max + DRAINS_MAX

    @property
    def cost_per_hour(self) -> float:
        """Cost of one worker per hour."""
        return self.accelerator.units(self.knobs.gpus_per_worker) * self.accelerator.cost_per_hour

    def apply_settings(self, knobs: PoolKnobs, engine: EngineProfile, accelerator: AcceleratorKnobs, now: int) -> None:
        """Apply new settings. Workers and decisions are kept."""
        self.knobs, self.engine, self.accelerator = knobs, engine, accelerator
        self.schedule_minimum = NO_SCHEDULE_MINIMUM  # until its schedules are evaluated
        for worker in self.workers.values():  # with a longer deadline, some are no longer overdue
            if worker.overdue and now - worker.registered_at_ms <= knobs.start_deadline_ms:
                worker.overdue = False
                self.overdue -= 1
        self.update_requests(now)

    def worker_counts(self, now: int) -> WorkerCounts:
        """Count the workers by state."""
        overdue = self._overdue_requests(now)
        return WorkerCounts(
            self.ready, self.starting - self.overdue, len(self.requested_at_ms) - overdue, self.overdue + overdue
        )

    def expected_workers(self, now: int) -> int:
        """Return ``worker_counts().expected`` at less cost."""
        return self.ready + self.starting - self.overdue + len(self.requested_at_ms) - self._overdue_requests(now)

    def overdue_workers(self, now: int) -> int:
        """Return ``worker_counts().overdue`` at less cost."""
        return self.overdue + self._overdue_requests(now)

    def _overdue_requests(self, now: int) -> int:
        return bisect_left(self.requested_at_ms, now - self.knobs.start_deadline_ms) if self.requested_at_ms else 0

    def effective_target(self, now: int) -> int:
        """Return the target in force; without a decision the expected workers that have places."""
        target = self.target
        return min(self.expected_workers(now), self.places) if target is None else target

    def needs_rerequest(self, now: int) -> bool:
        """Return True if workers are overdue and were not requested again within a start deadline."""
        rerequested = self.rerequested_at_ms >= 0 and now - self.rerequested_at_ms <= self.knobs.start_deadline_ms
        return self.overdue_workers(now) > 0 and not rerequested

    def scaling_base(self, now: int) -> int:
        """Return the count to which planners add or from which they subtract: the effective target or fewer workers.

        Overdue workers do not count.
        """
        return min(self.places, self.expected_workers(now))

    def draining_workers(self) -> int:
        """Count the draining workers, which still occupy their GPUs."""
        return len(self.workers) - self.ready - self.starting

    def occupied_workers(self, now: int) -> int:
        """Count the workers whose GPUs are occupied or reserved: existing, requested, or within ``replicas_min``."""
        return (
            max(self.effective_target(now), self.ready + self.starting, self.knobs.replicas_min)
            + self.draining_workers()
        )

    def has_quorum(self, ratio: float) -> bool:
        """Return True if enough ready workers are fresh for a scale-down."""
        return self.ready == 0 or self.fresh >= self.ready * ratio

    def set_decided(self, replicas: int, now: int, *, moves: int = 0) -> None:
        """Set the replicas of a committed decision; ``moves``: the change of ``moved`` as its victims drain."""
        if self.decided is not None and replicas + moves > self.decided:
            self.scaled_up_at_ms = now
        elif self.decided is not None and replicas + moves < self.decided:
            self.scaled_down_at_ms = now
        self.reset_decided(replicas, now)

    def start_up_ms(self, default_ms: int) -> int:
        """Return the startup time of workers, the longest of the latest few; ``default_ms`` before the first."""
        return max(self.start_ups_ms, default=default_ms)

    def expected_ready_at_ms(self, now: int) -> int | None:
        """Return the time at which the last pending worker should be ready; None if unknown or none is pending."""
        if not self.start_ups_ms or self._overdue_requests(now) == len(self.requested_at_ms):
            return None
        return self.requested_at_ms[-1] + max(self.start_ups_ms)

    def count_change(self, previous: int, replicas: int, reason: str) -> None:
        """Count a committed change, unless the replicas are the same."""
        if replicas != previous:
            key = f"{'up' if replicas > previous else 'down'}:{reason}"
            self.changes[key] = self.changes.get(key, 0) + 1

    def reset_decided(self, replicas: int, now: int) -> None:
        """Set the decided replicas without recording a scale-up or scale-down."""
        self.decided = replicas
        self.update_requests(now)

    def forget_decided(self, now: int) -> None:
        """Take no decision to be in force: the workers that exist keep their places."""
        self.decided, self.requested_at_ms = None, []
        self.update_requests(now)

    def update_requests(self, now: int) -> None:
        """Update requests, surplus and target times from the difference between existing workers and the target."""
        existing, target = self.ready + self.starting, self.target
        if existing <= self.places:
            self.surplus_since_ms = -1
        elif self.surplus_since_ms < 0:
            self.surplus_since_ms = now
        if target is None:
            self.undecided_max = max(self.undecided_max, min(existing, self.places) - self.moved)
            return
        missing = max(0, target - existing)
        self.requested_at_ms += [now] * (missing - len(self.requested_at_ms))
        # A new worker answers the newest request, so a flapping worker does not reset the age of the others.
        del self.requested_at_ms[missing:]
        if self.ready >= target and self.target_reached_at_ms < self.scaled_up_at_ms:
            self.target_reached_at_ms = now

    def refresh_totals(self, now: int, stale_after_ms: int) -> None:
        """Update the totals with the workers that changed since the last call."""
        changed, self.dirty = self.dirty, {}
        workers, oldest_ms = self.workers, max(0, now - stale_after_ms)
        kv_micro = running = 0  # added up first: to assign a field takes as long as three additions
        for name in changed:
            worker = workers.get(name)
            if worker is None:
                continue
            if worker.reports_unschedulable() is not worker.unschedulable:
                worker.unschedulable = not worker.unschedulable
                self.reclassify(worker, now)
            if worker.counted_as != "ready" or worker.seen_at_ms < oldest_ms:
                self._uncount(worker)
                continue
            before = worker.load if worker.counted else NO_LOAD
            worker.load = after = worker.measure_load()
            if (
                before.waiting
                or after.waiting
                or before.kv_reporting != after.kv_reporting
                or before.queue_reporting != after.queue_reporting
            ):
                self.load.replace(before, after)
            else:
                kv_micro += after.kv_micro - before.kv_micro
                running += after.running - before.running
            if not worker.counted:
                self.fresh += 1
                worker.counted = True
        self.load.kv_micro += kv_micro
        self.load.running += running
        self.dirty, self.changed = {}, changed

    def expire_silent(self, now: int, stale_after_ms: int) -> None:
        """Stop counting stale workers and mark starting workers past their deadline; O(workers)."""
        for worker in self.workers.values():
            if worker.counted and now - worker.seen_at_ms > stale_after_ms:
                self._uncount(worker)
            elif worker.counted_as == "starting" and now - worker.registered_at_ms > self.knobs.start_deadline_ms:
                self.overdue += not worker.overdue
                worker.overdue = True

    def _uncount(self, worker: WorkerState) -> None:
        if worker.counted:
            self.load.replace(worker.load, NO_LOAD)
            self.fresh -= 1
            worker.counted = False

    def reclassify(self, worker: WorkerState, now: int) -> None:
        """Update the counts for a worker whose availability may have changed."""
        before, after = worker.counted_as, worker.availability
        worker.counted_as = after
        self.dirty[worker.record.worker] = None
        if before == after:
            return
        self.starting += (after == "starting") - (before == "starting")
        self.overdue -= worker.overdue
        worker.overdue = False
        if "ready" in {before, after}:
            self.ready += (after == "ready") - (before == "ready")
            self.ready_changed_at_ms = now
        scaling_up = self.target_reached_at_ms < self.scaled_up_at_ms
        self.update_requests(now)
        # A lower target also ends a scale-up, but measures no startup time.
        if scaling_up and self.target_reached_at_ms == now and self.scaled_down_at_ms < self.scaled_up_at_ms:
            # A worker past the deadline was requested again, so a startup time of hours would be wrong.
            self.start_ups_ms.append(min(now - self.scaled_up_at_ms, self.knobs.start_deadline_ms))
            del self.start_ups_ms[:-START_UPS_MAX]

    def remove(self, name: str, now: int) -> None:
        """Remove a worker."""
        worker = self.workers[name]
        worker.registered = False
        self._uncount(worker)
        self.reclassify(worker, now)
        del self.workers[name]
        self.removed_count += 1
        self.dirty.pop(name, None)

    def status(self, now: int) -> PoolStatus:
        """Return the status for people and metrics."""
        supply, accelerator = self.worker_counts(now), self.accelerator
        units = accelerator.units(len(self.workers) * self.knobs.gpus_per_worker)
        listed = sorted(self.workers)[:WORKERS_IN_STATUS]
        return PoolStatus(
            pool=self.name,
            role=self.knobs.role,
            desired=self.effective_target(now),
            moved=self.moved,
            ready=self.ready,
            starting=supply.starting,
            pending=supply.pending,
            draining=self.draining_workers(),
            fresh=self.fresh,
            kv_usage_ratio=self.load.kv_micro / MICRO / self.load.kv_reporting if self.load.kv_reporting else 0.0,
            waiting_requests=self.load.waiting,
            running_requests=self.load.running,
            kv_reporting=self.load.kv_reporting,
            workers=tuple(self.workers[name].status(now) for name in listed),
            expected_ready_at_ms=self.expected_ready_at_ms(now),
            schedule_replicas_min=self.schedule_minimum.replicas,
            schedule_ends_at_ms=self.schedule_minimum.ends_at_ms if self.schedule_minimum.replicas else None,
            decided=self.decided is not None,
            undecided_max=self.undecided_max,
            start_up_ms=max(self.start_ups_ms, default=None),
            accelerator_type=accelerator.gpu_type if self.knobs.accelerator else "",
            cost_per_hour=units * accelerator.cost_per_hour if self.knobs.accelerator else None,
            power_w=units * accelerator.power_w if accelerator.power_w else None,
            changes=dict(sorted(self.changes.items())),
        )
