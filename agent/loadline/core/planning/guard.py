"""Rails over any proposal. What a planner may think is free; what may become a decision is bounded here.

Each rail is a small step over a draft that notes a reason when it bites. They run from the weakest to the strongest, so
the stronger has the last word: cooldown, stabilisation, warm-up, step < no data, no shrink < replica bounds and GPU
budget.
"""

from typing import Annotated

from msgspec import Meta, Struct, field

from loadline.core.belief.fleet import Model
from loadline.core.belief.pool import Pool
from loadline.core.belief.window import RollingMax
from loadline.core.report import Code, Reason

NotNegative = Annotated[int, Meta(ge=0)]


class GuardKnobs(Struct, frozen=True, forbid_unknown_fields=True):
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
    ] = 0
    warm_up_ms: Annotated[
        NotNegative, Meta(description="No shrink before data was complete for this long, after a start or a gap.")
    ] = 60_000


class Limits(Struct, frozen=True):
    """The hard bounds of one model, beside the replica bounds of its pools."""

    quorum_ratio: float
    gpu_budget_min: int
    gpu_budget_max: int | None


class Track(Struct):
    """What the guard remembers of one pool."""

    proposals: RollingMax
    quorate_since_ms: int = -1


class Draft(Struct):
    """A proposal on its way through the rails."""

    targets: dict[str, int]
    rails: list[Reason] = field(default_factory=list)

    def bound(self, code: Code, pool: str, allowed: int, **numbers: float) -> None:
        """Set a pool to what a rail allows, and say so."""
        self.rails.append(Reason.of(code, pool, wanted=self.targets[pool], allowed=allowed, **numbers))
        self.targets[pool] = allowed


class Guard(Struct):
    """The rails of one model and what they remember."""

    knobs: GuardKnobs
    limits: Limits
    tracks: dict[str, Track] = field(default_factory=dict)

    def apply(self, model: Model, proposed: dict[str, int], acting_since_ms: int, now: int) -> Draft:
        """Bound a proposal.

        Args:
            model: What is believed; what stands (``Pool.target_now``) is the measure of growth and shrink.
            proposed: Absolute counts by pool; a pool that is left out is proposed as it stands.
            acting_since_ms: Since when this agent has been deciding: nothing shrinks until it has warmed up.
            now: In ms.

        Returns:
            Counts for all pools of the model, with a reason for each rail that bit.
        """
        draft = Draft({pool.name: proposed.get(pool.name, pool.target_now(now)) for pool in model.pools.values()})
        for pool in model.pools.values():
            track = self._track(pool, draft.targets[pool.name], now)
            standing = pool.target_now(now)
            if draft.targets[pool.name] < standing:
                self._slow_shrink(draft, pool, track, acting_since_ms, now)
            elif draft.targets[pool.name] > standing:
                self._slow_growth(draft, pool, now)
            if draft.targets[pool.name] < standing and not pool.quorate(self.limits.quorum_ratio):
                draft.bound(Code.NO_DATA_NO_SHRINK, pool.name, standing, fresh=pool.fresh, ready=pool.ready)
            self._replica_bounds(draft, pool)
        self._budget_max(draft, model, now)
        self._budget_min(draft, model, now)
        draft.rails.reverse()  # the strongest first
        return draft

    def _track(self, pool: Pool, proposed: int, now: int) -> Track:
        track = self.tracks.get(pool.name)
        if track is None:
            track = self.tracks[pool.name] = Track(RollingMax(self.knobs.stabilisation_ms))
        track.proposals.push(now, proposed)
        if not pool.quorate(self.limits.quorum_ratio):
            track.quorate_since_ms = -1
        elif track.quorate_since_ms < 0:
            track.quorate_since_ms = now
        return track

    def _slow_growth(self, draft: Draft, pool: Pool, now: int) -> None:
        standing = pool.target_now(now)
        age_ms = now - max(pool.grown_at_ms, pool.shrunk_at_ms)
        if max(pool.grown_at_ms, pool.shrunk_at_ms) >= 0 and age_ms < self.knobs.cooldown_up_ms:
            cooldown_ms = self.knobs.cooldown_up_ms
            draft.bound(Code.COOLDOWN, pool.name, standing, age_ms=age_ms, cooldown_ms=cooldown_ms)
        most = standing + self.knobs.step_up_max
        if draft.targets[pool.name] > most:
            draft.bound(Code.STEP_UP, pool.name, most)

    def _slow_shrink(self, draft: Draft, pool: Pool, track: Track, acting_since_ms: int, now: int) -> None:
        standing = pool.target_now(now)
        age_ms = now - max(pool.grown_at_ms, pool.shrunk_at_ms)
        if max(pool.grown_at_ms, pool.shrunk_at_ms) >= 0 and age_ms < self.knobs.cooldown_down_ms:
            cooldown_ms = self.knobs.cooldown_down_ms
            draft.bound(Code.COOLDOWN, pool.name, standing, age_ms=age_ms, cooldown_ms=cooldown_ms)
        highest = track.proposals.max(now)
        if highest is not None and draft.targets[pool.name] < min(highest, standing):
            window_ms = self.knobs.stabilisation_ms
            draft.bound(Code.STABILISATION, pool.name, min(highest, standing), window_ms=window_ms)
        warm_ms = now - max(acting_since_ms, track.quorate_since_ms)
        if draft.targets[pool.name] < standing and warm_ms < self.knobs.warm_up_ms:
            draft.bound(Code.WARM_UP, pool.name, standing, age_ms=warm_ms, needed_ms=self.knobs.warm_up_ms)
        # From what there is, not from what stands: workers that never came are given up at once, not one at a time.
        least = min(standing, pool.base(now)) - self.knobs.step_down_max
        if draft.targets[pool.name] < least:
            draft.bound(Code.STEP_DOWN, pool.name, least)

    def _replica_bounds(self, draft: Draft, pool: Pool) -> None:
        wanted = draft.targets[pool.name]
        if wanted < pool.knobs.replicas_min:
            draft.bound(Code.REPLICAS_MIN, pool.name, pool.knobs.replicas_min)
        elif wanted > pool.knobs.replicas_max:
            draft.bound(Code.REPLICAS_MAX, pool.name, pool.knobs.replicas_max)

    def _budget_max(self, draft: Draft, model: Model, now: int) -> None:
        """Cut growth, the last pool's first, then the fleet itself, until the GPUs fit.

        The GPUs of workers that drain are still occupied: growth waits for them rather than exceed the budget. What a
        minimum asks for does not wait: bounds always hold.
        """
        budget = self.limits.gpu_budget_max
        if budget is None:
            return
        over = _gpus(draft, model) - budget
        if over <= 0 and not any(draft.targets[p.name] > p.target_now(now) for p in model.pools.values()):
            return
        leaving = _leaving_gpus(draft, model, now)
        for pool in reversed(model.pools.values()):
            over = _gpus(draft, model) + leaving - budget
            grown = draft.targets[pool.name] - max(pool.target_now(now), pool.knobs.replicas_min)
            if over > 0 and grown > 0:
                cut = min(grown, -(-over // pool.knobs.gpus_per_worker))
                gpus = over + budget
                draft.bound(Code.GPU_BUDGET_MAX, pool.name, draft.targets[pool.name] - cut, gpus=gpus, budget=budget)
        # Only a budget below what stands gets here with too many: the widest pool gives way first.
        for pool in sorted(model.pools.values(), key=lambda p: (-p.knobs.gpus_per_worker, p.name)):
            over = _gpus(draft, model) - budget
            spare = draft.targets[pool.name] - pool.knobs.replicas_min
            if over > 0 and spare > 0:
                cut = min(spare, -(-over // pool.knobs.gpus_per_worker))
                gpus = over + budget
                draft.bound(Code.GPU_BUDGET_MAX, pool.name, draft.targets[pool.name] - cut, gpus=gpus, budget=budget)

    def _budget_min(self, draft: Draft, model: Model, now: int) -> None:
        """Raise the pools in their order until the GPUs reach the floor, as far as the other bounds allow."""
        budget = self.limits.gpu_budget_min
        for pool in model.pools.values():
            gpus = _gpus(draft, model)
            room = pool.knobs.replicas_max - draft.targets[pool.name]
            raised = min(room, -(-(budget - gpus) // pool.knobs.gpus_per_worker))
            most = self.limits.gpu_budget_max
            if most is not None:
                # To keep what stands needs no GPU that somebody else is still leaving; to grow does.
                kept = max(0, pool.target_now(now) - draft.targets[pool.name])
                free = max(0, most - gpus - _leaving_gpus(draft, model, now))
                raised = min(
                    raised, kept + free // pool.knobs.gpus_per_worker, (most - gpus) // pool.knobs.gpus_per_worker
                )
            if raised > 0:
                allowed = draft.targets[pool.name] + raised
                draft.bound(Code.GPU_BUDGET_MIN, pool.name, allowed, gpus=gpus, budget=budget)


def _leaving_gpus(draft: Draft, model: Model, now: int) -> int:
    """GPUs of workers that drain, and of those that the draft takes away."""
    return sum(
        (pool.draining() + max(0, pool.target_now(now) - draft.targets[pool.name])) * pool.knobs.gpus_per_worker
        for pool in model.pools.values()
    )


def _gpus(draft: Draft, model: Model) -> int:
    return sum(draft.targets[pool.name] * pool.knobs.gpus_per_worker for pool in model.pools.values())
