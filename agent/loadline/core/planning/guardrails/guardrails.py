"""Application of all guardrails to the recommendation for a model.

``POOL_GUARDRAILS`` apply to each pool, then ``MODEL_GUARDRAILS`` to the model; within each, a later guardrail overrides
an earlier one. From weakest to strongest: cooldown, stabilisation, warm-up and step limits; scale to zero; no data, no
shrink; replacements; schedules and replica bounds; GPU budgets; free GPUs.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingMax
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.gpu_guardrails import MODEL_GUARDRAILS
from loadline.core.planning.guardrails.knobs import GuardrailKnobs, HardLimits
from loadline.core.planning.guardrails.pool_guardrails import POOL_GUARDRAILS, stabilisation
from loadline.core.planning.guardrails.proposal import ModelProposal, PoolProposal, Proposal, ProposalHistory

_RELEASE_GUARDRAILS: Final = tuple(guardrail for guardrail in POOL_GUARDRAILS if guardrail is not stabilisation)
"""Guardrails of a pool that releases unneeded workers. Recommendations contain these, so the window of
``stabilisation`` is that of the needed workers instead."""
NO_UNNEEDED: Final[Mapping[str, int]] = MappingProxyType({})


class Guardrails(Struct):
    """Guardrails of one model, with the recent recommendations by pool."""

    knobs: GuardrailKnobs
    hard: HardLimits
    history: dict[str, ProposalHistory] = field(default_factory=dict)

    def apply_settings(self, knobs: GuardrailKnobs, hard: HardLimits) -> None:
        """Replace the settings; keep the history."""
        self.knobs, self.hard = knobs, hard
        for history in self.history.values():
            for window in (history.proposals, history.grants, history.needed):
                window.window_ms = knobs.stabilisation_ms

    def apply(
        self,
        model: Model,
        recommended: Mapping[str, int],
        constraints: Constraints,
        now: int,
        unneeded: Mapping[str, int] = NO_UNNEEDED,
    ) -> Proposal:
        """Limit a recommendation.

        Args:
            model: State of the model; growth and shrink are measured from ``Pool.effective_target``.
            recommended: Absolute counts by pool; a pool left out keeps its effective target.
            constraints: All limits from outside the planner.
            now: Unix time in ms.
            unneeded: Workers of these counts that the load does not need, by pool; others get them on short GPUs.

        Returns:
            Counts for all pools of the model, with a reason for each guardrail that applied, strongest first.
        """
        proposal = Proposal({})
        limits, exchanged = constraints.supply.limits.counts, constraints.supply.exchanged
        for name, pool in model.pools.items():
            count = exchanged.get(name, recommended.get(name, pool.effective_target(now)))
            granted = proposal.targets[name] = min(count, limits.get(name, count))
            needed = max(0, count - unneeded.get(name, 0))
            history = self._record(pool, count, granted, needed, now)
            pool_proposal = PoolProposal(proposal, pool, history, self.knobs, self.hard, constraints, now)
            for guardrail in POOL_GUARDRAILS:
                guardrail(pool_proposal)
            if needed < count and name not in exchanged:
                proposal.needed[name] = self._kept(pool, history, constraints, now)
        model_proposal = ModelProposal(proposal, model, self.hard, constraints, now)
        for apply_to_model in MODEL_GUARDRAILS:
            apply_to_model(model_proposal)
        proposal.limits.reverse()
        proposal.limits += constraints.supply.reasons
        return proposal

    def _kept(self, pool: Pool, history: ProposalHistory, constraints: Constraints, now: int) -> int:
        """Return the workers that a pool keeps if others get those that its load does not need."""
        proposal = Proposal({pool.name: history.needed.max(now) or 0})
        pool_proposal = PoolProposal(proposal, pool, history, self.knobs, self.hard, constraints, now)
        for guardrail in _RELEASE_GUARDRAILS:
            guardrail(pool_proposal)
        return proposal.targets[pool.name]

    def _record(self, pool: Pool, recommended: int, granted: int, needed: int, now: int) -> ProposalHistory:
        history = self.history.get(pool.name)
        if history is None:
            window_ms = self.knobs.stabilisation_ms
            proposals, grants, needs = (RollingMax(window_ms) for _ in range(3))
            history = self.history[pool.name] = ProposalHistory(proposals, grants, needs)
        history.proposals.push(now, recommended)
        history.grants.push(now, granted)
        history.needed.push(now, needed)
        if not pool.has_quorum(self.hard.quorum_ratio):
            history.quorate_since_ms = -1
        elif history.quorate_since_ms < 0:
            history.quorate_since_ms = now
        return history
