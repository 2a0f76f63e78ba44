"""Handlers of commits and of scalers' answers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from loadline.core.decisions.victims import misses_rule
from loadline.core.fleet.moved_workers import moves_ended_by
from loadline.core.fleet.pool import Pool
from loadline.core.handlers import drains
from loadline.core.handlers.turn import Turn
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.effects import Effect, RaiseAlarm
from loadline.core.vocabulary.events import (
    AnnouncementRequested,
    CommitRefused,
    CommitUnknown,
    DecisionAnswered,
    DecisionCommitted,
)

_NONE_IN_FORCE: Final[Mapping[str, int]] = MappingProxyType({})


def decision_committed(turn: Turn, event: DecisionCommitted) -> None:
    """Put a decision into force; the drains of its victims are held until a scaler accepts it."""
    state = turn.state
    unaccepted = state.ledger.unaccepted(event.model)
    decision = state.ledger.confirm_commit(event.decision_id, event.model, event.revision, turn.now)
    if decision is not None:
        if unaccepted is not None:
            _mark_superseded(state, unaccepted.decision_id, decision.decision_id)
        state.count("decisions_committed")
        _set_baseline(turn, decision)
        adopt(turn, decision)
        if not within_bounds(state, decision):  # a reload lowered them during the commit
            withdraw(state, decision.model, turn.now)
        _count_changes(turn, decision)
        if state.leading:
            drains.start_victims(turn, decision.model)


def commit_refused(turn: Turn, event: CommitRefused) -> list[Effect]:
    """Drop a refused decision; if the store fenced it off, read the decisions again."""
    state = turn.state
    if not state.ledger.drop_pending(event.decision_id, event.model, turn.now):
        return []
    state.count("commits_refused")
    if event.fenced:
        state.reread_decisions(turn.now)
    return [RaiseAlarm("commit_refused", event.model, event.detail)]


def commit_unknown(turn: Turn, event: CommitUnknown) -> list[Effect]:
    """Read the decisions again to find out whether the commit took effect."""
    state = turn.state
    if not state.ledger.mark_unknown(event.decision_id, event.model):
        return []
    state.count("commits_unknown")
    state.reread_decisions(turn.now)
    return [RaiseAlarm("commit_unknown", event.model, event.detail)]


def decision_answered(turn: Turn, event: DecisionAnswered) -> list[Effect]:
    """Record the answer of a scaler, and begin the drains of a decision that it accepts."""
    if not turn.state.leading:
        return []  # a standby may not have read the decision
    decide_again = _apply_victim_rules(turn, event)
    rejection, effects = turn.state.ledger.record_answer(event, turn.now, decide_again=decide_again)
    if rejection is not None:
        turn.state.reject(rejection)
    elif event.status == "refused":
        if effects:  # a repeated answer has none
            _reset_decided(turn, event.model, event.in_force)
            effects += _refused_claims(turn.state, event)
    elif drains.begin_held(turn, event.model) or _unblocks(turn.state, event.model):
        turn.mark_changed(event.model)
    return effects


def _refused_claims(state: AgentState, event: DecisionAnswered) -> list[Effect]:
    """Return an alarm for each pool of which a scaler keeps more replicas than are believed."""
    pools, claims = state.fleet.models[event.model].pools, sorted(event.in_force.items())
    return [
        RaiseAlarm(
            "claim_refused",
            event.model,
            f"{event.scaler} keeps {claimed} replicas of pool {name}, and no more than {pools[name].workers_quota} are "
            "believed (2 * replicas_max + 64): it refuses every decision until it keeps fewer",
        )
        for name, claimed in claims
        if name in pools and claimed > pools[name].workers_quota
    ]


def _unblocks(state: AgentState, model: str) -> bool:
    """Return True if a model whose decision is done may have waited to decide."""
    return state.ledger.knobs.blocking and not state.ledger.is_open(model)


def _apply_victim_rules(turn: Turn, event: DecisionAnswered) -> bool:
    """Remember the rules by which platforms select workers to remove; return True if they need another decision.

    The victims of a decision that were selected by another rule serve on: a drain would empty workers that stay.
    """
    state = turn.state
    decision = state.ledger.answered(event)
    if decision is None:
        return False
    model = state.fleet.models[event.model]
    if event.victims or event.status != "refused":
        for target in decision.targets:
            if target.pool in model.pools:
                model.pools[target.pool].victim_rule = event.victims.get(target.pool, "named")
    if not (state.ledger.is_open(event.model) and misses_rule(decision, event)):
        return False
    state.drains.cancel_held(event.model, state.fleet, turn.now)
    if not state.ledger.select_again(event):
        return False
    model.reconcile = True
    turn.mark_changed(event.model)
    return True


def announcement_requested(turn: Turn, event: AnnouncementRequested) -> None:
    """Announce the decision in force again, or make a new decision if it expired or was refused."""
    state = turn.state
    entry = state.ledger.entries.get(event.model)
    if not state.leading or not state.decisions_read or entry is None or entry.decision is None:
        return
    if not (within_bounds(state, entry.decision) and state.ledger.announce_again(event.model, turn.now)):
        state.fleet.models[event.model].reconcile = True
        turn.mark_changed(event.model)


def adopt(turn: Turn, decision: Decision) -> None:
    """Make the counts of a decision the decided counts."""
    pools = turn.state.fleet.models[decision.model].pools
    moves = moves_ended_by(decision, pools)
    for target in decision.targets:
        pool = pools.get(target.pool)
        if pool is not None:
            pool.set_decided(_plausible(turn.state, pool, target.replicas), turn.now, moves=moves[pool.name])
    turn.mark_changed(decision.model)


def adopt_changes(turn: Turn, decision: Decision) -> None:
    """Record when a former leader changed pools, which this one has not seen: cooldowns outlive a leader."""
    pools = turn.state.fleet.models[decision.model].pools
    changed_at_ms = min(decision.issued_at_ms, turn.now)  # the clock of that leader may be ahead
    for target in decision.targets:
        pool = pools.get(target.pool)
        if pool is None or pool.decided is not None:
            continue
        if target.replicas > target.previous:
            # When its workers were ready is unknown, and no start-up time is measured from here.
            pool.scaled_up_at_ms = pool.target_reached_at_ms = changed_at_ms
        elif target.replicas < target.previous:
            pool.scaled_down_at_ms = changed_at_ms


def adopt_in_new_pools(turn: Turn, model: str) -> None:
    """Make the counts of the decision in force the decided counts of pools that have none, unless it failed."""
    entry, pools = turn.state.ledger.entries.get(model), turn.state.fleet.models[model].pools
    if entry is None or entry.decision is None or entry.state in {"refused", "expired"}:
        return
    for target in entry.decision.targets:
        pool = pools.get(target.pool)
        if pool is not None and pool.decided is None:
            pool.reset_decided(_plausible(turn.state, pool, target.replicas), turn.now)


def _plausible(state: AgentState, pool: Pool, replicas: int) -> int:
    """Bound the count of a stored decision, which may be any; a count below the decided one would be decided again."""
    return min(replicas, max(state.fleet.knobs.workers_max, pool.knobs.replicas_max))


def within_bounds(state: AgentState, decision: Decision) -> bool:
    """Return True if a decision grows no pool above its maximum, which may be lower than when the decision was made."""
    pools = state.fleet.models[decision.model].pools
    return all(
        t.pool in pools and t.replicas <= max(pools[t.pool].knobs.replicas_max - pools[t.pool].moved, t.previous)
        for t in decision.targets
    )


def withdraw(state: AgentState, model: str, now: int) -> None:
    """Stop announcing a decision that stays in force; its victims serve on unless a scaler has accepted it."""
    state.ledger.stop_announcing(model)
    state.drains.cancel_held(model, state.fleet, now)


def _set_baseline(turn: Turn, decision: Decision) -> None:
    """Set the counts from which the first decision of a model changes its pools: those that existed before it."""
    pools = turn.state.fleet.models[decision.model].pools
    for target in decision.targets:
        pool = pools.get(target.pool)
        if pool is not None and pool.decided is None:
            pool.reset_decided(target.previous, turn.now)


def _mark_superseded(state: AgentState, decision_id: str, by: str) -> None:
    """Record in the explanation of a decision that another one took its place."""
    state.count("decisions_superseded")
    state.explanations.mark_superseded(decision_id, by)


def _count_changes(turn: Turn, decision: Decision) -> None:
    """Count the change of each pool by the first reason for the pool or for the whole model."""
    pools = turn.state.fleet.models[decision.model].pools
    for target in decision.targets:
        reasons = [reason for reason in decision.reasons if reason.startswith(f"{target.pool}:") or ":" not in reason]
        pool = pools.get(target.pool)
        if pool is not None and reasons:
            pool.count_change(target.previous, target.replicas, reasons[0].rpartition(":")[2])


def _reset_decided(turn: Turn, model: str, in_force: Mapping[str, int] = _NONE_IN_FORCE) -> None:
    """Reset the decided counts after a decision failed.

    They become the counts that its scaler keeps (``in_force``), which a leader may have lost with the data of the
    store, and are decided again, since the next leader knows only the stored ones. They may be above the maximum, as
    the scaler refuses whatever starts from less; the next decision cancels what is above. A scaler may claim any count,
    so no more are believed than may register. Other counts become those of the existing workers, between the two
    counts of the change: workers that are missing for a moment would otherwise turn a refused scale-up into a
    scale-down, and workers that nobody requested would count as decided.
    """
    state, now = turn.state, turn.now
    state.drains.cancel_held(model, state.fleet, now)
    decision = state.ledger.entries[model].decision
    changes = {t.pool: sorted((t.previous, t.replicas)) for t in decision.targets} if decision else {}
    for pool in state.fleet.models[model].pools.values():
        low, high = changes.get(pool.name, (0, pool.knobs.replicas_max))
        existing = pool.ready + pool.worker_counts(now).starting - pool.moved
        if pool.name in in_force:
            state.fleet.models[model].reconcile = True
            pool.reset_decided(min(in_force[pool.name], pool.workers_quota), now)
        else:
            pool.reset_decided(min(max(existing, low), high), now)
    # In the state and not only in this turn: a snapshot may be taken before the next one.
    state.fleet.models[model].plan_at_ms = now


def tick(turn: Turn) -> list[Effect]:
    """Announce or expire open decisions, whichever is due."""
    ledger = turn.state.ledger
    effects: list[Effect] = []
    for model in list(ledger.live):
        effects += ledger.tick(model, turn.now)
        if ledger.entries[model].state == "expired":
            _reset_decided(turn, model)
    return effects
