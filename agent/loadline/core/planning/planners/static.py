"""The static planner: a fixed count for each pool, whatever the load.

With the counts of the peak it is the fleet that never misses and always pays: the upper end of any comparison.
"""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.planner import Planner
from loadline.core.planning.recommendation import WAKE_MS, PoolRecommendation, held, opinion, recommended
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.scalars import Name


class StaticKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the static planner."""

    replicas: Annotated[
        dict[Name, Annotated[int, Meta(ge=0)]],
        Meta(max_length=64, description="Workers of each pool, by its name; a pool without one holds what it has."),
    ] = {}


class StaticPlanner(Planner):
    """See the module."""

    name: ClassVar[str] = "static"

    knobs: StaticKnobs
    next_look_ms: int = 0

    def next_wake(self) -> int:
        """It has nothing to look at; the freshness of workers has."""
        return self.next_look_ms

    def plan(self, model: Model, now: int) -> Recommendation:
        """The configured counts."""
        self.next_look_ms = now + WAKE_MS
        said = {pool.name: self._look(pool, now) for pool in model.pools.values()}
        inputs = {f"{name}.replicas": float(count) for name, count in self.knobs.replicas.items()}
        return opinion(self.name, model, said, inputs, now)

    def _look(self, pool: Pool, now: int) -> PoolRecommendation:
        count = self.knobs.replicas.get(pool.name)
        if count is None:
            return held(ReasonCode.NO_FIXED_COUNT, pool)
        return recommended(count, (Reason.of(ReasonCode.FIXED_COUNT, pool.name, replicas=count),), pool, now)
