"""Pipeline of scaling rounds: evaluate, allocate, constrain, gate, propose."""

from collections.abc import Sequence

from loadline.core.planning.allocation.gpu_ledger import GpuLedger
from loadline.core.planning.conditions import conditions
from loadline.core.planning.guardrails.proposal import Proposal
from loadline.core.planning.planners import Planner
from loadline.core.rounds.reconciliation import reconcile
from loadline.core.rounds.scaling import gate
from loadline.core.rounds.scaling.allocate import allocate, clear_wait, record_wait, wake_waiting, without_allocation
from loadline.core.rounds.scaling.constrain import constrain
from loadline.core.rounds.scaling.context import Outcome, ScalingContext
from loadline.core.rounds.scaling.evaluate import Evaluation, evaluate
from loadline.core.rounds.scaling.propose import advise, hold, propose
from loadline.core.state.agent_state import AgentState
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import Effect
from loadline.core.vocabulary.reasons import Explanation, Reason, ReasonCode, Recommendation


class ScalingPipeline:
    """Pipeline that plans models. It keeps no state of its own beyond the GPU ledger of the current turn."""

    def __init__(self, settings: Settings, state: AgentState, planners: dict[str, Planner]) -> None:
        self._context = ScalingContext(settings, state, planners)
        self._ledger: GpuLedger | None = None

    def plan(self, names: Sequence[str], now: int) -> list[Effect]:
        """Plan models at ``now`` (ms).

        Returns:
            Commits of new decisions, forecasts to fit, allocations to solve, and alarms.
        """
        context = self._context
        better = context.state.allocation.solution
        needs_ledger = context.state.leading and (names or better)  # a standby decides nothing
        ledger = self._ledger = context.gpu_ledger(now) if needs_ledger else None
        evaluations = [evaluate(context, name, now) for name in names]
        if evaluations:
            context.state.begin_acting(now)  # before the allocation, which counts the demand of settled models only
        try:
            effects = allocate(context, evaluations, ledger, now)
        except Exception as fault:  # noqa: BLE001 - any exception would stop all models, and again after a restart
            evaluations, effects = [without_allocation(context, one, fault, now) for one in evaluations], []
        for evaluation in evaluations:
            effects += [*evaluation.effects, *self._conclude(evaluation, ledger, now)]
        return effects

    def wake_waiting(self, now: int) -> None:
        """Schedule the models that wait for GPUs which are free at ``now`` (ms), after a round."""
        wake_waiting(self._context, self._ledger, now)

    def _conclude(self, evaluation: Evaluation, ledger: GpuLedger | None, now: int) -> Sequence[Effect]:
        """Finish the round of one model. An exception holds this model only."""
        model, recommendation = evaluation.model, evaluation.recommendation
        try:
            outcome = self._decide(evaluation, ledger, now)
        except Exception as fault:  # noqa: BLE001 - any exception would stop all models, and again after a restart
            failure, alarms = self._context.fail(model, fault, now)
            failed = hold(model, failure, Proposal({}), None, now)
            outcome = Outcome(failed.explanation, tuple(alarms))
        else:
            if not evaluation.failed:
                model.failing = False
        self._record(evaluation, outcome.explanation)
        self._update_conditions(evaluation, recommendation, outcome.explanation, now)
        return outcome.effects

    def _decide(self, evaluation: Evaluation, ledger: GpuLedger | None, now: int) -> Outcome:
        """Turn a recommendation into a decision, an advice or a hold."""
        context, state = self._context, self._context.state
        model, recommendation = evaluation.model, evaluation.recommendation
        unsettled = gate.unsettled(state, model, now)
        if unsettled is not None:
            clear_wait(context, model)
            return hold(model, recommendation, Proposal({}), unsettled, now)
        alarms = tuple(reconcile(state, model, now))
        proposal, constraints = constrain(context, evaluation, ledger, now)
        obstacle, advise_only = gate.obstacle(state, model, now), context.models[model.name].no_operation
        if obstacle is None and not advise_only:
            record_wait(context, model, proposal, constraints, now)
        elif obstacle is None or obstacle.code is not ReasonCode.DECISION_IN_FLIGHT:
            clear_wait(context, model)
        unchanged = all(proposal.targets[name] == pool.effective_target(now) for name, pool in model.pools.items())
        if unchanged and not model.reconcile:
            outcome = hold(model, recommendation, proposal, None, now)
        elif obstacle is not None:
            outcome = hold(model, recommendation, proposal, obstacle, now)
        elif advise_only:
            outcome = advise(model, recommendation, proposal, now)
        else:
            outcome = propose(context, model, recommendation, proposal, now)
            if ledger is not None:
                ledger.pending[model.name] = proposal.targets
                ledger.enter(model, now)
        return Outcome(outcome.explanation, (*alarms, *outcome.effects))

    def _record(self, evaluation: Evaluation, explanation: Explanation) -> None:
        """Record an explanation: decisions and new advice in the history, the last hold or advice in the model."""
        model, state = evaluation.model, self._context.state
        last = model.hold
        if explanation.outcome != "decided":
            model.hold = explanation
        if explanation.outcome == "held":
            return
        if explanation.outcome == "advised":
            if last is not None and last.outcome == "advised" and last.targets == explanation.targets:
                return
            state.count("decisions_advised")
        state.explanations.add(explanation)

    def _update_conditions(
        self, evaluation: Evaluation, recommendation: Recommendation, explanation: Explanation, now: int
    ) -> None:
        model, state, knobs = evaluation.model, self._context.state, self._context.models[evaluation.model.name]
        model.recommended = recommendation.targets
        limits: Sequence[Reason] = explanation.limits
        if knobs.no_operation:
            limits = (Reason(ReasonCode.ADVISE_ONLY), *limits)
        obstacle = gate.obstacle(state, model, now)  # reported even if the recommendation changes nothing
        model.conditions = conditions(
            model,
            recommendation,
            limits if obstacle is None else [obstacle, *limits],
            model.conditions,
            now,
            fleet=state.fleet.knobs,
            traffic=self._context.planners[model.name].needs.traffic,
            scales_to_zero=bool(knobs.scale_to_zero_after_ms),
        )
