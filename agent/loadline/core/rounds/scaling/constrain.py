"""Constrain: collect the limits of a model and apply its guardrails."""

from loadline.core.planning.allocation.gpu_ledger import GpuLedger
from loadline.core.planning.guardrails.constraints import UNLIMITED_HEADROOM, Constraints
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.rounds.scaling.context import ScalingContext
from loadline.core.rounds.scaling.evaluate import Evaluation


def constrain(
    context: ScalingContext, evaluation: Evaluation, ledger: GpuLedger | None, now: int
) -> tuple[Proposal, Constraints]:
    """Apply the guardrails to a recommendation; return the resulting proposal and the constraints."""
    state, model = context.state, evaluation.model
    constraints = Constraints(
        state.acting_since_ms,
        evaluation.bounds,
        state.gpus.headroom(state.fleet, model.name, ledger, now),
        UNLIMITED_HEADROOM if ledger is None else state.allocation.headroom(state.fleet, model.name, ledger, now),
        state.drains.counts(model.name),
        frozenset(drain.pool for drain in state.drains.held(model.name).values()),
    )
    found = evaluation.recommendation
    return model.guardrails.apply(model, found.targets, constraints, now, found.unneeded), constraints
