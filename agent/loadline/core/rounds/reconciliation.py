"""Reconciliation: targets that differ from reality are decided again, for missing workers and for surplus ones."""

from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary.effects import Effect, RaiseAlarm


def reconcile(state: AgentState, model: ModelState, now: int) -> list[Effect]:
    """Have the targets of a model decided again where reality differs at ``now`` (ms), with an alarm."""
    return [*_replace_missing(state, model, now), *_drain_surplus(state, model, now)]


def _replace_missing(state: AgentState, model: ModelState, now: int) -> list[Effect]:
    """Ask again for workers that did not come, once in every start deadline: a scaler may have lost the decision."""
    if model.name in state.ledger.live:
        return []  # the decision is still announced: it is applied, or it expires
    overdue = [pool for pool in model.pools.values() if pool.needs_rerequest(now)]
    for pool in overdue:
        pool.rerequested_at_ms = now
        model.reconcile = True
    names = ", ".join(f"{pool.overdue_workers(now)} of {pool.name}" for pool in overdue)
    return [RaiseAlarm("workers_missing", model.name, f"did not come in time: {names}")] if overdue else []


def _drain_surplus(state: AgentState, model: ModelState, now: int) -> list[Effect]:
    """Drain workers above the target: starting too many is no way around the bounds."""
    fleet = state.fleet.knobs
    for pool in model.pools.values():
        since_ms = max(pool.surplus_since_ms, state.acting_since_ms)
        if pool.surplus_since_ms < 0 or now - since_ms < fleet.surplus_after_ms:
            continue
        if not pool.has_quorum(fleet.quorum_ratio):
            continue
        pool.surplus_since_ms = now
        model.reconcile = True
        surplus = pool.ready + pool.starting - pool.effective_target(now)
        return [RaiseAlarm("workers_surplus", model.name, f"{surplus} of {pool.name} are more than was decided")]
    return []
