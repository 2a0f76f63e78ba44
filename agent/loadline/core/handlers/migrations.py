"""What workers say of the moves that were asked of them, and workers that vanish."""

from collections.abc import Iterable

from loadline.core.fleet.worker import WorkerState
from loadline.core.handlers.turn import Turn
from loadline.core.migration.in_flight import InFlightMigration, MigrationPhase
from loadline.core.migration.memory import MigrationTally, VanishedWorker, key_of
from loadline.core.migration.peers import MigrationPeer
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.events import LoadReported, MigrationAnswered, MigrationReported, WorkerDrained
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.reasons import Rejection


def migration_answered(turn: Turn, event: MigrationAnswered) -> list[Effect]:
    """Note whether a source has begun a move. One that does not answer is left alone for a while."""
    memory = turn.state.migration
    before = _stage(memory.flights.open.get(event.command_id))
    flight = memory.flights.answered(event, turn.now)
    if flight is None or event.model not in turn.state.fleet.models:
        return []
    peer, tally, policy = _peer(turn, flight, flight.move.source), memory.tally(event.model), flight.move.trigger
    turn.change(event.model)
    if event.accepted is not False:
        _spend(tally, before, flight, turn.now)
    if event.accepted is None:
        tally.note(policy, "unanswered")
        return _silent(turn, event, flight, peer)
    if peer is not None:
        peer.answered()
        peer.excluded = not event.accepted
    tally.note(policy, "accepted" if event.accepted else "refused", event.reason or "")
    return []


def _silent(
    turn: Turn, event: MigrationAnswered, flight: InFlightMigration, peer: MigrationPeer | None
) -> list[Effect]:
    knobs = turn.state.migration_knobs.get(flight.move.model)
    if peer is None or knobs is None or not turn.state.bus_connected:
        return []  # without the bus nobody can answer
    news = peer.silent(knobs.breaker_ms, knobs.breaker_max_ms, flight.sent_at_ms, turn.now)
    if not news or peer.failures > 1:
        return []
    why = f" ({event.detail})" if event.detail else ""
    text = (
        f"{flight.move.source.worker} gave no answer to a migrate command{why}: it is asked again in "
        f"{knobs.breaker_ms} ms"
    )
    return [RaiseAlarm("migration_unanswered", flight.move.model, text)]


def migration_reported(turn: Turn, event: MigrationReported) -> None:
    """Note how far a move is. A destination that refused is passed over until it reports."""
    state = turn.state
    if event.model not in state.fleet.models:
        state.reject(Rejection.UNKNOWN_MODEL)
        return
    knobs = state.migration_knobs.get(event.model)
    if knobs is None or (event.command_id not in state.migration.flights.open and not _adoptable(turn, event)):
        return  # others move its requests, or it is of a life or a term that we know nothing of
    before = _stage(state.migration.flights.open.get(event.command_id))
    flights, most = state.migration.flights, knobs.migrations_per_worker_max
    flight = flights.reported(event, knobs.ttl_ms, most, turn.now)
    if flight is None:
        return  # a repeat: a source says three times how a move has ended
    if state.leading:  # all agents hear it, one counts
        tally = state.migration.tally(event.model)
        _spend(tally, before, flight, turn.now)
        if before is not None and before[0] == "asked":
            tally.note(flight.move.trigger, "accepted")  # the report was faster than the answer
        if flight.ended:
            tally.note(flight.move.trigger, event.phase, event.reason)
            tally.end(flight)
    _note_peers(turn, event, flight)
    turn.change(event.model)


def _note_peers(turn: Turn, event: MigrationReported, flight: InFlightMigration) -> None:
    """A source that reports is there, whether its answer was heard or not."""
    source, destination = (_peer(turn, flight, end) for end in (flight.move.source, flight.move.destination))
    if source is not None:
        source.answered()
    if event.reason == "destination_refused" and destination is not None:
        destination.excluded = True


def _adoptable(turn: Turn, event: MigrationReported) -> bool:
    """Whether a move that we did not ask for may be true: between workers that we know, of a term that there was."""
    state, pools = turn.state, turn.state.fleet.models[event.model].pools
    for end in (event.source, event.destination):
        pool = pools.get(end.pool)
        worker = None if pool is None else pool.workers.get(end.worker)
        if worker is None or worker.record.incarnation != end.incarnation:
            return False
    return not (state.leading and event.epoch > state.leadership.epoch)


def _stage(flight: InFlightMigration | None) -> tuple[MigrationPhase, int] | None:
    """The phase that a move is in, and since when."""
    return None if flight is None else (flight.phase, flight.since_ms)


def _spend(
    tally: MigrationTally, before: tuple[MigrationPhase, int] | None, flight: InFlightMigration, now: int
) -> None:
    """Count how long a move was in the phase that it was in before."""
    if before is not None and before[0] != flight.phase:
        tally.spend(before[0], now - before[1])


def vanish(turn: Turn, model: str, gone: Iterable[WorkerState]) -> None:
    """Remember workers whose leases were lost while they were at work: what shares their node or unit may fail too.

    And what they still say of moves counts, as long as they are heard.
    """
    vanished = turn.state.migration.vanished
    for worker in gone if turn.state.migration_knobs else ():
        record = worker.record
        if record.state == "ready" and not worker.draining:
            key = key_of(model, record.pool, record.worker)
            vanished.pop(key, None)  # the newest is the last
            vanished[key] = VanishedWorker(
                record.incarnation, record.node, record.unit, record.data_parallel_size > 1, turn.now, worker.seen_at_ms
            )


def come_back(turn: Turn, model: str, pool: str, worker: str) -> None:
    """A worker of that name is registered again."""
    turn.state.migration.vanished.pop(key_of(model, pool, worker), None)


def left(turn: Turn, event: WorkerDrained) -> None:
    """A worker was emptied and left: it has not vanished."""
    key = key_of(event.model, event.pool, event.worker)
    known = turn.state.migration.vanished.get(key)
    if known is not None and known.incarnation == event.incarnation:
        del turn.state.migration.vanished[key]


def heard_of(turn: Turn, event: LoadReported) -> None:
    """A worker that is not registered reports: it is only cut off from the store."""
    known = turn.state.migration.vanished.get(key_of(event.model, event.pool, event.worker))
    if known is not None and known.incarnation == event.incarnation:
        known.heard_at_ms = turn.now


def _peer(turn: Turn, flight: InFlightMigration, end: MigrationEndpoint) -> MigrationPeer | None:
    """What is remembered of a worker, if it is still that one; it is about to change."""
    memory, model = turn.state.migration, flight.move.model
    peers = memory.peers.get(model)
    peer = None if peers is None else peers.find(end.pool, end.worker)
    if peer is None or peer.incarnation != end.incarnation:
        return None
    memory.touched.setdefault(model, []).append(end)
    return peer
