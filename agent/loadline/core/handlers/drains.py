"""Handlers of drains: of the victims of decisions, and of workers that an operator names."""

from msgspec.structs import replace

from loadline.core.fleet.moved_workers import home_of
from loadline.core.handlers import migrations
from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.effects import Effect
from loadline.core.vocabulary.events import DrainAnswered, DrainRequested, WorkerDrained
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import WorkerRecord


def drain_answered(turn: Turn, event: DrainAnswered) -> list[Effect]:
    """Record the answer of a worker to a drain command."""
    return turn.state.drains.record_answer(event, turn.state.bus_connected, turn.now)


def worker_drained(turn: Turn, event: WorkerDrained) -> None:
    """End the drain of a worker that is empty."""
    state = turn.state
    # It names the pool whose scaler waits for it; drains are known by the pool in which the worker serves.
    victim = Victim(event.worker, event.incarnation)
    event = replace(event, pool=state.fleet.serving_pool(event.model, event.pool, victim))
    migrations.record_drained(turn, event)
    if state.fleet.external_drains or not state.leading:
        pool = state.fleet.find_pool(event.model, event.pool)
        worker = None if isinstance(pool, Rejection) else pool.workers.get(event.worker)
        if worker is not None and worker.record.incarnation == event.incarnation:
            worker.drain_handed_over = False  # nothing to resume if this agent leads again
            if state.fleet.external_drains:
                state.fleet.end_drain(event.model, event.pool, event.worker, turn.now)
        return
    rejection = state.drains.record_drained(event, state.fleet, turn.now)
    if rejection is None:
        state.count("workers_drained")
        state.fleet.models[event.model].migration.tally.count_drain(state.drains.finished[-1].took_ms)
        turn.mark_changed(event.model)
    # An unknown drain is not counted as a rejection: a worker repeats its report until its process ends.


def drain_requested(turn: Turn, event: DrainRequested) -> None:
    """Drain the worker that an operator names, and replace it."""
    state, now = turn.state, turn.now
    if not state.leading:
        return
    pool = state.fleet.find_pool(event.model, event.pool)
    worker = None if isinstance(pool, Rejection) else pool.workers.get(event.worker)
    if worker is None:
        state.reject(Rejection.UNKNOWN_WORKER)
        return
    pools = state.fleet.models[event.model].pools
    if not worker.draining and state.drains_full(event.model, home_of(pools, worker)):
        state.reject(Rejection.DRAINS_FULL)
        return
    for known in pools.values():
        if known.decided is None:
            known.reset_decided(
                known.effective_target(now) - known.moved, now
            )  # otherwise the target would shrink with the worker
    victim = Victim(event.worker, worker.record.incarnation)
    state.drains.start(state.fleet, event.model, event.pool, victim, f"operator-{now}", now, again=True)
    # A new decision names the victim, for scalers, which delete it, and for a new leader, which resumes the drain.
    state.fleet.models[event.model].reconcile = True
    turn.mark_changed(event.model)


def start_victims(turn: Turn, model: str) -> None:
    """Start the drains of the decision in force, held until a scaler accepts it: without one nobody ends the victims.

    Open and ended drains stay as they are. The victims of a decision that was never accepted serve on, those that the
    platform does not remove, and those of an earlier decision that this one does not name.
    """
    state = turn.state
    entry = state.ledger.entries.get(model)
    if entry is None or entry.decision is None:
        return
    starts = not entry.victims_stay and (entry.accepted or entry.state == "committed")
    victims = [(target.pool, victim) for target in entry.decision.targets for victim in target.victims if starts]
    state.drains.cancel_held(model, state.fleet, turn.now, named={victim for _, victim in victims})
    drain_id, held = entry.decision.decision_id, not entry.accepted
    for home, victim in victims:
        pool = state.fleet.serving_pool(model, home, victim)
        state.drains.start(state.fleet, model, pool, victim, drain_id, turn.now, held=held)


def begin_held(turn: Turn, model: str) -> bool:
    """Begin the held drains of a model if a scaler has accepted its decision; return True if there were any."""
    state = turn.state
    return state.ledger.entries[model].accepted and state.drains.begin_held(model, state.fleet, turn.now)


def resume_drains(turn: Turn) -> None:
    """Resume the drains that a former leader started."""
    for model in turn.state.ledger.entries:
        start_victims(turn, model)


def resume_drain_of(turn: Turn, record: WorkerRecord) -> None:
    """Resume the drain of a victim that registers again after it counted as dead."""
    state = turn.state
    if not (state.leading and state.decisions_read):
        return
    entry = state.ledger.entries.get(record.model)
    decision = entry.decision if entry is not None else None
    victim = Victim(record.worker, record.incarnation)
    if decision is not None and any(victim in target.victims for target in decision.targets):
        start_victims(turn, record.model)


def tick(turn: Turn) -> list[Effect]:
    """Send drain commands that are due, and close drains that ended."""
    state = turn.state
    listening_since_ms = state.bus_since_ms if state.bus_connected else None
    return state.drains.tick(state.fleet, state.leadership.epoch, listening_since_ms, turn.now)
