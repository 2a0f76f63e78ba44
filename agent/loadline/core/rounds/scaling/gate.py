"""Gate: whether a decision may be made now."""

from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary.reasons import Reason, ReasonCode


def unsettled(state: AgentState, model: ModelState, now: int) -> Reason | None:
    """Return why nothing may be decided yet; None once this agent leads and has read everything."""
    if not state.leadership.may_commit(now):
        return Reason(ReasonCode.NOT_LEADER)
    if not (state.registry_read and state.decisions_read):
        return Reason(ReasonCode.NOT_SETTLED)
    if state.acting_since_ms < 0:
        state.acting_since_ms = now
    return None if state.settled(model, now) else Reason(ReasonCode.NOT_SETTLED)


def obstacle(state: AgentState, model: ModelState, now: int) -> Reason | None:
    """Return why no decision may be started for a model now, although it may want one."""
    entry = state.ledger.entry(model.name)
    if state.stopping:
        return Reason(ReasonCode.STOPPING)
    if model.name in state.paused:
        return Reason(ReasonCode.PAUSED)
    if not state.bus_connected:
        return Reason(ReasonCode.BUS_DOWN)
    if entry.pending is not None:
        return Reason(ReasonCode.DECISION_IN_FLIGHT)
    if now < entry.not_before_ms:
        return Reason.of(ReasonCode.RETRY_BACKOFF, left_ms=entry.not_before_ms - now)
    return None
