"""The saturation planner: as many workers as hold what there is with some to spare, whatever the engines are.

Its thresholds are those of llm-d's capacity analysers, and by ``profile = "upstream"`` it decides as the first of them
does. Its own way differs where that one fails:

- every worker counts, also one that is saturated, and so does what waits: the original averages over the others, and
  shrinks a fleet of which eight of ten drown;
- one step is as large as what is held needs; there it is one worker a minute;
- growth and shrink have boundaries of their own, and a shrink waits for the last peak to pass: nothing flaps;
- workers on their way count as supply until their deadline, and then another pool grows; there they freeze the model;
- a worker that does not report is neither idle nor loaded: it counts for nothing in growth and as full in a shrink.

Pools of a role serve together: the one that serves most for its cost grows, the dearest shrinks.
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
from loadline.core.planning.sizing.headroom import Candidate, PoolCapacity, resize
from loadline.core.planning.sizing.occupancy import ObservedLengths, Occupancy
from loadline.core.planning.sizing.saturation_rules import Thresholds
from loadline.core.planning.sizing.wva_saturation import Spare
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from loadline.core.vocabulary.scalars import Role

Threshold = Annotated[float, Meta(gt=0, le=1)]


class SaturationKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the saturation planner; names of llm-d's Workload Variant Autoscaler."""

    profile: Annotated[
        Literal["own", "upstream"],
        Meta(description="The rules: its own, or those of WVA 0.4.1, one worker at a time, as a baseline."),
    ] = "own"
    capacity: Annotated[
        Literal["usage", "tokens"],
        Meta(description="What workers hold: by KV usage and queues, or in KV tokens, with the lengths of requests."),
    ] = "usage"
    kv_cache_threshold: Annotated[Threshold, Meta(description="KV usage at which a worker is saturated.")] = 0.8
    queue_length_threshold: Annotated[
        float, Meta(gt=0, le=1e6, description="Waiting requests at which a worker is saturated.")
    ] = 5.0
    scale_up_threshold: Annotated[
        Threshold, Meta(description="Grow where more of what the workers can hold is held.")
    ] = 0.9
    scale_down_boundary: Annotated[Threshold, Meta(description="Shrink where less of what would be left is held.")] = (
        0.75
    )
    scale_up_window_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="Growth goes by the mean of this time; what is new counts at once.")
    ] = 10_000
    scale_down_window_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="A shrink goes by the highest such mean of this time.")
    ] = 180_000
    kv_spare_trigger: Annotated[
        float, Meta(ge=0, le=1, description="upstream: KV usage that is to be spare below its threshold.")
    ] = 0.1
    queue_spare_trigger: Annotated[
        float, Meta(ge=0, le=1e6, description="upstream: waiting requests that are to be spare below their threshold.")
    ] = 3.0
    optimization_interval_ms: Annotated[
        int, Meta(ge=1_000, le=3_600_000, description="upstream: time between two looks, and of the peaks it goes by.")
    ] = 60_000


class PoolOccupancy(Struct, frozen=True):
    """What the pools of a role hold together, and what one worker of each can hold: in workers or in KV tokens."""

    rising: float
    falling: float
    capacities: dict[str, float]


class SaturationPlanner(Planner):
    """See the module."""

    name = "saturation"
    summary = "Keeps headroom in the workers' KV caches and queues, whatever the engines are."
    Knobs = SaturationKnobs
    needs = Needs(shares_role_load=True)
    pool_fields: ClassVar[tuple[str, ...]] = ("pools", "safe")

    knobs: SaturationKnobs
    pools: dict[str, Occupancy] = field(default_factory=dict)
    spare: Spare | None = None
    """What the rules of upstream remember; None by its own."""
    safe: dict[str, bool] = field(default_factory=dict)
    """Whether one worker less of a pool would do, as of the last look."""
    next_ms: int = 0

    @classmethod
    def check(cls, knobs: SaturationKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:  # noqa: ARG003
        """Yield thresholds without a gap or without headroom, and a capacity that has no effect."""
        if knobs.scale_up_threshold <= knobs.scale_down_boundary:
            problem = f"{knobs.scale_up_threshold:g} is not above scale_down_boundary {knobs.scale_down_boundary:g}"
            yield KnobProblem(f"{place}.scale_up_threshold", problem, "Keep a gap, or the fleet will swing.")
        if knobs.kv_spare_trigger > knobs.kv_cache_threshold:
            problem = f"{knobs.kv_spare_trigger:g} is above kv_cache_threshold {knobs.kv_cache_threshold:g}"
            yield KnobProblem(f"{place}.kv_spare_trigger", problem, "Lower it: so much is never spare.")
        if knobs.profile == "upstream" and knobs.capacity == "tokens":
            yield KnobWarning(
                f"{place}.capacity",
                '"tokens" has no effect, as profile = "upstream" goes by KV usage and queues. Leave one of the two '
                "out.",
            )

    @classmethod
    def describe(cls, knobs: SaturationKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the capacity of a worker, and the thresholds of its role."""
        if knobs.profile == "upstream":
            yield (
                f"Adds or removes one worker every {duration(knobs.optimization_interval_ms)}, by the headroom below "
                f"KV usage {knobs.kv_cache_threshold:g} and {knobs.queue_length_threshold:g} waiting requests."
            )
            return
        full = {"prefill": "while it computes", "decode": f"at KV usage {knobs.kv_cache_threshold:g}"}
        both = f"at KV usage {knobs.kv_cache_threshold:g} or {knobs.queue_length_threshold:g} waiting requests"
        yield (
            f"A worker is full {full.get(pool.role, both)}. Scales up above {knobs.scale_up_threshold:.0%} "
            f"utilisation; scales down when the remaining workers stay below {knobs.scale_down_boundary:.0%} at their "
            f"{duration(knobs.scale_down_window_ms)} peak."
        )

    def on_settings_change(self, before: SaturationKnobs) -> None:
        """The windows follow. What was held in other units, or by other rules, is seen anew."""
        self.spare = None
        if self.knobs.capacity != before.capacity:
            self.pools.clear()
        for known in self.pools.values():
            known.short.window_ms = self.knobs.scale_up_window_ms
            known.long.window_ms = self.knobs.scale_down_window_ms

    def forget_pool(self, pool: str) -> None:
        """The rules of upstream judge all pools of a role together: they begin anew."""
        super().forget_pool(pool)
        self.spare = None

    def can_remove_one(self, pool: str) -> bool:
        """Return whether the other workers can carry the load of one worker of a pool."""
        return self.safe.get(pool, False)

    def next_wake(self) -> int:
        """The next look at who is fresh."""
        return self.next_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """Judge the pools of each role together."""
        self.next_ms = now + WAKE_MS
        lengths = _lengths(model, now) if self.knobs.capacity == "tokens" else None
        for pool in model.pools.values():
            occupancy = self._occupancy(pool.name)
            occupancy.look(pool, self._limits, lengths, now)
            self.next_ms = min(self.next_ms, now + occupancy.sample_ms)
        said: dict[str, PoolRecommendation] = {}
        needs: list[RoleDemand] = []
        for role in {pool.knobs.role: None for pool in model.pools.values()}:
            pools = [pool for pool in model.pools.values() if pool.knobs.role == role]
            blind = {pool.name: problem for pool in pools if (problem := self._blind(pool)) is not None}
            if self.knobs.profile == "upstream":
                if self.spare is None:
                    self.spare = Spare(self.knobs.optimization_interval_ms)
                said |= self.spare.judge(pools, self._thresholds, now) | blind
            elif len(blind) == len(pools):
                said |= blind
            else:
                found, need = self._judge(pools, blind, self._held(role, pools, blind, model, lengths, now), now)
                said |= found
                needs.append(need)
        inputs = {
            f"{name}.{key}": value
            for name in model.pools
            for one in (self.pools[name],)
            for key, value in (("held_low", one.low), ("held_high", one.high))
        }
        seen = recommend(self.name, model, said, inputs, now)
        return Recommendation(seen.planner, seen.targets, seen.reasons, seen.inputs, tuple(needs))

    def export_learned(self) -> bytes | None:
        """What workers held in KV tokens when requests queued, by pool."""
        found = {name: one.observed for name, one in sorted(self.pools.items()) if one.observed.by_bucket}
        return msgspec.json.encode(found) if found else None

    def import_learned(self, data: bytes) -> None:
        """Begin with that."""
        if self.knobs.capacity == "tokens":
            for name, observed in msgspec.json.decode(data, type=dict[str, ObservedCapacity]).items():
                self._occupancy(name).observed = observed

    @property
    def _limits(self) -> TokenLimits:
        return TokenLimits(self.knobs.kv_cache_threshold, self.knobs.queue_length_threshold)

    @property
    def _thresholds(self) -> Thresholds:
        knobs = self.knobs
        return Thresholds(
            knobs.kv_cache_threshold, knobs.queue_length_threshold, knobs.kv_spare_trigger, knobs.queue_spare_trigger
        )

    def _occupancy(self, name: str) -> Occupancy:
        known = self.pools.get(name)
        if known is None:
            windows = RollingSamples(self.knobs.scale_up_window_ms), RollingSamples(self.knobs.scale_down_window_ms)
            known = self.pools[name] = Occupancy(*windows)
        return known

    def _blind(self, pool: Pool) -> PoolRecommendation | None:
        """The hold of a pool of which nothing is known."""
        self.safe[pool.name] = False
        return hold_without_data(pool, len(self.pools[pool.name].held) if pool.fresh else 0)

    def _held(  # noqa: PLR0917 - all that there is to know
        self,
        role: Role,
        pools: Sequence[Pool],
        blind: Collection[str],
        model: Model,
        lengths: ObservedLengths | None,
        now: int,
    ) -> PoolOccupancy:
        capacities = self._capacities(pools, lengths)
        # By percent a pool holds so many workers, and these are worth what they can hold.
        units = capacities if lengths is None else dict.fromkeys(capacities, 1.0)
        queued = model.traffic.queued(now)
        if lengths is None:
            ready, running = sum(pool.ready for pool in pools), sum(pool.load.running for pool in pools)
            batch = 0.0 if role == "prefill" else running / max(ready, 1)
            queued_for = queued / max(batch, self.knobs.queue_length_threshold) * min(capacities.values())
        else:
            queued_for = queued * request_tokens(role, lengths.isl_tokens, lengths.osl_tokens)
        return PoolOccupancy(
            sum(self.pools[name].rising * unit for name, unit in units.items()) + queued_for,
            sum(self.pools[name].falling * unit for name, unit in units.items() if name not in blind) + queued_for,
            capacities,
        )

    def _capacities(self, pools: Sequence[Pool], lengths: ObservedLengths | None) -> dict[str, float]:
        """What one worker of each pool can hold; 1 by percent, where not all pools say how large their caches are."""
        known = {pool.name: one for pool in pools if (one := self.pools[pool.name].capacity)}
        if not known or (lengths is None and any(pool.ready and pool.name not in known for pool in pools)):
            return {pool.name: 1.0 for pool in pools}
        least = min(known.values())
        derived = derived_tokens(lengths.isl_tokens, lengths.osl_tokens) if lengths is not None else 0.0
        alike = {_kind(pool): known[pool.name] for pool in pools if pool.name in known}
        return {
            pool.name: empty_pool_tokens(known.get(pool.name), min(derived or least, least), alike.get(_kind(pool)))
            for pool in pools
        }

    def _judge(
        self, pools: Sequence[Pool], blind: Mapping[str, PoolRecommendation], held: PoolOccupancy, now: int
    ) -> tuple[dict[str, PoolRecommendation], RoleDemand]:
        """What is said of the pools of a role, and what they are to hold."""
        up, down = self.knobs.scale_up_threshold, self.knobs.scale_down_boundary
        crews = [_crew(pool, held.capacities[pool.name], now, silent=pool.name in blind) for pool in pools]
        found = resize(crews, held.rising, held.falling, up, down)
        said: dict[str, PoolRecommendation] = {}
        for pool, crew in zip(pools, crews, strict=True):
            capacity, count = crew.choice.capacity, found.counts[pool.name]
            step = count - crew.choice.current
            self.safe[pool.name] = not crew.silent and found.spare >= capacity
            if pool.name in blind and step <= 0:
                said[pool.name] = blind[pool.name]
                continue
            if step < 0:
                code, of, workers, threshold = ReasonCode.SATURATION_LOW, held.falling, found.ready, down
            else:
                code, of, workers, threshold = ReasonCode.SATURATION_HIGH, held.rising, found.anticipated, up
            reason = Reason.of(
                code if step else ReasonCode.SATURATION_WITHIN,
                pool.name,
                held=of / capacity,
                workers=workers / capacity,
                threshold=threshold,
                wanted=count,
            )
            if not step and held.falling > held.rising:
                window_s, peak = self.knobs.scale_down_window_ms / 1_000, held.falling / capacity
                reason = replace(reason, detail=f"the peak of the last {window_s:g} s is {peak:.2f}")
            missing = pool.overdue_workers(now)
            late = (Reason.of(ReasonCode.PENDING_UNREACHED, pool.name, missing=missing),) if missing else ()
            if step > 0:  # what is late is not given up for what is needed
                count = max(count, pool.effective_target(now))
            said[pool.name] = PoolRecommendation(count if step else None, (reason, *late))
        demand = found.anticipated + found.required - found.spare
        return said, RoleDemand(pools[0].knobs.role, demand, dict(held.capacities))


def _crew(pool: Pool, capacity: float, now: int, *, silent: bool) -> PoolCapacity:
    knobs, current = pool.knobs, pool.scaling_base(now)
    most = max(knobs.replicas_max, current)
    choice = Candidate(pool.name, pool.cost_per_hour, capacity, current, knobs.replicas_min, most)
    return PoolCapacity(choice, pool.ready, silent=silent, late=pool.overdue_workers(now) > 0)


def _kind(pool: Pool) -> tuple[str, int]:
    """Workers of a kind can hold about as much."""
    return pool.knobs.accelerator, pool.knobs.gpus_per_worker


def _lengths(model: Model, now: int) -> ObservedLengths:
    traffic = model.traffic.status(now)
    return ObservedLengths(traffic.isl_tokens or 0.0, traffic.osl_tokens or 0.0)
