"""Reconciliation: a new decision for targets that differ from reality, with missing or surplus workers."""

from loadline.core.fleet.pool import Pool
from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary.effects import Effect, RaiseAlarm


def reconcile(state: AgentState, model: ModelState, now: int) -> list[Effect]:
    """Mark a model for a new decision if its workers differ from its targets at ``now`` (ms); return alarms."""
    return [*_replace_missing(state, model, now), *_drain_surplus(state, model, now)]


def _replace_missing(state: AgentState, model: ModelState, now: int) -> list[Effect]:
    """Request overdue workers again, once per start deadline, since a scaler may have lost the decision."""
    if model.name in state.ledger.live:
        return []  # the decision is still announced, until it is applied or expires
    overdue = [pool for pool in model.pools.values() if pool.needs_rerequest(now)]
    for pool in overdue:
        pool.rerequested_at_ms = now
        model.reconcile = True
    names = ", ".join(f"{pool.overdue_workers(now)} of {pool.name}" for pool in overdue)
    return [RaiseAlarm("workers_missing", model.name, f"workers not ready in time: {names}")] if overdue else []


def _drain_surplus(state: AgentState, model: ModelState, now: int) -> list[Effect]:
    """Drain workers in excess of the target for ``surplus_after_ms``, since the bounds apply to them too."""
    if state.ledger.unaccepted(model.name) is not None:
        return []  # the decision is announced every second, and another one would drain nothing either
    fleet = state.fleet.knobs
    for pool in model.pools.values():
        since_ms = max(pool.surplus_since_ms, state.acting_since_ms)
        if pool.surplus_since_ms < 0 or now - since_ms < fleet.surplus_after_ms:
            continue
        if not _kept_workers_report(pool):
            continue
        if pool.victim_rule == "unknown" and model.name in state.ledger.live:
            continue  # a scaler applies the decision, and no worker that it may remove has begun to drain
        pool.surplus_since_ms = now
        model.reconcile = True
        surplus = pool.ready + pool.starting - pool.effective_target(now)
        return [RaiseAlarm("workers_surplus", model.name, f"{surplus} workers of {pool.name} exceed the target")]
    return []


def _kept_workers_report(pool: Pool) -> bool:
    """Return True unless all ready workers are silent of those that keep their places, the first registered.

    The others need not report: nobody requested the surplus, and a target that rose while it existed may have given
    some of it places, so it must not stay by saying nothing. A worker that moved here was requested.
    """
    in_service = [worker for worker in pool.workers.values() if worker.availability != "out"]
    in_service.sort(key=lambda worker: (worker.overdue, not worker.counted_from, worker.create_revision))
    ready = [worker.counted for worker in in_service[: pool.places] if worker.counted_as == "ready"]
    return any(ready) or not ready
