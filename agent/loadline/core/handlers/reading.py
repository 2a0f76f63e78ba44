"""Handlers of decisions read from the store. A new leader reads them before it decides anything.

A leader reads them again after a refused commit or one with an unknown result.
"""

from loadline.core.handlers import decisions, removed_pools
from loadline.core.handlers.turn import Turn
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.decisions import Decision, StoredDecision
from loadline.core.vocabulary.effects import Effect, RaiseAlarm, ReadDecisions
from loadline.core.vocabulary.events import DecisionsRead, DecisionsUnread

SEQUENCE_MAX = 2**52
"""Bound of plausible sequences: far above any real one, and small enough for the next one to fit into a message."""
_LOST = RaiseAlarm("store_went_back", "", "etcd has lost data, such as the newest decisions and pauses")


def decisions_read(turn: Turn, event: DecisionsRead) -> list[Effect]:
    """Put stored decisions into force, and resume their drains."""
    state = turn.state
    if event.request != state.read_request or not state.leading:
        return []
    state.reading, state.decisions_read = False, True
    revisions = {stored.decision.model: stored.revision for stored in event.decisions} | event.unreadable
    effects: list[Effect] = [_LOST] if state.ledger.has_lost(revisions, event.revision) else []
    known = [stored for stored in event.decisions if stored.decision.model in state.fleet.models]
    valid = [stored for stored in known if _is_plausible(state, stored.decision)]
    _forget_outdated(state, valid, event, turn.now)
    for model in state.ledger.unstored(valid, event.revision):
        state.fleet.models[model].reconcile = True  # a new decision, since the next leader knows only the stored one
    for decision in state.ledger.load(valid, event.revision, turn.now):
        removed_pools.forget(state.fleet.models[decision.model], decision.epoch)
        decisions.adopt_changes(turn, decision)
        decisions.adopt(turn, decision)
        if not decisions.within_bounds(state, decision):
            decisions.withdraw(state, decision.model, turn.now)
    removed_pools.restore(turn)
    turn.mark_all_changed()
    refused = {stored.decision.model: stored.revision for stored in known if stored not in valid}
    refused.update((model, at) for model, at in event.unreadable.items() if model in state.fleet.models)
    for model, revision in refused.items():
        state.ledger.entry(model).revision = revision  # the next decision replaces it
    text = "its key in etcd has no plausible decision; the next decision replaces it"
    return effects + [RaiseAlarm("stored_decision_refused", model, text) for model in sorted(refused)]


def _forget_outdated(state: AgentState, stored: list[StoredDecision], event: DecisionsRead, now: int) -> None:
    """Forget decisions of earlier terms that the store has lost if another agent has led since, and decided anew.

    No decision is then in force. The counts of the earlier term would end workers: 8 became 2 after etcd was wiped.
    """
    if not state.leadership.others_led:
        return
    for model in state.ledger.unstored(stored, event.revision):
        if state.ledger.forget_before(model, state.leadership.epoch):
            state.fleet.models[model].removed_pools.clear()
            for pool in state.fleet.models[model].pools.values():
                pool.forget_decided(now)


def store_went_back(turn: Turn) -> Effect:
    """Report that the store has lost data; a leader reads the decisions that are left."""
    turn.state.ledger.forget_revisions()
    if turn.state.leading:
        turn.state.reread_decisions(turn.now)
    return _LOST


def _is_plausible(state: AgentState, decision: Decision) -> bool:
    """Return True if an agent can have written a decision: its epoch is not in the future and its sequence is low."""
    return decision.epoch <= state.leadership.epoch and decision.sequence < SEQUENCE_MAX


def decisions_unread(turn: Turn, event: DecisionsUnread) -> None:
    """Retry the read after a while."""
    if event.request == turn.state.read_request:
        turn.state.reading = False
        turn.state.read_at_ms = turn.now + turn.state.leadership.knobs.retry_ms


def tick(turn: Turn) -> list[Effect]:
    """Read the decisions if that is due; called for a leader only."""
    state = turn.state
    if state.decisions_read or state.reading or turn.now < state.read_at_ms:
        return []
    state.reading = True
    state.read_request += 1
    return [ReadDecisions(state.read_request)]


def next_wake(state: AgentState) -> int | None:
    """Return the Unix time in ms at which to read the decisions; None if they are read or being read."""
    return None if state.decisions_read or state.reading else state.read_at_ms
