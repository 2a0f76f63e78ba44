"""Base of planners that evaluate their pools at fixed intervals, as the autoscalers of Kubernetes do."""

from typing import Any, ClassVar

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingSamples
from loadline.core.planning.planner import Planner
from loadline.core.planning.recommendation import (
    NO_RECOMMENDATION,
    WAKE_MS,
    PoolRecommendation,
    hold_without_data,
    recommend,
)
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation


class SyncHistory(Struct):
    """State of one pool between syncs."""

    recommendations: RollingSamples
    expected: int = 0
    """Highest count that follows from the recommendations of this planner; a higher one was set from outside."""
    recommendation: PoolRecommendation = NO_RECOMMENDATION
    """Recommendation of the last sync."""

    def record_external_growth(self, current: int, now: int) -> None:
        """Record a count in force that was raised from outside as a recommendation."""
        if current > self.expected:
            self.recommendations.push(now, float(current))

    def highest(self, proposed: int, pool: Pool, now: int) -> tuple[int, list[Reason]]:
        """Raise a proposal to the highest recommendation of the window, with the reason if that changes it."""
        highest = int(max(self.recommendations.values, default=proposed))
        if highest <= proposed:
            return proposed, []
        window_ms, left_ms = self.recommendations.window_ms + 1, self.recommendations.falls_below_ms(highest, now) - now
        numbers = {"wanted": proposed, "allowed": highest, "window_ms": window_ms, "left_ms": left_ms}
        return highest, [Reason.of(ReasonCode.HIGHEST_RECOMMENDATION, pool.name, **numbers)]


class SyncedPlanner(Planner):
    """Planner that evaluates its pools every ``sync_ms`` and repeats its recommendations between two syncs."""

    pool_fields: ClassVar[tuple[str, ...]] = ("histories",)

    knobs: Any
    histories: dict[str, Any] = field(default_factory=dict)
    """State by pool: ``SyncHistory`` or a subclass."""
    next_sync_ms: int = 0
    next_check_ms: int = 0

    @property
    def sync_ms(self) -> int:
        """Time between two syncs."""
        raise NotImplementedError

    def new_history(self) -> SyncHistory:
        """Return the state of a pool that is seen for the first time."""
        raise NotImplementedError

    def known(self, pool: Pool) -> int:
        """Return the number of workers that report at least one metric of the pool."""
        raise NotImplementedError

    def pool_inputs(self, pool: Pool) -> dict[str, float]:
        """Return the values that the recommendation for a pool depends on, by name."""
        raise NotImplementedError

    def observe(self, model: Model, pool: Pool, now: int) -> None:
        """Record the newest reports of a pool, between two syncs too; by default nothing."""

    def sync(self, pool: Pool, now: int) -> PoolRecommendation:
        """Evaluate a pool that has data."""
        raise NotImplementedError

    def next_wake(self) -> int:
        """Return the next sync, or the next check for stale workers."""
        return min(self.next_sync_ms, self.next_check_ms)

    def plan(self, model: Model, now: int) -> Recommendation:
        """Sync the pools if a sync is due; otherwise repeat the recommendations of pools that have data."""
        self.next_check_ms = now + WAKE_MS
        due = now >= self.next_sync_ms
        if due:
            self.next_sync_ms = now + self.sync_ms
        inputs: dict[str, float] = {}
        for name, pool in model.pools.items():
            history = self.histories.get(name)
            if history is None:
                history = self.histories[name] = self.new_history()
            self.observe(model, pool, now)
            inputs |= {f"{name}.{key}": value for key, value in self.pool_inputs(pool).items()}
            without_data = hold_without_data(pool, self.known(pool))
            if without_data is not None:
                history.recommendation = without_data
            elif due:
                history.recommendation = self.sync(pool, now)
        pools = {name: history.recommendation for name, history in self.histories.items()}
        return recommend(self.name, model, pools, inputs, now)
