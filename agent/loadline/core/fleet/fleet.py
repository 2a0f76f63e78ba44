"""What we believe of all models, pools and workers: bounded, and fresh by our own time."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct, field

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic import Traffic
from loadline.core.fleet.unassigned import UnassignedWorker, UnassignedWorkers
from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.events import LoadReported
from loadline.core.vocabulary.reasons import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker


class FleetKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """What is believed of workers, and what all models together may have."""

    stale_after_ms: Annotated[int, Meta(ge=1, description="A worker silent for this long is not fresh.")] = 5_000
    quorum_ratio: Annotated[
        float, Meta(gt=0, le=1, description="Share of ready workers that must be fresh before a shrink.")
    ] = 0.8
    surplus_after_ms: Annotated[
        int, Meta(ge=1, description="Workers above the decided count for this long are drained, with an alarm.")
    ] = 60_000
    workers_max: Annotated[int, Meta(ge=1, description="Workers that are kept; more are refused.")] = 20_000
    frontends_max: Annotated[int, Meta(ge=1, description="Frontends of one model that are kept.")] = 256
    traffic_window_ms: Annotated[int, Meta(ge=1, description="Length of the rolling traffic window.")] = 60_000
    gpu_budget_max: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Most GPUs over all models, those of draining workers too.")
    ] = None
    gpu_budget_min: Annotated[
        int, Meta(ge=0, description="Fewest GPUs over all models: below it one shrinks so that another may grow.")
    ] = 0
    gpu_wish_ttl_ms: Annotated[
        int,
        Meta(ge=1, description="A shrink that gpu_budget_min forbids pays for another model's growth for this long."),
    ] = 360_000


class Model(Struct):
    """A served model: its pools and its traffic."""

    name: str
    pools: dict[str, Pool]
    traffic: Traffic
    objectives: ObjectiveKnobs = ObjectiveKnobs()

    def refresh_totals(self, now: int, knobs: FleetKnobs) -> None:
        """Bring all sums up to date."""
        for pool in self.pools.values():
            pool.refresh_totals(now, knobs.stale_after_ms)

    def expire_silent(self, now: int, knobs: FleetKnobs) -> None:
        """Stop counting silent workers."""
        for pool in self.pools.values():
            pool.expire_silent(now, knobs.stale_after_ms)


class Fleet(Struct):
    """All models. Methods give None, or the reason why what they were told is refused."""

    knobs: FleetKnobs
    models: dict[str, Model]
    workers: int = 0
    unassigned: UnassignedWorkers = field(default_factory=UnassignedWorkers)
    external_drains: bool = False
    """Whether others decide who leaves: workers are on their way out when they say so."""

    def find_pool(self, model: str, pool: str) -> Pool | Rejection:
        """The pool of that name."""
        found = self.models.get(model)
        if found is None:
            return Rejection.UNKNOWN_MODEL
        return found.pools.get(pool, Rejection.UNKNOWN_POOL)

    def pools(self) -> Iterator[tuple[Model, Pool]]:
        """All pools of all models."""
        for model in self.models.values():
            for pool in model.pools.values():
                yield model, pool

    def ingest(self, event: LoadReported, now: int) -> tuple[int, Rejection | None]:
        """Take the samples that are newer than what is known; gives how many were refused, and why the last one was."""
        pool = self.find_pool(event.model, event.pool)
        if isinstance(pool, Rejection):
            return len(event.samples), pool
        worker = pool.workers.get(event.worker)
        if worker is None:
            return len(event.samples), Rejection.UNKNOWN_WORKER
        known = worker.record.incarnation
        if event.incarnation != known:
            stale = event.incarnation < known
            return len(event.samples), Rejection.STALE_INCARNATION if stale else Rejection.UNKNOWN_INCARNATION
        latest = worker.latest
        ranks = len(latest)
        refused, why = 0, None
        for sample in event.samples:
            rank = sample.rank
            if rank >= ranks:
                refused, why = refused + 1, Rejection.RANK_OUT_OF_RANGE
                continue
            before = latest[rank]
            if before is not None and sample.sequence <= before.sequence:
                refused, why = refused + 1, Rejection.NOT_NEWER
                continue
            latest[rank] = sample
        if refused < len(event.samples):
            worker.seen_at_ms = now
            pool.dirty[event.worker] = None
        return refused, why

    def register(self, registered: RegisteredWorker, now: int) -> Rejection | None:
        """A worker's record was written."""
        record = registered.record
        pool = self.find_pool(record.model, record.pool)
        if isinstance(pool, Rejection):
            self._add_unassigned(_stranger(registered, ours=pool is not Rejection.UNKNOWN_MODEL))
            return pool
        if record.role != pool.knobs.role:
            self._add_unassigned(_stranger(registered, ours=True))
            return Rejection.ROLE_MISMATCH
        self.unassigned.remove(_place(record.model, record.pool, record.worker))
        known = pool.workers.get(record.worker)
        if known is not None and known.registered and record.incarnation < known.record.incarnation:
            return Rejection.STALE_INCARNATION
        if known is None or known.record.incarnation != record.incarnation:
            if known is not None:
                self._remove(pool, record.worker, now)
            elif self.workers >= self.knobs.workers_max:
                return Rejection.WORKERS_FULL
            self.workers += 1
            worker = WorkerState(
                record, registered.lease_id, registered_at_ms=now, latest=[None] * record.data_parallel_size
            )
            pool.workers[record.worker] = worker
            self._update_external_drain(worker)
            pool.reclassify(worker, now)
            return None
        known.record, known.lease_id, known.registered = record, registered.lease_id, True
        known.latest = (known.latest + [None] * record.data_parallel_size)[: record.data_parallel_size]
        self._update_external_drain(known)
        pool.reclassify(known, now)
        return None

    def _update_external_drain(self, worker: WorkerState) -> None:
        """Where others drain it is on its way out as soon as it says so, and kept until it is empty or silent."""
        if self.external_drains:
            worker.draining, worker.drain_ended = worker.record.state == "draining", False

    def remove_silent_drains(self, model: Model, now: int) -> None:
        """Those that others drained, and that are neither registered nor heard any more, are gone."""
        for pool in model.pools.values():
            for name, worker in list(pool.workers.items()) if self.external_drains else ():
                if worker.draining and not worker.registered and now - worker.seen_at_ms > self.knobs.stale_after_ms:
                    self.end_drain(model.name, pool.name, name, now)

    def deregister(self, model: str, pool_name: str, name: str, now: int) -> Rejection | None:
        """A worker's key is gone. One that drains is kept until its drain ends: it still has work."""
        self.unassigned.remove(_place(model, pool_name, name))
        pool = self.find_pool(model, pool_name)
        if isinstance(pool, Rejection):
            return pool
        worker = pool.workers.get(name)
        if worker is None:
            return Rejection.UNKNOWN_WORKER
        if worker.draining and not worker.drain_ended:
            worker.registered = False
        else:
            self._remove(pool, name, now)
        return None

    def replace_registry(self, registered: list[RegisteredWorker], now: int) -> list[Rejection]:
        """The whole registry was read: take it, and forget the workers that are not in it."""
        present = {(r.record.model, r.record.pool, r.record.worker) for r in registered}
        for model in self.models.values():
            for pool in model.pools.values():
                for name in [n for n in pool.workers if (model.name, pool.name, n) not in present]:
                    self.deregister(model.name, pool.name, name, now)
        for place in self.unassigned.workers.keys() - {_place(*one) for one in present}:
            self.unassigned.remove(place)
        return [why for r in registered if (why := self.register(r, now)) is not None]

    def start_drain(self, model: str, pool_name: str, name: str, now: int) -> None:
        """The worker is on its way out: it is no supply any more."""
        pool = self.models[model].pools[pool_name]
        worker = pool.workers[name]
        worker.draining, worker.drain_ended, worker.drain_handed_over = True, False, False
        pool.reclassify(worker, now)

    def cancel_drain(self, model: str, pool_name: str, name: str, now: int) -> None:
        """Its drain is somebody else's now: what it says of itself counts again."""
        pool = self.models[model].pools[pool_name]
        worker = pool.workers.get(name)
        if worker is None:
            return
        if worker.registered:
            worker.draining = False
            pool.reclassify(worker, now)
        else:
            self._remove(pool, name, now)

    def hand_over_drain(self, model: str, pool_name: str, name: str, now: int) -> None:
        """Its drain is somebody else's now, and goes on."""
        worker = self.models[model].pools[pool_name].workers.get(name)
        if worker is not None:
            worker.drain_handed_over = worker.draining
            self.end_drain(model, pool_name, name, now)

    def end_drain(self, model: str, pool_name: str, name: str, now: int) -> None:
        """The drain is over. What is still registered stays listed, and is no supply, until its key goes."""
        pool = self.models[model].pools[pool_name]
        worker = pool.workers.get(name)
        if worker is None or not worker.draining:
            return  # another life of that name, which nobody has asked to go
        worker.drain_ended = True
        if not worker.registered:
            self._remove(pool, name, now)
        else:
            pool.dirty[name] = None

    def unassign(self, pool: Pool) -> None:
        """A pool is none of ours any more: those of its workers that are registered are strangers now."""
        self.workers -= len(pool.workers)
        for worker in pool.workers.values():
            if worker.registered:
                found = RegisteredWorker(worker.record, worker.lease_id)
                occupies = pool.accelerator.gpu_type, pool.knobs.gpus_per_worker
                self._add_unassigned(UnassignedWorker(found, *occupies, managed=True))

    def assign_unassigned(self, now: int) -> None:
        """Count the strangers that belong to a pool now."""
        for stranger in list(self.unassigned.workers.values()):
            self.register(stranger.registered, now)

    def _add_unassigned(self, stranger: UnassignedWorker) -> None:
        record = stranger.registered.record
        self.unassigned.add(_place(record.model, record.pool, record.worker), stranger, self.knobs.workers_max)

    def _remove(self, pool: Pool, name: str, now: int) -> None:
        pool.remove(name, now)
        self.workers -= 1


def _stranger(registered: RegisteredWorker, *, ours: bool) -> UnassignedWorker:
    """It occupies what it says."""
    return UnassignedWorker(registered, registered.record.accelerator, registered.record.gpus, ours)


def _place(model: str, pool: str, worker: str) -> str:
    return f"{model}\0{pool}\0{worker}"
