"""Rails over any proposal. What a planner may think is free; what may become a decision is bounded here.

Each rail is a small step over a draft that notes a reason when it bites. They run from the weakest to the strongest, so
the stronger has the last word: cooldown, stabilisation, warm-up, step < idleness < no data, no shrink < replacements
that are not ready < replica bounds, also those of the moment, and GPU budgets, that of the model and that of all.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingMax
from loadline.core.planning.guardrails.bounds import NO_BOUNDS, Bound
from loadline.core.planning.guardrails.direction import PoolChange, fit_direction, settle
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.vocabulary.reasons import Reason, ReasonCode

NotNegative = Annotated[int, Meta(ge=0)]


class GuardrailKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """The rails of one model."""

    step_up_max: Annotated[int, Meta(ge=1, description="Most workers added to a pool by one decision.")] = 8
    step_down_max: Annotated[int, Meta(ge=1, description="Most workers taken from a pool by one decision.")] = 1
    stabilisation_ms: Annotated[
        NotNegative, Meta(description="A shrink is never below the highest proposal of this window.")
    ] = 60_000
    cooldown_up_ms: Annotated[
        NotNegative, Meta(description="Least time between a change of a pool and its next growth.")
    ] = 0
    cooldown_down_ms: Annotated[
        NotNegative, Meta(description="Least time between a change of a pool and its next shrink.")
    ] = 5_000
    warm_up_ms: Annotated[
        NotNegative, Meta(description="No shrink before data was complete for this long, after a start or a gap.")
    ] = 60_000


class HardLimits(Struct, frozen=True):
    """The hard bounds of one model, beside the replica bounds of its pools."""

    quorum_ratio: float
    gpu_budget_min: int
    gpu_budget_max: int | None


class ProposalHistory(Struct):
    """What the guard remembers of one pool."""

    proposals: RollingMax
    grants: RollingMax
    """Of these what was granted, where GPUs are short."""
    quorate_since_ms: int = -1


class BudgetHeadroom(Struct, frozen=True):
    """What the GPU budget over all models leaves to one model; None: there is no such bound."""

    floor: int | None = None
    """GPUs of its own below which it must not shrink."""
    ceiling: int | None = None
    """GPUs of its own above which it must not grow, once all workers that leave have left."""
    free: int | None = None
    """GPUs that it may add at once."""
    gives: dict[str, int] = {}
    """Pools that give GPUs to other models, and the counts to which they shrink for it."""
    gpus: int = 0
    """GPUs that all models occupy: for people, as are the bounds."""
    most: int = 0
    least: int = 0

    def within(self, own: GpuBand) -> GpuBand:
        """This, and the budget of the model itself. The ceilings are the stronger."""
        ceiling = _least_of(own.ceiling, self.ceiling)
        floors = [floor for floor in (own.floor, self.floor) if floor is not None]
        floor = _least_of(ceiling, max(floors)) if floors else None
        same = own.ceiling if floor == own.floor else self.ceiling  # that of the budget whose floor it is
        return GpuBand(floor, ceiling, exact=same is None)


UNBOUNDED: Final = BudgetHeadroom()
_NO_BAND: Final = GpuBand()


class CapacityLimits(Struct, frozen=True):
    """Counts that pools do not exceed because GPUs are short. They are no proposals, and load is not remembered so."""

    counts: Mapping[str, int] = MappingProxyType({})
    gives_way: frozenset[str] = frozenset()
    """Pools that give to models that come first."""
    settled: bool = False
    """Whether nothing better may come; until then nobody shrinks to them earlier than to a proposal."""


NO_CAPACITY_LIMITS: Final = CapacityLimits()
NO_REPLACEMENTS: Final[Mapping[str, int]] = MappingProxyType({})


class Proposal(Struct):
    """A proposal on its way through the rails."""

    targets: dict[str, int]
    rails: list[Reason] = field(default_factory=list)
    wanted: dict[str, int] = {}
    """What the targets were before the GPU budget over all models bounded them."""

    def bound(self, code: ReasonCode, pool: str, allowed: int, **numbers: float) -> None:
        """Set a pool to what a rail allows, and say so."""
        self.rails.append(Reason.of(code, pool, wanted=self.targets[pool], allowed=allowed, **numbers))
        self.targets[pool] = allowed


class Guard(Struct):
    """The rails of one model and what they remember."""

    knobs: GuardrailKnobs
    limits: HardLimits
    tracks: dict[str, ProposalHistory] = field(default_factory=dict)

    def obey(self, knobs: GuardrailKnobs, limits: HardLimits) -> None:
        """Go by these from now on. What was proposed, and since when there is data, stays known."""
        self.knobs, self.limits = knobs, limits
        for track in self.tracks.values():
            track.proposals.window_ms = track.grants.window_ms = knobs.stabilisation_ms

    def apply(
        self,
        model: Model,
        proposed: dict[str, int],
        acting_since_ms: int,
        now: int,
        allowance: BudgetHeadroom = UNBOUNDED,
        *,
        bounds: Mapping[str, Bound] = NO_BOUNDS,
        cuts: CapacityLimits = NO_CAPACITY_LIMITS,
        kept: Mapping[str, int] = NO_REPLACEMENTS,
    ) -> Proposal:
        """Bound a proposal.

        Args:
            model: What is believed; what stands (``Pool.target_now``) is the measure of growth and shrink.
            proposed: Absolute counts by pool; a pool that is left out is proposed as it stands.
            acting_since_ms: Since when this agent has been deciding: nothing shrinks until it has warmed up.
            now: In ms.
            allowance: What the GPU budget over all models leaves to this one.
            bounds: What pools are kept to beside their replica bounds.
            cuts: What is granted where GPUs are short. Who gives way waits for no window; else what was granted lately
                is the highest proposal.
            kept: Workers that stay until those that replace them are ready.

        Returns:
            Counts for all pools of the model, with a reason for each rail that bit.
        """
        draft = Proposal({})
        for name, pool in model.pools.items():
            standing = pool.effective_target(now)
            said = proposed.get(name, standing)
            wanted = draft.targets[name] = min(said, cuts.counts.get(name, said))
            track = self._track(pool, said, wanted, now)
            if wanted < standing:
                self._slow_shrink(draft, pool, track, cuts, acting_since_ms, now)
            elif wanted > standing:
                self._slow_growth(draft, pool, now)
            bound = bounds.get(name)
            if bound is not None and draft.targets[name] > bound.most:
                draft.bound(bound.code, name, bound.most, **bound.numbers)
                self._warm_up(draft, pool, track, acting_since_ms, now)
            if draft.targets[name] < standing and not pool.quorate(self.limits.quorum_ratio):
                draft.bound(ReasonCode.NO_DATA_NO_SHRINK, name, standing, fresh=pool.fresh, ready=pool.ready)
            if bound is not None and draft.targets[name] < bound.least:
                draft.bound(bound.code, name, bound.least, **bound.numbers)
            if name in kept and draft.targets[name] < kept[name]:
                draft.bound(ReasonCode.REPLACEMENT_NOT_READY, name, kept[name])
            self._replica_bounds(draft, pool, now)
        for name, replicas in allowance.gives.items():
            pool = model.pools[name]
            if draft.targets[name] <= pool.effective_target(now) and pool.quorate(self.limits.quorum_ratio):
                draft.bound(ReasonCode.GPU_BUDGET_GIVES_WAY, name, replicas)
        self._gpu_budgets(draft, model, allowance, now)
        draft.rails.reverse()  # the strongest first
        return draft

    def _track(self, pool: Pool, proposed: int, granted: int, now: int) -> ProposalHistory:
        track = self.tracks.get(pool.name)
        if track is None:
            window_ms = self.knobs.stabilisation_ms
            track = self.tracks[pool.name] = ProposalHistory(RollingMax(window_ms), RollingMax(window_ms))
        track.proposals.push(now, proposed)
        track.grants.push(now, granted)
        if not pool.quorate(self.limits.quorum_ratio):
            track.quorate_since_ms = -1
        elif track.quorate_since_ms < 0:
            track.quorate_since_ms = now
        return track

    def _slow_growth(self, draft: Proposal, pool: Pool, now: int) -> None:
        standing = pool.effective_target(now)
        age_ms = now - max(pool.grown_at_ms, pool.shrunk_at_ms)
        if max(pool.grown_at_ms, pool.shrunk_at_ms) >= 0 and age_ms < self.knobs.cooldown_up_ms:
            cooldown_ms = self.knobs.cooldown_up_ms
            draft.bound(ReasonCode.COOLDOWN, pool.name, standing, age_ms=age_ms, cooldown_ms=cooldown_ms)
        most = standing + self.knobs.step_up_max
        if draft.targets[pool.name] > most:
            draft.bound(ReasonCode.STEP_UP, pool.name, most)

    def _slow_shrink(  # noqa: PLR0917 - one argument for each fact
        self, draft: Proposal, pool: Pool, track: ProposalHistory, cuts: CapacityLimits, acting_since_ms: int, now: int
    ) -> None:
        standing = pool.effective_target(now)
        age_ms = now - max(pool.grown_at_ms, pool.shrunk_at_ms)
        if max(pool.grown_at_ms, pool.shrunk_at_ms) >= 0 and age_ms < self.knobs.cooldown_down_ms:
            cooldown_ms = self.knobs.cooldown_down_ms
            draft.bound(ReasonCode.COOLDOWN, pool.name, standing, age_ms=age_ms, cooldown_ms=cooldown_ms)
        cut = cuts.settled and pool.name in cuts.counts
        highest = (track.grants if cut else track.proposals).max(now)
        gives_way = cut and pool.name in cuts.gives_way
        if highest is not None and draft.targets[pool.name] < min(highest, standing) and not gives_way:
            window_ms = self.knobs.stabilisation_ms
            draft.bound(ReasonCode.STABILISATION, pool.name, min(highest, standing), window_ms=window_ms)
        self._warm_up(draft, pool, track, acting_since_ms, now)
        # From what there is, not from what stands: workers that never came are given up at once, not one at a time.
        least = min(standing, pool.base(now)) - self.knobs.step_down_max
        if draft.targets[pool.name] < least:
            draft.bound(ReasonCode.STEP_DOWN, pool.name, least)

    def _warm_up(self, draft: Proposal, pool: Pool, track: ProposalHistory, acting_since_ms: int, now: int) -> None:
        standing, warm_ms = pool.effective_target(now), now - max(acting_since_ms, track.quorate_since_ms)
        if draft.targets[pool.name] < standing and warm_ms < self.knobs.warm_up_ms:
            draft.bound(ReasonCode.WARM_UP, pool.name, standing, age_ms=warm_ms, needed_ms=self.knobs.warm_up_ms)

    def _replica_bounds(self, draft: Proposal, pool: Pool, now: int) -> None:
        floor = pool.floor
        if draft.targets[pool.name] < floor.replicas:
            draft.bound(ReasonCode.SCHEDULE_FLOOR, pool.name, floor.replicas, left_ms=floor.until_ms - now)
        wanted = draft.targets[pool.name]
        if wanted < pool.knobs.replicas_min:
            draft.bound(ReasonCode.REPLICAS_MIN, pool.name, pool.knobs.replicas_min)
        elif wanted > pool.knobs.replicas_max:
            draft.bound(ReasonCode.REPLICAS_MAX, pool.name, pool.knobs.replicas_max)

    def _gpu_budgets(self, draft: Proposal, model: Model, allowance: BudgetHeadroom, now: int) -> None:
        """Bound what the rails have left by the model's own budget, then by what that of all models leaves to it."""
        own = GpuBand(self.limits.gpu_budget_min or None, self.limits.gpu_budget_max)
        if own == _NO_BAND and allowance == UNBOUNDED:
            draft.wanted = dict(draft.targets)
            return  # as most models: to find that nothing bites takes 30 us of a turn, and there are 100 of them
        legs = {name: _leg(pool, draft.targets[name], now) for name, pool in model.pools.items()}
        occupied = sum(pool.occupied(now) * pool.knobs.gpus_per_worker for pool in model.pools.values())
        free = None if own.ceiling is None else own.ceiling - occupied
        if own != _NO_BAND:
            draining = sum(pool.draining() * pool.knobs.gpus_per_worker for pool in model.pools.values())
            _bound_by_own(draft, legs, own, free, draining)
        draft.wanted = dict(draft.targets)
        if allowance != UNBOUNDED:
            _bound_by_fleet(draft, legs, allowance, own, _least_of(free, allowance.free))


def _bound_by_own(draft: Proposal, legs: dict[str, PoolChange], band: GpuBand, free: int | None, draining: int) -> None:
    counts, why = _bounded(list(legs.values()), band, free)
    standing = sum(leg.current * leg.gpus for leg in legs.values())
    proposed = sum(leg.proposed * leg.gpus for leg in legs.values())
    for (name, leg), count in zip(legs.items(), counts, strict=True):
        if why is not None and count != leg.proposed:
            draft.bound(why, name, count, gpus=standing)
        elif count < leg.proposed:
            draft.bound(ReasonCode.GPU_BUDGET_MAX, name, count, gpus=proposed + draining, budget=band.ceiling or 0)
        elif count > leg.proposed:
            draft.bound(ReasonCode.GPU_BUDGET_MIN, name, count, gpus=proposed, budget=band.floor or 0)


def _bound_by_fleet(
    draft: Proposal, legs: dict[str, PoolChange], allowance: BudgetHeadroom, own: GpuBand, free: int | None
) -> None:
    pools = list(legs.values())
    counts, why = _bounded(pools, allowance.within(own), free)
    cut = any(
        leg.step > 0 and count < draft.targets[name] for (name, leg), count in zip(legs.items(), counts, strict=True)
    )
    if cut and own.floor is not None and why is None:
        # The model's own floor again, and in full: it was let off for a growth that now waits for other models.
        counts = _keeping(pools, counts, own.floor)
    for name, count in zip(legs, counts, strict=True):
        if count < draft.targets[name]:
            draft.bound(ReasonCode.FLEET_GPU_BUDGET_MAX, name, count, gpus=allowance.gpus, budget=allowance.most)
        elif count > draft.targets[name]:
            draft.bound(ReasonCode.FLEET_GPU_BUDGET_MIN, name, count, gpus=allowance.gpus, budget=allowance.least)


def _leg(pool: Pool, proposed: int, now: int) -> PoolChange:
    knobs = pool.knobs
    return PoolChange(
        pool.effective_target(now), proposed, knobs.gpus_per_worker, knobs.replicas_min, knobs.replicas_max
    )


def _least_of(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _bounded(legs: Sequence[PoolChange], band: GpuBand, free: int | None) -> tuple[list[int], ReasonCode | None]:
    """What a proposal may become within a band, of which so many GPUs are free at the moment.

    The GPUs of workers that leave are occupied until they have left: growth waits for them rather than exceed the
    ceiling. What a least count asks for does not wait: bounds always hold.
    """
    settled = settle(legs, band)
    counts = list(settled.counts)
    growing = [at for at, leg in enumerate(legs) if counts[at] > max(leg.current, leg.least)]
    if free is None or not growing:
        return counts, settled.why
    steps = [PoolChange(max(legs[at].current, legs[at].least), counts[at], legs[at].gpus, 0) for at in growing]
    ceiling = sum(step.current * step.gpus for step in steps) + max(0, free)
    for at, count in zip(growing, fit_direction(steps, GpuBand(ceiling=ceiling)), strict=True):
        counts[at] = count
    if band.floor is not None and settled.why is None:
        counts = _keeping(legs, counts, band.floor - band.tolerance(*(leg.gpus for leg in legs)))
    return counts, settled.why


def _keeping(legs: Sequence[PoolChange], counts: Sequence[int], floor: int) -> list[int]:
    """The counts, but who gives for a growth that waits does not give so much in advance that the floor is missed."""
    giving = [
        PoolChange(leg.current, min(leg.current, count), leg.gpus, 0) for leg, count in zip(legs, counts, strict=True)
    ]
    grown = sum(max(0, count - leg.current) * leg.gpus for leg, count in zip(legs, counts, strict=True))
    given = fit_direction(giving, GpuBand(floor=floor - grown))
    return [max(count, kept) for count, kept in zip(counts, given, strict=True)]
