"""Proposals, which guardrails limit one after the other."""

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingMax
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.knobs import GuardrailKnobs, HardLimits
from loadline.core.vocabulary.reasons import Reason, ReasonCode


class ProposalHistory(Struct):
    """Recent recommendations for one pool."""

    proposals: RollingMax
    grants: RollingMax
    """Recent recommendations, limited to the granted counts while GPUs were short."""
    needed: RollingMax = field(default_factory=lambda: RollingMax(0))
    """Recent recommendations without workers that the load does not need."""
    quorate_since_ms: int = -1
    """Time since which enough workers report, Unix ms; -1 if too few do."""


class Proposal(Struct):
    """Counts by pool, with the guardrails that changed them."""

    targets: dict[str, int]
    limits: list[Reason] = field(default_factory=list)
    """Reasons of the guardrails that applied; sorted once the last has run, strongest first."""
    wanted: dict[str, int] = {}
    """Targets before the limits shared by models: the GPU budget over all models, and limited supplies."""
    waits: dict[str, int] = {}
    """GPUs granted to the model that other workers still occupy, by supply."""
    needed: dict[str, int] = field(default_factory=dict)
    """Workers that a pool must keep although its load needs no more, by pool; only pools with unneeded workers."""

    def limit(self, code: ReasonCode, pool: str, allowed: int, detail: str = "", **numbers: float) -> None:
        """Set the target of a pool to ``allowed`` and record the reason."""
        reason = Reason.of(code, pool, wanted=self.targets[pool], allowed=allowed, **numbers)
        self.limits.append(Reason(reason.code, reason.pool, reason.numbers, detail))
        self.targets[pool] = allowed


class PoolProposal:
    """Proposal for one pool, with the inputs of its guardrails."""

    __slots__ = ("_proposal", "constraints", "current", "hard", "history", "knobs", "now", "pool", "target")

    def __init__(  # noqa: PLR0917 - one argument for each input
        self,
        proposal: Proposal,
        pool: Pool,
        history: ProposalHistory,
        knobs: GuardrailKnobs,
        hard: HardLimits,
        constraints: Constraints,
        now: int,
    ) -> None:
        self._proposal = proposal
        self.pool = pool
        self.target = proposal.targets[pool.name]
        """Count as limited so far."""
        self.current = pool.effective_target(now)
        """Count in force: growth and shrink are measured from it."""
        self.history = history
        self.knobs = knobs
        self.hard = hard
        self.constraints = constraints
        self.now = now

    @property
    def quorate(self) -> bool:
        """True if enough ready workers report."""
        return self.pool.has_quorum(self.hard.quorum_ratio)

    def limit(self, code: ReasonCode, allowed: int, **numbers: float) -> None:
        """Set the target to ``allowed`` and record the reason."""
        self._proposal.limit(code, self.pool.name, allowed, "", **numbers)
        self.target = allowed


class ModelProposal:
    """Proposal for a whole model, with the inputs of its guardrails."""

    __slots__ = ("constraints", "hard", "model", "now", "proposal")

    def __init__(self, proposal: Proposal, model: Model, hard: HardLimits, constraints: Constraints, now: int) -> None:
        self.proposal = proposal
        self.model = model
        self.hard = hard
        self.constraints = constraints
        self.now = now
