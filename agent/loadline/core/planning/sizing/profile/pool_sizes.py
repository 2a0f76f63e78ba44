"""Sizes of the pools of a model, until they are sized again."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.demand.outlook import TrafficLoad
from loadline.core.planning.recommendation import PoolSize
from loadline.core.planning.sizing.forecast_steps import limit_step
from loadline.core.planning.sizing.profile.counts import Size, Sizing
from loadline.core.vocabulary.reasons import Reason, ReasonCode

_SCALE_DOWN_FACTOR: Final = 1.1
"""Factor on the demand for scale-down: between two counts, noise would change the size for ever."""

SizeReason = Callable[[Pool, dict[str, float], ReasonCode], Reason]
"""Function that builds the reason of a size from the pool, the numbers of the load, and the cause: surge or not."""


class PoolSizes(Struct):
    """Sizes of the pools of a model, and the reasons why some have none."""

    sized: dict[str, PoolSize] = field(default_factory=dict)
    problems: dict[str, Reason] = field(default_factory=dict)
    """Reasons why pools cannot be sized."""
    infeasible: dict[str, Reason] = field(default_factory=dict)
    """Objectives that no count of a pool meets."""
    forecast_targets: dict[str, int] = field(default_factory=dict)
    """Targets of the pools when the newest forecast arrived; it changes each by a limited step in total."""

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool."""
        self.sized.pop(pool, None)
        self.problems.pop(pool, None)
        self.infeasible.pop(pool, None)
        self.forecast_targets.pop(pool, None)

    def start_forecast(self, model: Model, now: int) -> None:
        """Limit the steps of a new forecast, starting from the targets at ``now`` (ms)."""
        self.forecast_targets = {name: pool.effective_target(now) for name, pool in model.pools.items()}

    def resize(
        self, model: Model, load: TrafficLoad, sizing: Sizing, reason: SizeReason, *, step_max: int, now: int
    ) -> None:
        """Size all pools for a load."""
        sizes = with_margin = sizing(1.0)
        if any(sizes[pool.name].replicas < pool.effective_target(now) for pool in model.pools.values()):
            with_margin = sizing(_SCALE_DOWN_FACTOR)
        self.problems = {name: size.problem for name, size in sizes.items() if size.problem is not None}
        self.infeasible = {name: size.infeasible for name, size in sizes.items() if size.infeasible is not None}
        for pool in model.pools.values():
            size, before = sizes[pool.name], self.sized.get(pool.name)
            if size.problem is not None:
                self.sized.pop(pool.name, None)
                continue
            if load.is_surge and before is not None and size.replicas <= before.replicas:
                # The size and its cause are kept, with the numbers of the new load.
                replicas, by_surge = before.replicas, before.reason.code is ReasonCode.TRAFFIC_SURGE
                limit = ReasonCode.SURGE_ADDS_ONLY if size.replicas < replicas else _minimum_of(size)
            else:
                by_surge = load.is_surge
                margin = with_margin[pool.name].replicas
                replicas, limit = self._limited(pool, size, margin, step_max, now, is_surge=by_surge)
            numbers = load.outlook.numbers | {
                "busy": size.busy,
                "wanted": float(size.needed),
                "allowed": float(replicas),
            }
            code = ReasonCode.TRAFFIC_SURGE if by_surge else ReasonCode.THROUGHPUT_TARGET
            self.sized[pool.name] = PoolSize(replicas, reason(pool, numbers, code), limit)

    def _limited(
        self, pool: Pool, size: Size, with_margin: int, step_max: int, now: int, *, is_surge: bool
    ) -> tuple[int, ReasonCode | None]:
        """Return the count of a pool, with a margin for scale-down and within the step of a forecast, and the limit."""
        current = pool.effective_target(now)
        replicas = max(size.replicas, min(current, with_margin))
        limit = ReasonCode.SCALE_DOWN_MARGIN if replicas > size.replicas else _minimum_of(size)
        if is_surge:  # a few seconds of traffic may be untypical, so they only add workers
            return (current, ReasonCode.SURGE_ADDS_ONLY) if replicas < current else (replicas, limit)
        start = self.forecast_targets.get(pool.name, current)
        allowed = limit_step(start, replicas, pool.knobs.replicas_min, step_max)
        # Workers added by a surge since then are not part of the step: they stay while the forecast needs them too.
        count = sorted((allowed, current, replicas))[1]
        return count, limit if count == replicas else ReasonCode.FORECAST_STEP


def _minimum_of(size: Size) -> ReasonCode | None:
    """Return the code of minimum replicas if they raise a size, otherwise None."""
    return ReasonCode.REPLICAS_MIN if size.replicas > size.needed else None
