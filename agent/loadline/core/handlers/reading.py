"""What the store holds, read back: whoever begins to lead, or is unsure, decides nothing before that."""

from loadline.core.handlers import decisions, drains
from loadline.core.handlers.turn import Turn
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.effects import Effect, RaiseAlarm, ReadDecisions
from loadline.core.vocabulary.events import DecisionsRead, DecisionsUnread

SEQUENCE_MAX = 2**52
"""Far beyond what is ever reached, and one more still fits into a message."""


def decisions_read(turn: Turn, event: DecisionsRead) -> list[Effect]:
    """Let what was decided stand again, and go on from there."""
    state = turn.state
    if event.request != state.read_request or not state.leading:
        return []
    state.reading, state.decisions_read = False, True
    known = [stored for stored in event.decisions if stored.decision.model in state.fleet.models]
    believed = [stored for stored in known if _believable(state, stored.decision)]
    for decision in state.ledger.load(believed, event.revision, turn.now):
        decisions.adopt(turn, decision)
        if not decisions.within_bounds(state, decision):
            state.ledger.stop_announcing(decision.model)
    drains.go_on(turn)
    turn.change_all()
    refused = {stored.decision.model: stored.revision for stored in known if stored not in believed}
    refused.update((model, at) for model, at in event.unreadable.items() if model in state.fleet.models)
    for model, revision in refused.items():
        state.ledger.entry(model).revision = revision  # so that the next decision takes its place
    text = "its key in etcd holds no decision that an agent could have made; the next decision replaces it"
    return [RaiseAlarm("stored_decision_refused", model, text) for model in sorted(refused)]


def _believable(state: AgentState, decision: Decision) -> bool:
    """Whether an agent can have written it: none has led in a later term, or counts that far."""
    return decision.epoch <= state.leadership.epoch and decision.sequence < SEQUENCE_MAX


def decisions_unread(turn: Turn, event: DecisionsUnread) -> None:
    """Read them again a little later."""
    if event.request == turn.state.read_request:
        turn.state.reading = False
        turn.state.read_at_ms = turn.now + turn.state.leadership.knobs.retry_ms


def tick(turn: Turn) -> list[Effect]:
    """Read the decisions where that is due. Only a leader asks."""
    state = turn.state
    if state.decisions_read or state.reading or turn.now < state.read_at_ms:
        return []
    state.reading = True
    state.read_request += 1
    return [ReadDecisions(state.read_request)]


def next_wake(state: AgentState) -> int | None:
    """Return when (Unix ms) to read the decisions; None: they are read, or being read."""
    return None if state.decisions_read or state.reading else state.read_at_ms
