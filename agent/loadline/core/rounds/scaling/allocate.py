"""Allocate: share limited GPUs among models, and record which models wait for GPUs."""

from collections.abc import Sequence

from msgspec.structs import replace

from loadline.core.planning.allocation.gpu_ledger import GpuLedger
from loadline.core.planning.allocation.model_demand import ModelDemand, current_demand, demand_of
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.rounds.scaling import gate
from loadline.core.rounds.scaling.context import ScalingContext
from loadline.core.rounds.scaling.evaluate import Evaluation
from loadline.core.state.model_state import ModelState
from loadline.core.vocabulary.effects import Effect


def allocate(
    context: ScalingContext, evaluations: Sequence[Evaluation], ledger: GpuLedger | None, now: int
) -> list[Effect]:
    """Allocate limited GPUs for the demands of this round, and schedule other models whose grant changes.

    Returns:
        The problem for the exact solver, if one is due.
    """
    state, allocation, takes = context.state, context.state.allocation, context.supplies.takes
    if ledger is None or not takes or not state.leading or not (evaluations or allocation.solution):
        return []
    evaluated = {evaluation.model.name: evaluation for evaluation in evaluations}
    for name in takes:
        if name in evaluated or name not in allocation.demands:
            allocation.record_demand(name, _demand(context, state.fleet.models[name], evaluated.get(name), ledger, now))
    changed, effect = allocation.allocate(state.fleet, context.supplies, context.allocation, now)
    for name in changed:
        if name not in evaluated:
            state.fleet.models[name].plan_at_ms = now
    for name in allocation.changed_demands:
        model = state.fleet.models[name]
        model.plan_at_ms = min(model.plan_at_ms, allocation.next_allocation_ms)
    return [] if effect is None else [effect]


def without_allocation(context: ScalingContext, evaluation: Evaluation, fault: Exception, now: int) -> Evaluation:
    """Return the evaluation of a model after the allocation failed: a hold, if the model shares limited supplies."""
    if evaluation.model.name not in context.supplies.takes:
        return evaluation
    recommendation, alarms = context.fail(evaluation.model, fault, now)
    return replace(evaluation, recommendation=recommendation, effects=[*evaluation.effects, *alarms], failed=True)


def record_wait(
    context: ScalingContext, model: ModelState, proposal: Proposal, constraints: Constraints, now: int
) -> None:
    """Record the GPUs that a model waits for and those that it would release."""
    state = context.state
    state.gpus.record_wait(state.fleet, model, proposal, constraints.budget, now)
    state.allocation.record_wait(model.name, proposal.waits, constraints.supply, now)


def clear_wait(context: ScalingContext, model: ModelState) -> None:
    """Delete the records of a model for which nothing can be decided."""
    context.state.gpus.forget(model.name)
    context.state.allocation.forget(model.name)


def wake_waiting(context: ScalingContext, ledger: GpuLedger | None, now: int) -> None:
    """Schedule the models that wait for GPUs which became free, and those that must release some."""
    state = context.state
    if not (state.gpus.claims or state.allocation.waiting):
        return
    ledger = ledger or context.gpu_ledger(now)
    if ledger is not None:
        for name in (*state.gpus.models_to_wake(state.fleet, ledger, now), *state.allocation.models_to_wake(ledger)):
            state.fleet.models[name].plan_at_ms = now


def _demand(
    context: ScalingContext, model: ModelState, evaluation: Evaluation | None, ledger: GpuLedger, now: int
) -> ModelDemand:
    """Return the demand of a model; its current counts if nothing can be decided for it."""
    state, name = context.state, model.name
    pending = ledger.pending.get(name, {})
    unchanging = name in state.paused or context.models[name].no_operation
    if evaluation is None or evaluation.failed or unchanging or gate.unsettled(state, model, now) is not None:
        return current_demand(model, pending, now)
    granted, stale_after_ms = state.allocation.grant_of(name) or {}, state.fleet.knobs.stale_after_ms
    recommendation, hard = evaluation.recommendation, model.guardrails.hard
    return demand_of(model, recommendation, evaluation.bounds, hard, pending, granted, stale_after_ms, now)
