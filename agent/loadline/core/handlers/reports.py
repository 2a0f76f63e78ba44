"""Handlers of load reports, traffic reports and the registry."""

from collections.abc import Iterable

from loadline.core.handlers import drains, migrations
from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.events import (
    LoadReported,
    RegistryRead,
    TrafficReported,
    WorkerDeregistered,
    WorkerRegistered,
)
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker


def loads_reported(turn: Turn, events: Iterable[LoadReported]) -> None:
    """Ingest the new samples of workers, in order."""
    state, now, ingest = turn.state, turn.now, turn.state.fleet.ingest
    changed: dict[str, None] = {}
    for event in events:
        refused, rejection = ingest(event, now)
        if rejection is not None:
            if rejection is Rejection.UNKNOWN_WORKER:
                migrations.record_unregistered_report(turn, event)
            state.reject(rejection, refused)
        if refused < len(event.samples):
            changed[event.model] = None
    for model in changed:
        turn.mark_changed(model)


def traffic_reported(turn: Turn, event: TrafficReported) -> None:
    """Ingest the traffic report of a frontend, unless it is a repetition."""
    model = turn.state.fleet.models.get(event.model)
    rejection = Rejection.UNKNOWN_MODEL if model is None else model.traffic.ingest(event, turn.now)
    if rejection is not None:
        turn.state.reject(rejection)
    else:
        turn.mark_due(event.model)


def registry_read(turn: Turn, event: RegistryRead) -> list[Effect]:
    """Replace the known workers by those of the registry."""
    state = turn.state
    for registered in event.workers:
        if state.fleet.former_pool(registered) is not None:
            _register(turn, registered)  # before its former key counts as gone
    before = {(model.name, pool.name): dict(pool.workers) for model, pool in state.fleet.pools()}
    refused = state.fleet.replace_registry(event.workers, turn.now)
    for (model, pool), known in before.items():
        present = state.fleet.models[model].pools[pool].workers
        migrations.record_vanished(turn, model, [worker for name, worker in known.items() if name not in present])
    for registered in event.workers:
        migrations.record_registration(turn, registered.record)
    for rejection in refused:
        state.reject(rejection)
    state.registry_read = True
    if state.leading and state.decisions_read:
        drains.resume_drains(turn)  # the victims were unknown when the decisions were read
    turn.mark_all_changed()
    if not refused:
        return []
    text = f"{len(refused)} registered workers are not counted: {', '.join(sorted(set(refused)))}"
    return [RaiseAlarm("worker_refused", "", text)]


def worker_registered(turn: Turn, event: WorkerRegistered) -> list[Effect]:
    """Add a worker, or update its record."""
    record = event.worker.record
    rejection = _register(turn, event.worker)
    migrations.record_registration(turn, record)
    if rejection is None:
        drains.resume_drain_of(turn, record)
        turn.mark_changed(record.model)
        return []
    turn.state.reject(rejection)
    text = f"{record.worker} of pool {record.pool} is not counted: {rejection}"
    return [RaiseAlarm("worker_refused", record.model, text)]


def _register(turn: Turn, registered: RegisteredWorker) -> Rejection | None:
    """Add a worker, update its record, or follow it to the other pool that its record names.

    A drain continues there.
    """
    state, record = turn.state, registered.record
    former = state.fleet.former_pool(registered)
    rejection = state.fleet.register(registered, turn.now)
    if former is not None and rejection is None:
        state.drains.move(record.model, former.name, record.pool, record.worker)
    return rejection


def worker_deregistered(turn: Turn, event: WorkerDeregistered) -> None:
    """Remove a worker whose key is gone."""
    pool = turn.state.fleet.find_pool(event.model, event.pool)
    worker = None if isinstance(pool, Rejection) else pool.workers.get(event.worker)
    rejection = turn.state.fleet.deregister(event.model, event.pool, event.worker, turn.now)
    if worker is not None and not worker.registered:
        migrations.record_vanished(turn, event.model, [worker])
    if rejection is None:
        turn.mark_changed(event.model)
