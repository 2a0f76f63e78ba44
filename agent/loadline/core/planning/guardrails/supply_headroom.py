"""What limited supplies leave to one model in one turn, as the last rail over its draft.

It is the strongest, as GPUs are there or they are not: nothing grows into those that somebody occupies, whatever a
planner or a floor says. Only least counts do.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.planning.guardrails.direction import PoolChange, fit_direction
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.planning.guardrails.guard import NO_CAPACITY_LIMITS, CapacityLimits, Proposal
from loadline.core.vocabulary.reasons import Reason, ReasonCode


class SupplyHeadroom(Struct, frozen=True):
    """What one model may have."""

    takes: dict[str, dict[str, int]]
    """What a worker takes of each limited supply, by pool."""
    free: dict[str, int]
    """What may be added at once, by supply."""
    cuts: CapacityLimits = NO_CAPACITY_LIMITS
    exchanged: dict[str, int] = {}
    """Counts of pools that serve for another, or are served for, in the place of what the planner says."""
    reasons: tuple[Reason, ...] = ()
    """Why all that is not what the planner says."""
    kept: dict[str, int] = {}
    """Workers that pools keep until those that are to replace them are ready."""

    def bound(self, draft: Proposal, model: Model, now: int) -> dict[str, int]:
        """Bound what the other rails have left at ``now`` (ms).

        Returns:
            GPUs that the model waits for, by supply: it may have them, and somebody else still occupies them.
        """
        if not self.takes:
            return {}
        found = Proposal(draft.targets, wanted=draft.wanted)
        waits: dict[str, int] = {}
        for supply, free in sorted(self.free.items()):
            self._bound_growth(found, model, supply, free, waits, now)
        draft.rails[:0] = reversed(found.rails)  # the strongest first
        draft.rails += self.reasons
        return waits

    def _bound_growth(  # noqa: PLR0917 - one argument for each fact
        self, draft: Proposal, model: Model, supply: str, free: int, waits: dict[str, int], now: int
    ) -> None:
        legs: dict[str, PoolChange] = {}
        for pool, takes in self.takes.items():
            if supply in takes:
                stands = max(model.pools[pool].effective_target(now), model.pools[pool].knobs.replicas_min)
                if draft.targets[pool] > stands:
                    legs[pool] = PoolChange(stands, draft.targets[pool], takes[supply], 0)
        if not legs:
            return
        standing = sum(leg.current * leg.gpus for leg in legs.values())
        counts = fit_direction(list(legs.values()), GpuBand(ceiling=standing + free))
        for (pool, leg), count in zip(legs.items(), counts, strict=True):
            if count < leg.proposed:
                draft.bound(ReasonCode.GPUS_OCCUPIED, pool, count, free=free)
                draft.rails[-1] = replace(draft.rails[-1], detail=supply)
                draft.wanted[pool] = min(draft.wanted.get(pool, count), count)
                waits[supply] = waits.get(supply, 0) + (leg.proposed - count) * leg.gpus


UNLIMITED_HEADROOM: Final = SupplyHeadroom({}, {})
"""Of a model that takes nothing that is limited."""
