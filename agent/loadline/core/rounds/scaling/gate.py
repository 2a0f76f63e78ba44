"""Gate: obstacles to a decision at this moment."""

from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary.reasons import Reason, ReasonCode


def unsettled(state: AgentState, model: ModelState, now: int) -> Reason | None:
    """Return the reason why this agent may not decide for a model yet; None if it may."""
    if not state.leadership.may_commit(now):
        return Reason(ReasonCode.NOT_LEADER)
    if not (state.registry_read and state.decisions_read):
        return Reason(ReasonCode.NOT_SETTLED)
    return None if state.settled(model, now) else Reason(ReasonCode.NOT_SETTLED)


def obstacle(state: AgentState, model: ModelState, now: int) -> Reason | None:
    """Return the reason why no decision may be proposed for a model now; None if one may."""
    if state.stopping:
        return Reason(ReasonCode.STOPPING)
    if state.leadership.handing_over:
        return Reason(ReasonCode.HANDING_OVER)
    if model.name in state.paused:
        return Reason(ReasonCode.PAUSED)
    if not state.bus_connected:
        return Reason(ReasonCode.BUS_DOWN)
    return _earlier_decision(state, model, now)


def _earlier_decision(state: AgentState, model: ModelState, now: int) -> Reason | None:
    """Return the reason why the next decision of a model waits for the last one; None if it does not."""
    entry = state.ledger.entry(model.name)
    if entry.pending is not None:
        return Reason(ReasonCode.DECISION_IN_FLIGHT)
    if state.ledger.blocks(model.name, state.leadership.epoch):
        return Reason.of(ReasonCode.DECISION_UNFINISHED, left_ms=max(0, entry.expires_at_ms - now))
    if now < entry.not_before_ms:
        return Reason.of(ReasonCode.RETRY_BACKOFF, left_ms=entry.not_before_ms - now)
    return None
