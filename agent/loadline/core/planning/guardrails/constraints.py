"""Everything outside a planner that limits what it recommends, for one model in one turn."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.vocabulary.reasons import Reason, ReasonCode

_NO_MAX: Final = 2**31


class Bound(Struct, frozen=True):
    """A range that the count of a pool is kept in, and the reason. No guardrail slows the way there."""

    code: ReasonCode
    least: int = 0
    most: int = _NO_MAX
    numbers: dict[str, float] = {}
    """Numbers for the sentence of the code."""


NO_BOUNDS: Final[Mapping[str, Bound]] = MappingProxyType({})


class CapacityLimits(Struct, frozen=True):
    """Counts that pools must not exceed while GPUs are short. They are not recommendations of the load."""

    counts: Mapping[str, int] = MappingProxyType({})
    gives_way: frozenset[str] = frozenset()
    """Pools that shrink in favour of models of a higher priority."""
    settled: bool = False
    """True when no better allocation can come; until then no pool shrinks to these counts early."""


NO_CAPACITY_LIMITS: Final = CapacityLimits()


class BudgetHeadroom(Struct, frozen=True):
    """GPUs that the budget over all models leaves to one model; None: no such limit."""

    floor: int | None = None
    """GPUs of the model below which it must not shrink."""
    ceiling: int | None = None
    """GPUs of the model above which it must not grow, once all draining workers are gone."""
    free: int | None = None
    """GPUs that the model may add at once."""
    gives: dict[str, int] = {}
    """Counts that pools shrink to in favour of other models."""
    gpus: int = 0
    """GPUs that all models occupy; for explanations, like the two below."""
    most: int = 0
    least: int = 0

    def within(self, own: GpuBand) -> GpuBand:
        """Return the band of this budget and the model's own budget together; a ceiling overrides a floor."""
        ceiling = least_of(own.ceiling, self.ceiling)
        minimums = [floor for floor in (own.floor, self.floor) if floor is not None]
        floor = least_of(ceiling, max(minimums)) if minimums else None
        same = own.ceiling if floor == own.floor else self.ceiling  # that of the budget whose floor it is
        return GpuBand(floor, ceiling, exact=same is None)


UNBOUNDED: Final = BudgetHeadroom()


class SupplyHeadroom(Struct, frozen=True):
    """Share of one model in limited supplies of GPUs."""

    takes: dict[str, dict[str, int]]
    """GPUs that one worker of a pool takes, by pool and supply."""
    free: dict[str, int]
    """GPUs that may be added at once, by supply."""
    limits: CapacityLimits = NO_CAPACITY_LIMITS
    exchanged: dict[str, int] = {}
    """Counts of pools that serve in place of another pool, or are replaced by one; they override the planner."""
    reasons: tuple[Reason, ...] = ()
    """Reasons for every difference from the recommendation."""
    kept: dict[str, int] = {}
    """Workers that pools keep until their replacements are ready."""


UNLIMITED_HEADROOM: Final = SupplyHeadroom({}, {})
"""Headroom of a model that uses no limited supply."""


class Constraints(Struct, frozen=True):
    """All limits from outside the planner of a model."""

    acting_since_ms: int
    """Start of this agent's decisions, Unix ms: nothing shrinks before the warm-up after it is over."""
    bounds: Mapping[str, Bound] = NO_BOUNDS
    """Temporary bounds by pool, beside the configured ones."""
    budget: BudgetHeadroom = UNBOUNDED
    supply: SupplyHeadroom = UNLIMITED_HEADROOM


def least_of(*bounds: int | None) -> int | None:
    """Return the smallest bound that is set; None if none is."""
    return min((bound for bound in bounds if bound is not None), default=None)
