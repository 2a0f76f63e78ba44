"""Limits on the recommendation for one model that come from outside its planner, for one turn."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.vocabulary.reasons import Reason, ReasonCode

_NO_MAX: Final = 2**31


class Bound(Struct, frozen=True):
    """Temporary range for the count of a pool, with the reason; it applies at once, without step limits."""

    code: ReasonCode
    minimum: int = 0
    maximum: int = _NO_MAX
    numbers: dict[str, float] = {}
    """Numbers of the reason."""


NO_BOUNDS: Final[Mapping[str, Bound]] = MappingProxyType({})


class CapacityLimits(Struct, frozen=True):
    """Maximum counts of pools while GPUs are short; the load may need more workers."""

    counts: Mapping[str, int] = MappingProxyType({})
    gives_way: frozenset[str] = frozenset()
    """Pools that release GPUs to models of a higher priority; they do not wait for the stabilisation window."""
    settled: bool = False
    """True if the allocation is final; until then, no pool shrinks to these counts before its stabilisation ends."""


NO_CAPACITY_LIMITS: Final = CapacityLimits()


class BudgetHeadroom(Struct, frozen=True):
    """Headroom of one model under the GPU budget over all models; None: no such limit."""

    floor: int | None = None
    """Minimum GPUs of the model."""
    ceiling: int | None = None
    """Maximum GPUs of the model, once all draining workers have left."""
    free: int | None = None
    """GPUs that the model may add at once."""
    releases: dict[str, int] = {}
    """Counts to which pools shrink to release GPUs to other models."""
    unneeded: frozenset[str] = frozenset()
    """Pools of ``releases`` that release only workers which their load still does not need."""
    occupied: int = 0
    """GPUs that all models occupy; for reasons, like the two below."""
    gpus_max: int = 0
    gpus_min: int = 0

    def within(self, own: GpuBand) -> GpuBand:
        """Return the band that meets this budget and the model's own budget; a ceiling overrides a floor."""
        ceiling = minimum_of(own.ceiling, self.ceiling)
        minimums = [floor for floor in (own.floor, self.floor) if floor is not None]
        floor = minimum_of(ceiling, max(minimums)) if minimums else None
        paired = own.ceiling if floor == own.floor else self.ceiling  # ceiling of the same budget as the floor
        return GpuBand(floor, ceiling, exact=paired is None)


UNBOUNDED: Final = BudgetHeadroom()


class SupplyHeadroom(Struct, frozen=True):
    """Headroom of one model in limited supplies of GPUs."""

    takes: dict[str, dict[str, int]]
    """GPUs that one worker of a pool takes, by pool and supply."""
    free: dict[str, int]
    """GPUs that the model may add at once, by supply."""
    limits: CapacityLimits = NO_CAPACITY_LIMITS
    exchanged: dict[str, int] = {}
    """Counts of pools that replace another pool, or are replaced by one; they override the recommendation."""
    reasons: tuple[Reason, ...] = ()
    """Reasons for every difference from the recommendation."""
    replacement_minimums: dict[str, int] = {}
    """Workers that pools keep until those of other pools are ready."""


UNLIMITED_HEADROOM: Final = SupplyHeadroom({}, {})
"""Headroom of a model that uses no limited supply."""


class Constraints(Struct, frozen=True):
    """All limits on the recommendation for a model from outside its planner."""

    acting_since_ms: int
    """Start of this agent's decisions, Unix ms; the warm-up begins there."""
    bounds: Mapping[str, Bound] = NO_BOUNDS
    """Temporary bounds by pool, in addition to the configured ones."""
    budget: BudgetHeadroom = UNBOUNDED
    supply: SupplyHeadroom = UNLIMITED_HEADROOM
    draining: Mapping[str, int] = MappingProxyType({})
    """Number of open drains by pool."""
    unaccepted: frozenset[str] = frozenset()
    """Pools whose last scale-down no scaler has accepted yet."""


def minimum_of(*bounds: int | None) -> int | None:
    """Return the lowest bound that is not None; None if all are."""
    return min((bound for bound in bounds if bound is not None), default=None)
