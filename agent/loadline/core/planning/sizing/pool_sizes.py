"""The counts that the pools of a model are sized to, until they are sized again."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.demand.outlook import TrafficLoad
from loadline.core.planning.recommendation import PoolSize
from loadline.core.planning.sizing.forecast_steps import bounded
from loadline.core.planning.sizing.sizing_by_profile import Size, Sizing
from loadline.core.vocabulary.reasons import Reason, ReasonCode

_HEADROOM: Final = 1.1
"""A pool shrinks to what this much of the demand needs: at the edge of two counts noise would change it for ever."""

SizeReason = Callable[[Pool, dict[str, float], ReasonCode], Reason]
"""Makes the reason of a size from the pool, the numbers of the load, and what called for it: surge or forecast."""


class PoolSizes(Struct):
    """Sizes of the pools of a model, and why some have none."""

    sized: dict[str, PoolSize] = field(default_factory=dict)
    problems: dict[str, Reason] = field(default_factory=dict)
    """Reasons why pools cannot be sized."""
    infeasible: dict[str, Reason] = field(default_factory=dict)
    """Objectives that no count of a pool meets."""
    forecast_targets: dict[str, int] = field(default_factory=dict)
    """Targets of the pools when the newest forecast came: it changes them by a bounded step in all."""

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool."""
        self.sized.pop(pool, None)
        self.problems.pop(pool, None)
        self.infeasible.pop(pool, None)
        self.forecast_targets.pop(pool, None)

    def start_forecast(self, model: Model, now: int) -> None:
        """Bound the steps of a new forecast by the targets of ``now`` (ms)."""
        self.forecast_targets = {name: pool.effective_target(now) for name, pool in model.pools.items()}

    def resize(
        self, model: Model, load: TrafficLoad, sizing: Sizing, reason: SizeReason, *, step_max: int, now: int
    ) -> None:
        """Size all pools for a load."""
        found = spare = sizing(1.0)
        if any(found[pool.name].wanted < pool.effective_target(now) for pool in model.pools.values()):
            spare = sizing(_HEADROOM)
        self.problems = {name: size.problem for name, size in found.items() if size.problem is not None}
        self.infeasible = {name: size.infeasible for name, size in found.items() if size.infeasible is not None}
        for pool in model.pools.values():
            size, before = found[pool.name], self.sized.get(pool.name)
            if size.problem is not None:
                self.sized.pop(pool.name, None)
                continue
            if load.is_surge and before is not None and size.wanted <= before.replicas:
                # It keeps its reason, in the numbers of the load that the others are sized for.
                wanted, by_surge = before.replicas, before.reason.code is ReasonCode.TRAFFIC_SURGE
            else:
                by_surge = load.is_surge
                wanted = self._bounded(pool, size, spare[pool.name].wanted, step_max, now, is_surge=by_surge)
            numbers = load.outlook.numbers | {
                "busy": size.busy,
                "wanted": float(size.needed),
                "allowed": float(wanted),
            }
            code = ReasonCode.TRAFFIC_SURGE if by_surge else ReasonCode.THROUGHPUT_TARGET
            self.sized[pool.name] = PoolSize(wanted, reason(pool, numbers, code))

    def _bounded(self, pool: Pool, size: Size, spare: int, step_max: int, now: int, *, is_surge: bool) -> int:
        """Return the count for a pool: with headroom if it shrinks, and within the step of a forecast."""
        current = pool.effective_target(now)
        wanted = max(size.wanted, min(current, spare))
        if is_surge:  # traffic of a few seconds may be untypical: it only adds workers
            return max(wanted, current)
        since = self.forecast_targets.get(pool.name, current)
        allowed = bounded(since, wanted, pool.knobs.replicas_min, step_max)
        # Workers that a surge has added since are no part of the step: they stay while the forecast wants them too.
        return sorted((allowed, current, wanted))[1]
