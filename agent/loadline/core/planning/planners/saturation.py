"""Saturation planner: enough workers for the present load with headroom, without a model of the engines.

Its thresholds are those of the capacity analysers of llm-d's Workload Variant Autoscaler (WVA). With
``profile = "upstream"`` it applies the rules of the first of them. Its own rules differ:

- All workers and waiting requests count. The original averages over unsaturated workers, and scales a fleet down in
  which eight of ten workers are saturated.
- One change is as large as the load needs; the original changes one worker per minute.
- Scale-up and scale-down have separate boundaries, and a scale-down waits for the last peak to pass, against flapping.
- Pending workers count as capacity until their deadline, and another pool grows after it; the original holds the model.
- A silent worker counts as empty for scale-up and as full for scale-down.
- Where the measured latency is above a configured objective, a role grows too, and keeps the workers: ``LatencyGuard``.

The pools of a role serve together: the pool with the lowest cost per capacity grows, the most expensive one shrinks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from loadline.core.engines.token_capacity import (
    ObservedCapacity,
    TokenLimits,
    derived_tokens,
    empty_pool_tokens,
    request_tokens,
)
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingSamples
from loadline.core.planning.planner import Finding, KnobProblem, KnobWarning, ModelSettings, Needs, Planner
from loadline.core.planning.recommendation import WAKE_MS, PoolRecommendation, hold_without_data, recommend
from loadline.core.planning.sizing.headroom import Candidate, PoolCapacity, RoleCounts, resize
from loadline.core.planning.sizing.saturation.holds import RoleOccupancy, hold_reason
from loadline.core.planning.sizing.saturation.latency_bounds import guarded, latency_reason
from loadline.core.planning.sizing.saturation.latency_guard import LatencyGuard
from loadline.core.planning.sizing.saturation.occupancy import ObservedLengths, Occupancy
from loadline.core.planning.sizing.saturation.rules import SaturationThresholds
from loadline.core.planning.sizing.saturation.wva import WvaSaturation
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from loadline.core.vocabulary.scalars import Role

Threshold = Annotated[float, Meta(gt=0, le=1)]


class SaturationKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the saturation planner; names of llm-d's Workload Variant Autoscaler (WVA)."""

    profile: Annotated[
        Literal["own", "upstream"],
        Meta(
            description="own: this project's rules; upstream: those of WVA 0.4.1, which change one worker at a time, "
            "as a baseline."
        ),
    ] = "own"
    capacity: Annotated[
        Literal["usage", "tokens"],
        Meta(
            description="usage: load is KV usage and queue length; tokens: load is KV tokens, from the lengths of "
            "requests."
        ),
    ] = "usage"
    kv_cache_threshold: Annotated[Threshold, Meta(description="KV usage at which a worker is saturated.")] = 0.8
    queue_length_threshold: Annotated[
        float, Meta(gt=0, le=1e6, description="Waiting requests at which a worker is saturated.")
    ] = 5.0
    scale_up_threshold: Annotated[Threshold, Meta(description="Utilisation above which pools scale up.")] = 0.9
    scale_down_boundary: Annotated[
        Threshold, Meta(description="Utilisation of the remaining workers below which pools scale down.")
    ] = 0.75
    scale_up_window_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="Scale-up uses the mean load of this time, or two thirds of the present load if higher.",
        ),
    ] = 10_000
    scale_down_window_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="Scale-down uses the highest such mean of this time.")
    ] = 180_000
    kv_spare_trigger: Annotated[
        float, Meta(ge=0, le=1, description="Profile upstream: KV usage to keep free below kv_cache_threshold.")
    ] = 0.1
    queue_spare_trigger: Annotated[
        float,
        Meta(ge=0, le=1e6, description="Profile upstream: waiting requests to keep free below queue_length_threshold."),
    ] = 3.0
    optimization_interval_ms: Annotated[
        int, Meta(ge=1_000, le=3_600_000, description="Profile upstream: time between two evaluations.")
    ] = 60_000


class SaturationPlanner(Planner):
    """Planner that keeps headroom in KV caches and queues; see the module."""

    name = "saturation"
    summary = "Keeps headroom in the workers' KV caches and queues, for any engine."
    group = "compatible"
    Knobs = SaturationKnobs
    needs = Needs(objectives=frozenset({"ttft_ms", "itl_ms"}), default_objectives=False, shares_role_load=True)
    pool_fields: ClassVar[tuple[str, ...]] = ("pools", "removable")

    knobs: SaturationKnobs
    pools: dict[str, Occupancy] = field(default_factory=dict)
    guards: dict[Role, LatencyGuard] = field(default_factory=dict)
    upstream: WvaSaturation | None = None
    """State of the upstream rules; None with the planner's own rules."""
    removable: dict[str, bool] = field(default_factory=dict)
    """Pools whose other workers can carry the load of one worker, as of the last evaluation."""
    next_ms: int = 0

    @classmethod
    def check(cls, knobs: SaturationKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:  # noqa: ARG003
        """Yield thresholds without a gap or without headroom, and a capacity that has no effect."""
        if knobs.scale_up_threshold <= knobs.scale_down_boundary:
            problem = f"{knobs.scale_up_threshold:g} is not above scale_down_boundary {knobs.scale_down_boundary:g}"
            yield KnobProblem(f"{place}.scale_up_threshold", problem, "Keep a gap, or the fleet will swing.")
        if knobs.kv_spare_trigger > knobs.kv_cache_threshold:
            problem = f"{knobs.kv_spare_trigger:g} is above kv_cache_threshold {knobs.kv_cache_threshold:g}"
            yield KnobProblem(f"{place}.kv_spare_trigger", problem, "Lower it: the threshold leaves no such headroom.")
        if knobs.profile == "upstream" and knobs.capacity == "tokens":
            yield KnobWarning(
                f"{place}.capacity",
                '"tokens" has no effect, as profile = "upstream" uses KV usage and queues. Leave one of the two out.',
            )

    @classmethod
    def describe(cls, knobs: SaturationKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield the capacity of a worker, and the thresholds of its role."""
        if knobs.profile == "upstream":
            yield (
                f"Adds or removes one worker every {duration(knobs.optimization_interval_ms)}, by the headroom below "
                f"KV usage {knobs.kv_cache_threshold:g} and {knobs.queue_length_threshold:g} waiting requests."
            )
            return
        computes = "while it computes"
        full = {"prefill": computes, "encode": computes, "decode": f"at KV usage {knobs.kv_cache_threshold:g}"}
        both = f"at KV usage {knobs.kv_cache_threshold:g} or {knobs.queue_length_threshold:g} waiting requests"
        ttft, itl = f"TTFT {model.objectives.ttft_ms:g} ms", f"ITL {model.objectives.itl_ms:g} ms"
        objectives = {"prefill": ttft, "decode": itl}.get(pool.role, f"{ttft} or {itl}")
        yield (
            f"A worker is full {full.get(pool.role, both)}. Scales up above {knobs.scale_up_threshold:.0%} "
            f"utilisation; scales down when the remaining workers stay below {knobs.scale_down_boundary:.0%} at their "
            f"{duration(knobs.scale_down_window_ms)} peak."
        )
        if pool.role == "encode" or not model.has_objectives:  # neither latency of an encode pool is its own
            return
        yield f"Scales up, at most to twice the count, while the mean latency of half a minute is above {objectives}."

    def on_settings_change(self, before: SaturationKnobs) -> None:
        """Resize the windows; state in other units, or of other rules, is dropped."""
        self.upstream = None
        if self.knobs.capacity != before.capacity:
            self.pools.clear()
        for occupancy in self.pools.values():
            occupancy.short.window_ms = self.knobs.scale_up_window_ms
            occupancy.long.window_ms = self.knobs.scale_down_window_ms

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool, and the state that covers all pools of its role."""
        super().forget_pool(pool)
        self.guards.clear()
        self.upstream = None

    def can_remove_one(self, pool: str) -> bool:
        """Return True if the other workers can carry the load of one worker of a pool."""
        return self.removable.get(pool, False)

    def next_wake(self) -> int:
        """Return the time of the next sample, or of the next check for silent workers."""
        return self.next_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """Size the pools of each role together."""
        self.next_ms = now + WAKE_MS
        lengths = _lengths(model, now) if self.knobs.capacity == "tokens" else None
        for pool in model.pools.values():
            occupancy = self._occupancy(pool.name)
            occupancy.update(pool, self._limits, lengths, now)
            self.next_ms = min(self.next_ms, now + occupancy.sample_ms)
        recommendations: dict[str, PoolRecommendation] = {}
        demands: list[RoleDemand] = []
        for role in {pool.knobs.role: None for pool in model.pools.values()}:
            pools = [pool for pool in model.pools.values() if pool.knobs.role == role]
            holds = {pool.name: hold for pool in pools if (hold := self._hold_without_data(pool)) is not None}
            if self.knobs.profile == "upstream":
                if self.upstream is None:
                    self.upstream = WvaSaturation(self.knobs.optimization_interval_ms)
                recommendations |= self.upstream.recommend(pools, self._thresholds, now) | holds
            elif len(holds) == len(pools):
                recommendations |= holds
            else:
                guard = self.guards.setdefault(role, LatencyGuard()) if model.has_objectives else LatencyGuard()
                if model.has_objectives:
                    guard.update(model, pools, self.knobs.scale_down_window_ms, now)
                queued = 0 if role == "encode" else model.traffic.queued(now)  # by workers of the other roles
                role_occupancy = self._role_occupancy(pools, holds, queued, lengths)
                sized, demand = self._resize(pools, holds, role_occupancy, guard, now)
                recommendations |= sized
                demands.append(demand)
        inputs = {
            f"{name}.{key}": value
            for name in model.pools
            for one in (self.pools[name],)
            for key, value in (("held_low", one.low), ("held_high", one.high))
        }
        found = recommend(self.name, model, recommendations, inputs, now)
        return replace(found, demands=tuple(demands))

    def export_learned(self) -> bytes | None:
        """Return the KV tokens that workers held when requests queued, by pool."""
        learned = {name: one.observed for name, one in sorted(self.pools.items()) if one.observed.by_bucket}
        return msgspec.json.encode(learned) if learned else None

    def import_learned(self, data: bytes) -> None:
        """Start with the exported KV tokens."""
        if self.knobs.capacity == "tokens":
            for name, observed in msgspec.json.decode(data, type=dict[str, ObservedCapacity]).items():
                self._occupancy(name).observed = observed

    @property
    def _limits(self) -> TokenLimits:
        return TokenLimits(self.knobs.kv_cache_threshold, self.knobs.queue_length_threshold)

    @property
    def _thresholds(self) -> SaturationThresholds:
        knobs = self.knobs
        return SaturationThresholds(
            knobs.kv_cache_threshold, knobs.queue_length_threshold, knobs.kv_spare_trigger, knobs.queue_spare_trigger
        )

    def _occupancy(self, name: str) -> Occupancy:
        occupancy = self.pools.get(name)
        if occupancy is None:
            windows = RollingSamples(self.knobs.scale_up_window_ms), RollingSamples(self.knobs.scale_down_window_ms)
            occupancy = self.pools[name] = Occupancy(*windows)
        return occupancy

    def _hold_without_data(self, pool: Pool) -> PoolRecommendation | None:
        """Return the hold of a pool without data; None if it has data."""
        self.removable[pool.name] = False
        return hold_without_data(pool, len(self.pools[pool.name].loads) if pool.fresh else 0)

    def _role_occupancy(
        self, pools: Sequence[Pool], silent: Collection[str], queued: int, lengths: ObservedLengths | None
    ) -> RoleOccupancy:
        """Return the load of the pools of a role, with the requests that are queued at frontends."""
        role, capacities = pools[0].knobs.role, self._capacities(pools, lengths)
        # A load in workers is converted to the common unit by the capacity of a worker.
        units = capacities if lengths is None else dict.fromkeys(capacities, 1.0)
        if lengths is None:
            ready, running = sum(pool.ready for pool in pools), sum(pool.load.running for pool in pools)
            batch = 0.0 if role == "prefill" else running / max(ready, 1)
            queued_load = queued / max(batch, self.knobs.queue_length_threshold) * min(capacities.values())
        else:
            queued_load = queued * request_tokens(role, lengths.isl_tokens, lengths.osl_tokens)
        windows = [(self.pools[name], unit) for name, unit in units.items() if name not in silent]
        return RoleOccupancy(
            sum(self.pools[name].scale_up_load * unit for name, unit in units.items()) + queued_load,
            sum(one.present_load * unit for one, unit in windows) + queued_load,
            sum(one.scale_down_load * unit for one, unit in windows) + queued_load,
            capacities,
            windows,
            sum(max(0, pool.ready - len(self.pools[pool.name].loads)) for pool in pools if pool.name not in silent),
        )

    def _capacities(self, pools: Sequence[Pool], lengths: ObservedLengths | None) -> dict[str, float]:
        """Return the capacity of one worker of each pool in KV tokens; 1 by usage, unless all pools report theirs."""
        known = {pool.name: one for pool in pools if (one := self.pools[pool.name].capacity)}
        if not known or (lengths is None and any(pool.ready and pool.name not in known for pool in pools)):
            return {pool.name: 1.0 for pool in pools}
        lowest = min(known.values())
        derived = derived_tokens(lengths.isl_tokens, lengths.osl_tokens) if lengths is not None else 0.0
        similar = {_hardware(pool): known[pool.name] for pool in pools if pool.name in known}
        return {
            pool.name: empty_pool_tokens(
                known.get(pool.name), min(derived or lowest, lowest), similar.get(_hardware(pool))
            )
            for pool in pools
        }

    def _resize(
        self,
        pools: Sequence[Pool],
        holds: Mapping[str, PoolRecommendation],
        occupancy: RoleOccupancy,
        guard: LatencyGuard,
        now: int,
    ) -> tuple[dict[str, PoolRecommendation], RoleDemand]:
        """Return recommendations for the pools of a role, and the demand of the role."""
        up, down, capacities = self.knobs.scale_up_threshold, self.knobs.scale_down_boundary, occupancy.capacities
        states = [_pool_capacity(pool, capacities[pool.name], now, silent=pool.name in holds) for pool in pools]
        by_load = resize(states, occupancy.scale_up_load, occupancy.scale_down_load, up, down)
        found = guarded(by_load, states, occupancy, guard, up, down, now)
        changes = any(found.counts[state.candidate.name] != state.candidate.current for state in states)
        recommendations: dict[str, PoolRecommendation] = {}
        for pool, state in zip(pools, states, strict=True):
            count = found.counts[pool.name]
            step = count - state.candidate.current
            self.removable[pool.name] = not state.silent and found.headroom >= state.candidate.capacity
            if pool.name in holds and step <= 0:
                recommendations[pool.name] = holds[pool.name]
                continue
            missing = pool.overdue_workers(now)
            overdue = (Reason.of(ReasonCode.PENDING_UNREACHED, pool.name, missing=missing),) if missing else ()
            reason = latency_reason(state.candidate, by_load, found, guard) or self._reason(
                state.candidate, found, occupancy, now, is_other_first=changes
            )
            if step > 0:  # overdue workers stay requested
                count = max(count, pool.effective_target(now))
            recommendations[pool.name] = PoolRecommendation(count if step else None, (reason, *overdue))
        demand = found.expected + found.required - found.headroom
        return recommendations, RoleDemand(pools[0].knobs.role, demand, dict(capacities))

    def _reason(
        self, candidate: Candidate, found: RoleCounts, occupancy: RoleOccupancy, now: int, *, is_other_first: bool
    ) -> Reason:
        """Return the reason for a pool's count: load and workers in workers of the pool, and the threshold."""
        knobs, name, count, capacity = self.knobs, candidate.name, found.counts[candidate.name], candidate.capacity
        held, workers = occupancy.scale_up_load / capacity, found.expected / capacity
        if count > candidate.current:
            numbers = {"held": held, "workers": workers, "threshold": knobs.scale_up_threshold, "wanted": count}
            return Reason.of(ReasonCode.SATURATION_HIGH, name, **numbers)
        if count < candidate.current:
            held, workers = occupancy.scale_down_load / capacity, found.reported / capacity
            numbers = {"held": held, "workers": workers, "threshold": knobs.scale_down_boundary, "wanted": count}
            return Reason.of(ReasonCode.SATURATION_LOW, name, **numbers)
        if is_other_first:
            return Reason.of(ReasonCode.OTHER_POOL_FIRST, name, held=held, workers=workers)
        return hold_reason(candidate, found, occupancy, knobs.scale_down_boundary, now)


def _pool_capacity(pool: Pool, capacity: float, now: int, *, silent: bool) -> PoolCapacity:
    knobs, current = pool.knobs, pool.scaling_base(now)
    replicas_max = max(knobs.replicas_max, current)
    candidate = Candidate(pool.name, pool.cost_per_hour, capacity, current, knobs.replicas_min, replicas_max)
    return PoolCapacity(candidate, pool.ready, silent=silent, overdue=pool.overdue_workers(now) > 0)


def _hardware(pool: Pool) -> tuple[str, int]:
    """Return the hardware of a pool's workers; those with the same hardware have about the same capacity."""
    return pool.knobs.accelerator, pool.knobs.gpus_per_worker


def _lengths(model: Model, now: int) -> ObservedLengths:
    traffic = model.traffic.status(now)
    return ObservedLengths(traffic.isl_tokens or 0.0, traffic.osl_tokens or 0.0)
