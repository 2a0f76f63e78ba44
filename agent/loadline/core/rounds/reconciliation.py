"""Standing counts that differ from what there is are decided again: workers did not come, or are too many."""

from loadline.core.fleet.fleet import Model
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.effects import Effect, RaiseAlarm


def renew(state: AgentState, model: Model, now: int) -> list[Effect]:
    """Have what stands of a model decided again where it is not so at ``now`` (ms); people are told."""
    return [*_what_is_missing(state, model, now), *_what_is_too_much(state, model, now)]


def _what_is_missing(state: AgentState, model: Model, now: int) -> list[Effect]:
    """Workers that did not come are asked for again, once in every start deadline: a scaler may have lost them."""
    if model.name in state.ledger.live:
        return []  # it is still being asked for: the decision is carried out, or it expires
    overdue = [pool for pool in model.pools.values() if pool.needs_rerequest(now)]
    for pool in overdue:
        pool.rerequested_at_ms = now
        state.renewals[model.name] = None
    names = ", ".join(f"{pool.missing_workers(now)} of {pool.name}" for pool in overdue)
    return [RaiseAlarm("workers_missing", model.name, f"did not come in time: {names}")] if overdue else []


def _what_is_too_much(state: AgentState, model: Model, now: int) -> list[Effect]:
    """Workers above what stands are drained: starting too many is no way around the bounds."""
    fleet = state.fleet.knobs
    for pool in model.pools.values():
        since_ms = max(pool.surplus_since_ms, state.acting_since_ms)
        if pool.surplus_since_ms < 0 or now - since_ms < fleet.surplus_after_ms:
            continue
        if not pool.has_quorum(fleet.quorum_ratio):
            continue
        pool.surplus_since_ms = now
        state.renewals[model.name] = None
        surplus = pool.ready + pool.starting - pool.effective_target(now)
        return [RaiseAlarm("workers_surplus", model.name, f"{surplus} of {pool.name} are more than was decided")]
    return []
