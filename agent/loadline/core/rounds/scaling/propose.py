"""Propose: a decision, an advice or a hold for a proposal, each with its explanation."""

from functools import partial

from loadline.core.decisions.victims import Removal, select_victims
from loadline.core.fleet.worker import WorkerState
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.rounds.scaling.context import Outcome, ScalingContext
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.core.vocabulary.effects import Effect
from loadline.core.vocabulary.reasons import Explanation, Reason, ReasonCode, Recommendation

REASONS_MAX = 64
"""Largest number of reason codes in a decision."""


def hold(
    model: ModelState, recommendation: Recommendation, proposal: Proposal, obstacle: Reason | None, now: int
) -> Outcome:
    """Return a hold; ``obstacle`` is the reason, None if the proposal changes nothing."""
    limits = proposal.limits if obstacle is None else [obstacle, *proposal.limits]
    return Outcome(_explain("held", "", model, recommendation, proposal, limits, now))


def advise(model: ModelState, recommendation: Recommendation, proposal: Proposal, now: int) -> Outcome:
    """Return the decision that a model with ``no_operation`` would get, as advice."""
    model.reconcile = False
    limits = [Reason(ReasonCode.ADVISE_ONLY), *proposal.limits]
    return Outcome(_explain("advised", "", model, recommendation, proposal, limits, now))


def propose(
    context: ScalingContext, model: ModelState, recommendation: Recommendation, proposal: Proposal, now: int
) -> Outcome:
    """Create a decision in the ledger, with its victims, and return the effect that commits it."""
    state = context.state
    removals = _removals(context, model, recommendation, proposal)
    targets = tuple(
        PoolTarget(
            pool=pool.name,
            role=pool.knobs.role,
            replicas=removals[pool.name].replicas,
            previous=max(0, pool.effective_target(now) - pool.moved),
            victims=removals[pool.name].victims,
            victim_rule=pool.victim_rule or "named",
        )
        for pool in model.pools.values()
    )
    reasons = [Reason(ReasonCode.DECIDED_AGAIN)] if model.reconcile else []
    model.reconcile = False
    reasons += [r for r in recommendation.reasons if not r.pool or r.pool in recommendation.targets]
    reasons += proposal.limits
    codes = tuple(dict.fromkeys(f"{r.pool}:{r.code}" if r.pool else str(r.code) for r in reasons))[:REASONS_MAX]
    ttl_ms = state.drains.knobs.ttl_ms
    decision = state.ledger.propose(model.name, targets, codes, state.leadership.epoch, ttl_ms, now)
    effects: tuple[Effect, ...] = (state.ledger.commit_effect(model.name, context.scope, state.leadership.lease_id),)
    explanation = _explain("decided", decision.decision_id, model, recommendation, proposal, proposal.limits, now)
    return Outcome(explanation, effects)


def _removals(
    context: ScalingContext, model: ModelState, recommendation: Recommendation, proposal: Proposal
) -> dict[str, Removal]:
    """Return the counts and the workers to remove, by the pool whose scaler started them."""
    draining = {name: context.state.drains.started_in(model.name, name) for name in model.pools}
    migration = context.models[model.name].migration
    can_migrate = partial(_can_migrate, model) if migration.enabled and migration.migrate_drains else None
    return select_victims(model.pools, proposal.targets, draining, can_migrate, recommendation.victims)


def _can_migrate(model: ModelState, worker: WorkerState) -> bool:
    """Return True if a worker has ever reported a free slot to send requests."""
    record = worker.record
    peer = model.migration.peers.find(record.pool, record.worker)
    return peer is not None and peer.incarnation == record.incarnation and peer.slots_out_max > 0


def _explain(  # noqa: PLR0917 - one argument for each part of an explanation
    outcome: str,
    decision_id: str,
    model: ModelState,
    recommendation: Recommendation,
    proposal: Proposal,
    limits: list[Reason],
    now: int,
) -> Explanation:
    current = {name: pool.effective_target(now) for name, pool in model.pools.items()}
    return Explanation(
        model=model.name,
        at_ms=now,
        outcome=outcome,
        decision_id=decision_id,
        current=current,
        recommendations=(recommendation,),
        limits=tuple(limits),
        targets=proposal.targets or current,
    )
