"""Static planner: a fixed count for each pool, independent of the load.

With the counts of the peak load it is the most expensive baseline of a comparison, and meets the most objectives.
"""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.planner import Finding, KnobProblem, KnobWarning, ModelSettings, Planner
from loadline.core.planning.recommendation import WAKE_MS, PoolRecommendation, hold, recommend, scale_to
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.scalars import Name


class StaticKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the static planner."""

    replicas: Annotated[
        dict[Name, Annotated[int, Meta(ge=0)]],
        Meta(max_length=64, description="Count by pool; pools that are not listed keep their current target."),
    ] = {}


class StaticPlanner(Planner):
    """Planner that recommends the configured counts."""

    name = "static"
    summary = "A fixed count for each pool, independent of the load."
    Knobs = StaticKnobs
    sizes_encode_pools = True

    knobs: StaticKnobs
    next_check_ms: int = 0

    @classmethod
    def check(cls, knobs: StaticKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield counts of unknown pools or outside their bounds, and a warning without any count."""
        pools = {pool.name: pool for pool in model.pools}
        for name, count in knobs.replicas.items():
            pool, here = pools.get(name), f"{place}.replicas.{name}"
            if pool is None:
                yield KnobProblem(here, "is not a pool of this model", f"Known are: {', '.join(sorted(pools))}.")
            elif not pool.replicas_min <= count <= pool.replicas_max:
                bounds = f"replicas_min {pool.replicas_min} and replicas_max {pool.replicas_max}"
                yield KnobProblem(here, f"{count} is not between {bounds}", "Change it or the bounds of the pool.")
        if not knobs.replicas:
            yield KnobWarning(f"{place}.replicas", "no pool has a count, so no count changes. Set one for each pool.")

    @classmethod
    def describe(cls, knobs: StaticKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # noqa: ARG003
        """Yield the count of a pool."""
        count = knobs.replicas.get(pool.name)
        yield "No fixed count: the current target is kept." if count is None else f"Fixed at {count} workers."

    def next_wake(self) -> int:
        """Return the next check for stale workers."""
        return self.next_check_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """Recommend the configured counts."""
        self.next_check_ms = now + WAKE_MS
        pools = {pool.name: self._recommend(pool, now) for pool in model.pools.values()}
        inputs = {f"{name}.replicas": float(count) for name, count in self.knobs.replicas.items()}
        return recommend(self.name, model, pools, inputs, now)

    def _recommend(self, pool: Pool, now: int) -> PoolRecommendation:
        count = self.knobs.replicas.get(pool.name)
        if count is None:
            return hold(ReasonCode.NO_FIXED_COUNT, pool)
        return scale_to(count, (Reason.of(ReasonCode.FIXED_COUNT, pool.name, replicas=count),), pool, now)
