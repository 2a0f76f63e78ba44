"""Handlers of answers and reports of migrations, and of vanished workers."""

from collections.abc import Iterable

from loadline.core.fleet.worker import WorkerState
from loadline.core.handlers.turn import Turn
from loadline.core.migration.failed_workers import VanishedWorker
from loadline.core.migration.in_flight import InFlightMigration, MigrationPhase
from loadline.core.migration.memory import worker_key
from loadline.core.migration.peers import MigrationPeer
from loadline.core.migration.tally import MigrationTally
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.events import LoadReported, MigrationAnswered, MigrationReported, WorkerDrained
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import WorkerRecord


def migration_answered(turn: Turn, event: MigrationAnswered) -> list[Effect]:
    """Record the answer of a source; without one, open its circuit breaker."""
    memory = turn.state.migration
    before = _phase(memory.in_flight.open.get(event.command_id))
    migration = memory.in_flight.record_answer(event, turn.now)
    if migration is None or event.model not in turn.state.fleet.models:
        return []
    peer, tally = _peer(turn, migration, migration.command.source), _tally(turn, event.model)
    policy = migration.command.trigger
    turn.mark_changed(event.model)
    if event.accepted is not False:
        _count_phase(tally, before, migration, turn.now)
    if event.accepted is None:
        tally.count_command(policy, "unanswered")
        return _open_breaker(turn, event, migration, peer)
    if peer is not None:
        peer.record_answer()
        peer.excluded = not event.accepted
    tally.count_command(policy, "accepted" if event.accepted else "refused", event.reason or "")
    return []


def _open_breaker(
    turn: Turn, event: MigrationAnswered, migration: InFlightMigration, peer: MigrationPeer | None
) -> list[Effect]:
    command = migration.command
    knobs = turn.state.fleet.models[command.model].migration.knobs
    if peer is None or knobs is None or not turn.state.bus_connected:
        return []  # no worker can answer while the bus is disconnected
    is_new = peer.record_timeout(knobs.breaker_ms, knobs.breaker_max_ms, migration.sent_at_ms, turn.now)
    if not is_new or peer.failures > 1:
        return []
    detail = f" ({event.detail})" if event.detail else ""
    text = f"{command.source.worker} did not answer a migrate command{detail}; it gets none for {knobs.breaker_ms} ms"
    return [RaiseAlarm("migration_unanswered", command.model, text)]


def migration_reported(turn: Turn, event: MigrationReported) -> None:
    """Record the progress of a migration; exclude a destination that refused until its next report."""
    state = turn.state
    if event.model not in state.fleet.models:
        state.reject(Rejection.UNKNOWN_MODEL)
        return
    knobs, in_flight = state.fleet.models[event.model].migration.knobs, state.migration.in_flight
    if knobs is None or (event.command_id not in in_flight.open and not _is_adoptable(turn, event)):
        return
    before = _phase(in_flight.open.get(event.command_id))
    migration = in_flight.record_report(event, knobs.ttl_ms, knobs.migrations_per_worker_max, turn.now)
    if migration is None:
        return  # a repetition: sources report an end three times
    if state.leading:  # all agents receive reports, and only the leader counts them
        tally = _tally(turn, event.model)
        _count_phase(tally, before, migration, turn.now)
        if before is not None and before[0] == "asked":
            tally.count_command(migration.command.trigger, "accepted")  # the report overtook the answer
        if migration.ended:
            tally.count_command(migration.command.trigger, event.phase, event.reason)
            tally.count_ended(migration, turn.now)
    _record_peers(turn, event, migration)
    turn.mark_changed(event.model)


def _record_peers(turn: Turn, event: MigrationReported, migration: InFlightMigration) -> None:
    """Close the breaker of the source, which reports, and exclude the destination if it refused."""
    command = migration.command
    source, destination = _peer(turn, migration, command.source), _peer(turn, migration, command.destination)
    if source is not None:
        source.record_answer()
    if event.reason == "destination_refused" and destination is not None:
        destination.excluded = True


def _is_adoptable(turn: Turn, event: MigrationReported) -> bool:
    """Return True if an unknown migration is plausible: between registered workers, and not of a future epoch."""
    state, pools = turn.state, turn.state.fleet.models[event.model].pools
    for end in (event.source, event.destination):
        pool = pools.get(end.pool)
        worker = None if pool is None else pool.workers.get(end.worker)
        if worker is None or worker.record.incarnation != end.incarnation:
            return False
    return not (state.leading and event.epoch > state.leadership.epoch)


def _tally(turn: Turn, model: str) -> MigrationTally:
    return turn.state.fleet.models[model].migration.tally


def _phase(migration: InFlightMigration | None) -> tuple[MigrationPhase, int] | None:
    """Return the phase of a migration and its start."""
    return None if migration is None else (migration.phase, migration.since_ms)


def _count_phase(
    tally: MigrationTally, before: tuple[MigrationPhase, int] | None, migration: InFlightMigration, now: int
) -> None:
    """Count the time in the phase ``before`` if the migration has left it."""
    if before is not None and before[0] != migration.phase:
        tally.count_phase(before[0], now - before[1])


def record_vanished(turn: Turn, model: str, vanished_workers: Iterable[WorkerState]) -> None:
    """Record workers whose leases were lost while they were ready, also with a held drain.

    They count as failed in their failure domains, and their reports of migrations still count.
    """
    vanished = turn.state.migration.vanished
    enabled = any(one.migration.knobs is not None for one in turn.state.fleet.models.values())
    for worker in vanished_workers if enabled else ():
        record = worker.record
        if record.state == "ready" and (worker.drain_held or not worker.draining):
            key = worker_key(model, record.pool, record.worker)
            vanished.pop(key, None)  # so that it moves to the end
            vanished[key] = VanishedWorker(
                record.incarnation, record.node, record.unit, record.data_parallel_size > 1, turn.now, worker.seen_at_ms
            )


def record_registration(turn: Turn, record: WorkerRecord) -> None:
    """Remove a vanished worker whose name is registered again, or that has registered in another pool."""
    vanished = turn.state.migration.vanished
    vanished.pop(worker_key(*record.names), None)
    model = turn.state.fleet.models.get(record.model)
    for pool in model.pools if vanished and model is not None else ():
        key = worker_key(record.model, pool, record.worker)
        known = vanished.get(key)
        if known is not None and known.incarnation == record.incarnation:
            del vanished[key]


def record_drained(turn: Turn, event: WorkerDrained) -> None:
    """Remove a vanished worker that was drained, since it did not fail."""
    key = worker_key(event.model, event.pool, event.worker)
    known = turn.state.migration.vanished.get(key)
    if known is not None and known.incarnation == event.incarnation:
        del turn.state.migration.vanished[key]


def record_unregistered_report(turn: Turn, event: LoadReported) -> None:
    """Record a report of a vanished worker: it has only lost its connection to the store."""
    known = turn.state.migration.vanished.get(worker_key(event.model, event.pool, event.worker))
    if known is not None and known.incarnation == event.incarnation:
        known.seen_at_ms = turn.now


def _peer(turn: Turn, migration: InFlightMigration, end: MigrationEndpoint) -> MigrationPeer | None:
    """Return the peer at one end of a migration and mark it as changed; None for another incarnation."""
    memory = turn.state.fleet.models[migration.command.model].migration
    peer = memory.peers.find(end.pool, end.worker)
    if peer is None or peer.incarnation != end.incarnation:
        return None
    memory.changed_peers.append(end)
    return peer
