"""State of all models, pools and workers, bounded in size; freshness is by the agent's clock."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct, field

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.moved_workers import count_moved
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic import Traffic
from loadline.core.fleet.unassigned import UnassignedWorker, UnassignedWorkers
from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.events import LoadReported
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker


class FleetKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the fleet's state, freshness of workers, and the GPU budget over all models."""

    stale_after_ms: Annotated[
        int, Meta(ge=1, description="Time without a report after which a worker is stale: its load is unknown.")
    ] = 5_000
    quorum_ratio: Annotated[
        float, Meta(gt=0, le=1, description="Fraction of ready workers that must be fresh for a scale-down.")
    ] = 0.8
    surplus_after_ms: Annotated[
        int, Meta(ge=1, description="Time after which workers in excess of the target are drained, with an alarm.")
    ] = 60_000
    workers_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of workers of all pools; more are refused.",
        ),
    ] = 20_000
    frontends_max: Annotated[int, Meta(ge=1, description="Maximum number of frontends per model.")] = 256
    traffic_window_ms: Annotated[int, Meta(ge=1, description="Length of the rolling traffic window.")] = 60_000
    gpu_budget_max: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Maximum GPUs over all models, draining workers included.")
    ] = None
    gpu_budget_min: Annotated[
        int,
        Meta(
            ge=0,
            description="Minimum GPUs over all models; at this number, a model scales down only if another scales up.",
        ),
    ] = 0
    gpu_offer_ttl_ms: Annotated[
        int,
        Meta(ge=1, description="Time for which a scale-down that gpu_budget_min prevents is offered to other models."),
    ] = 360_000


class Model(Struct):
    """A served model: its pools and its traffic."""

    name: str
    pools: dict[str, Pool]
    traffic: Traffic
    objectives: ObjectiveKnobs = ObjectiveKnobs()
    has_objectives: bool = True
    """False if its configuration has no objectives, and ``objectives`` are the defaults."""

    def refresh_totals(self, now: int, knobs: FleetKnobs) -> None:
        """Refresh the totals of all pools."""
        for pool in self.pools.values():
            pool.refresh_totals(now, knobs.stale_after_ms)

    def expire_silent(self, now: int, knobs: FleetKnobs) -> None:
        """Stop counting stale workers and mark overdue ones in all pools; O(workers)."""
        for pool in self.pools.values():
            pool.expire_silent(now, knobs.stale_after_ms)


class Fleet(Struct):
    """All models. Methods that ingest a report or a record return None, or the reason for refusing it."""

    knobs: FleetKnobs
    models: dict[str, Model]
    workers: int = 0
    unassigned: UnassignedWorkers = field(default_factory=UnassignedWorkers)
    external_drains: bool = False
    """True if another program drains workers; the state in a worker's record then starts its drain."""
    admitted: int = 0
    """Number of workers that were registered after a wait for a place."""

    def divide_workers(self) -> None:
        """Set the largest number of workers of each pool, so that no pool takes the places of another; O(pools).

        If the quotas exceed ``workers_max`` together, each pool has its ``replicas_max`` and its share of what is left,
        in proportion to the rest of its quota; if even these exceed it, its share in proportion to ``replicas_max``.
        The shares are equal if another program scales the pools, since ``replicas_max`` is then without meaning.
        """
        places = self.knobs.workers_max
        pools = [pool for _, pool in self.pools()]
        if self.external_drains:
            needs = quotas = [places] * len(pools)
        else:
            needs, quotas = [pool.knobs.replicas_max for pool in pools], [pool.workers_quota for pool in pools]
        needed, wanted = sum(needs), sum(quotas)
        for pool, need, quota in zip(pools, needs, quotas, strict=True):
            if wanted <= places:
                pool.workers_max = quota
            elif needed <= places:
                pool.workers_max = need + (quota - need) * (places - needed) // (wanted - needed)
            else:
                pool.workers_max = max(1, need * places // needed)

    def find_pool(self, model: str, pool: str) -> Pool | Rejection:
        """Return a pool by name."""
        found = self.models.get(model)
        if found is None:
            return Rejection.UNKNOWN_MODEL
        return found.pools.get(pool, Rejection.UNKNOWN_POOL)

    def pools(self) -> Iterator[tuple[Model, Pool]]:
        """Yield all pools with their models."""
        for model in self.models.values():
            for pool in model.pools.values():
                yield model, pool

    def serving_pool(self, model: str, home: str, victim: Victim) -> str:
        """Return the pool in which a worker serves that was started in ``home``; ``home`` if it is unknown."""
        found = self.models.get(model)
        for pool in found.pools.values() if found is not None else ():
            known = pool.workers.get(victim.worker)
            if known is not None and (known.record.home, known.record.incarnation) == (home, victim.incarnation):
                return pool.name
        return home

    def ingest(self, event: LoadReported, now: int) -> tuple[int, Rejection | None]:
        """Store the samples that are newer than the known ones.

        Returns:
            The number of refused samples, and the reason for refusing the last one.
        """
        samples = event.samples
        try:
            pool = self.models[event.model].pools[event.pool]
            worker = pool.workers[event.worker]
        except KeyError:
            found = self.find_pool(event.model, event.pool)
            return len(samples), found if isinstance(found, Rejection) else Rejection.UNKNOWN_WORKER
        known = worker.record.incarnation
        if event.incarnation != known:
            stale = event.incarnation < known
            return len(samples), Rejection.STALE_INCARNATION if stale else Rejection.UNKNOWN_INCARNATION
        latest = worker.latest
        ranks = len(latest)
        refused, rejection = 0, None
        for sample in samples:
            rank = sample.rank
            if rank >= ranks:
                refused, rejection = refused + 1, Rejection.RANK_OUT_OF_RANGE
                continue
            before = latest[rank]
            if before is not None and sample.sequence <= before.sequence:
                refused, rejection = refused + 1, Rejection.NOT_NEWER
                continue
            latest[rank] = sample
        if refused < len(samples):
            worker.seen_at_ms = now
            pool.dirty[event.worker] = None
        return refused, rejection

    def former_pool(self, registered: RegisteredWorker) -> Pool | None:
        """Return the pool that a worker left by registering in another one; None if it has not moved.

        One lease belongs to one process, so two keys of a name and an incarnation under it are the same worker. A
        draining worker whose key is gone has lost its lease, so it registers with another one.
        """
        record, model = registered.record, self.models.get(registered.record.model)
        for pool in model.pools.values() if model is not None else ():
            known = pool.workers.get(record.worker)
            if known is None or pool.name == record.pool:
                continue
            same_process = known.lease_id == registered.lease_id or not known.registered
            if same_process and known.record.incarnation == record.incarnation:
                return pool
        return None

    def register(self, registered: RegisteredWorker, now: int) -> Rejection | None:
        """Add or update a worker from its record.

        The key holds who is registered, also if that is an earlier incarnation than before: its clock may be behind,
        and it serves, whereas the later one is gone, or writes its key again at its next renewal.
        """
        record = registered.record
        pool = self.find_pool(record.model, record.pool)
        if isinstance(pool, Rejection):
            self._add_unassigned(_unassigned(registered, managed=pool is not Rejection.UNKNOWN_MODEL))
            return pool
        if record.role != pool.knobs.role:
            self._add_unassigned(_unassigned(registered, managed=True))
            return Rejection.ROLE_MISMATCH
        former = self.former_pool(registered)
        if former is not None and former.workers[record.worker].create_revision > registered.create_revision:
            return Rejection.WORKER_MOVED
        known = pool.workers.get(record.worker)
        if known is None and (full := self._full(pool, arrives=former is None)) is not None:
            self._add_unassigned(_unassigned(registered, managed=False))  # it waits for a place
            return full
        self.unassigned.remove(_key(record.model, record.pool, record.worker))
        if known is None or known.record.incarnation != record.incarnation:
            if known is not None:
                self._remove(pool, record.worker, now)
            self.workers += 1
            if former is not None:
                known = former.workers[record.worker]
                self._remove(former, record.worker, now)
            else:
                known = WorkerState(record, registered.lease_id, registered_at_ms=now, latest=[])
            pool.workers[record.worker] = known
        known.record, known.lease_id, known.registered = record, registered.lease_id, True
        known.create_revision = registered.create_revision
        known.latest = (known.latest + [None] * record.data_parallel_size)[: record.data_parallel_size]
        self._update_external_drain(known)
        self._reclassify(pool, known, now)
        return None

    def _full(self, pool: Pool, *, arrives: bool) -> Rejection | None:
        """Return the reason for refusing a worker of a pool if it has no place; ``arrives``: it is new in the fleet."""
        if arrives and self.workers >= self.knobs.workers_max:
            return Rejection.WORKERS_FULL
        if not pool.workers_max:
            self.divide_workers()
        return Rejection.POOL_FULL if len(pool.workers) >= pool.workers_max else None

    def _update_external_drain(self, worker: WorkerState) -> None:
        """Copy the drain state from the record if another program drains workers."""
        if self.external_drains:
            worker.draining, worker.drain_ended = worker.record.state == "draining", False

    def remove_silent_drains(self, model: Model, now: int) -> None:
        """Remove externally drained workers of a model that are deregistered and silent."""
        for pool in model.pools.values():
            for name, worker in list(pool.workers.items()) if self.external_drains else ():
                if worker.draining and not worker.registered and now - worker.seen_at_ms > self.knobs.stale_after_ms:
                    self.end_drain(model.name, pool.name, name, now)

    def deregister(self, model: str, pool_name: str, name: str, now: int) -> Rejection | None:
        """Remove a worker whose key is gone. A draining worker is kept until its drain ends."""
        self.unassigned.remove(_key(model, pool_name, name))
        pool = self.find_pool(model, pool_name)
        if isinstance(pool, Rejection):
            return pool
        worker = pool.workers.get(name)
        if worker is None:
            return Rejection.UNKNOWN_WORKER
        if worker.draining and not worker.drain_ended and not worker.drain_held:
            worker.registered = False
        else:
            self._remove(pool, name, now)
        return None

    def replace_registry(self, registered: list[RegisteredWorker], now: int) -> list[Rejection]:
        """Replace all workers by those of the registry; return the reasons of refused records."""
        present = {(r.record.model, r.record.pool, r.record.worker) for r in registered}
        for model in self.models.values():
            for pool in model.pools.values():
                for name in [n for n in pool.workers if (model.name, pool.name, n) not in present]:
                    self.deregister(model.name, pool.name, name, now)
        for key in self.unassigned.workers.keys() - {_key(*one) for one in present}:
            self.unassigned.remove(key)
        return [rejection for r in registered if (rejection := self.register(r, now)) is not None]

    def start_drain(self, model: str, pool_name: str, name: str, now: int, *, held: bool = False) -> None:
        """Mark a worker as draining, which removes it from the counted workers; ``held``: it serves until it begins."""
        pool = self.models[model].pools[pool_name]
        worker = pool.workers[name]
        worker.draining, worker.drain_ended, worker.drain_handed_over, worker.drain_held = True, False, False, held
        self._reclassify(pool, worker, now)

    def begin_drain(self, model: str, pool_name: str, name: str, now: int) -> None:
        """Begin the drain of a worker that was held, if it exists."""
        worker = self.models[model].pools[pool_name].workers.get(name)
        if worker is not None and worker.drain_held:
            self.start_drain(model, pool_name, name, now)

    def cancel_drain(self, model: str, pool_name: str, name: str, now: int) -> None:
        """Cancel the drain of a worker because another agent leads; the state in its record counts again."""
        pool = self.models[model].pools[pool_name]
        worker = pool.workers.get(name)
        if worker is None:
            return
        worker.drain_held = False
        if worker.registered:
            worker.draining = False
            self._reclassify(pool, worker, now)
        else:
            self._remove(pool, name, now)

    def hand_over_drain(self, model: str, pool_name: str, name: str, now: int) -> None:
        """End the drain of a worker for this agent only: another agent continues it."""
        worker = self.models[model].pools[pool_name].workers.get(name)
        if worker is not None:
            worker.drain_handed_over = worker.draining
            self.end_drain(model, pool_name, name, now)

    def end_drain(self, model: str, pool_name: str, name: str, now: int) -> None:
        """End the drain of a worker. While its key exists, it stays listed and is not counted."""
        pool = self.models[model].pools[pool_name]
        worker = pool.workers.get(name)
        if worker is None or not worker.draining:
            return  # the worker is a later incarnation, which does not drain
        worker.drain_ended, worker.drain_held = True, False
        if not worker.registered:
            self._remove(pool, name, now)
        else:
            pool.dirty[name] = None

    def unassign(self, pool: Pool) -> None:
        """Move the registered workers of a removed pool to the unassigned workers."""
        self.workers -= len(pool.workers)
        for worker in pool.workers.values():
            if worker.registered:
                found = RegisteredWorker(worker.record, worker.lease_id, worker.create_revision)
                occupies = pool.accelerator.gpu_type, pool.knobs.gpus_per_worker
                self._add_unassigned(UnassignedWorker(found, *occupies, managed=True))

    def assign_unassigned(self, now: int) -> None:
        """Register the unassigned workers whose pool is configured now."""
        for worker in list(self.unassigned.workers.values()):
            self.register(worker.registered, now)

    def admit_waiting(self, model: Model, now: int) -> None:
        """Register workers that were refused because their pool was full and has room now, in order; O(unassigned)."""
        with_room = {name: pool for name, pool in model.pools.items() if len(pool.workers) < pool.workers_max}
        if not with_room or not self.unassigned.counts.get(model.name):
            return
        for worker in list(self.unassigned.workers.values()):
            record = worker.registered.record
            pool = with_room.get(record.pool) if record.model == model.name else None
            if pool is not None and len(pool.workers) < pool.workers_max:
                self.admitted += self.register(worker.registered, now) is None

    def _add_unassigned(self, worker: UnassignedWorker) -> None:
        record = worker.registered.record
        self.unassigned.add(_key(record.model, record.pool, record.worker), worker, self.knobs.workers_max)

    def _remove(self, pool: Pool, name: str, now: int) -> None:
        worker = pool.workers[name]
        changed = count_moved(self.models[worker.record.model].pools, pool, worker, "")
        pool.remove(name, now)
        for one in changed:
            one.update_requests(now)
        self.workers -= 1

    def _reclassify(self, pool: Pool, worker: WorkerState, now: int) -> None:
        """Update the counts for a worker."""
        changed = count_moved(self.models[worker.record.model].pools, pool, worker, worker.moved_from)
        pool.reclassify(worker, now)
        for one in changed:
            one.update_requests(now)


def _unassigned(registered: RegisteredWorker, *, managed: bool) -> UnassignedWorker:
    """Return an unassigned worker that occupies the GPUs of its record."""
    return UnassignedWorker(registered, registered.record.accelerator, registered.record.gpus, managed)


def _key(model: str, pool: str, worker: str) -> str:
    return f"{model}\0{pool}\0{worker}"
