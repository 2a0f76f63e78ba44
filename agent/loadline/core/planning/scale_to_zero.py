"""Scale to zero and from zero, with any planner.

A model that was idle for ``scale_to_zero_after_ms`` is scaled to zero in all pools. Idle means: no request arrived,
none waits at a frontend and none is in progress, as reported by all frontends, with no report refused; and no worker
reports work. Completions do not count: the first request of a long prompt completes late. The first reported request
scales one pool of each role from zero, even if its report is refused; the planner adds further workers.

Until then each role keeps its last worker, even if the planner wants none: an empty role serves no request.
"""

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.guardrails.constraints import Bound
from loadline.core.vocabulary.reasons import ReasonCode

_START_UP_RATIO_MAX: Final = 1.2
"""Pools whose start-up takes up to this many times that of the fastest pool count as equally fast; cost decides."""


class IdleTracker(Struct):
    """Time of the last work of a model, and start of its complete observation."""

    busy_at_ms: int = -1
    """Unix ms of the last work; -1: none since this agent started."""
    known_since_ms: int = -1
    """Unix ms since which all frontends report; -1 while one does not."""
    arrivals: int = 0
    """Total arrivals at the last observation."""

    def observe(self, model: Model, now: int) -> None:
        """Record if the model has work at ``now`` (ms)."""
        traffic = model.traffic
        has_arrivals, self.arrivals = traffic.totals.arrivals != self.arrivals, traffic.totals.arrivals
        has_requests = has_arrivals or traffic.outstanding(now) or traffic.refused_requests(now)
        if has_requests or any(pool.load.waiting or pool.load.running for pool in _pools(model)):
            self.busy_at_ms = now
        if not traffic.is_complete(now):
            self.known_since_ms = -1
        elif self.known_since_ms < 0:
            self.known_since_ms = now

    def idle_at_ms(self, after_ms: int) -> int | None:
        """Return the time (Unix ms) of scale to zero if the model stays idle; None: never, or unknown."""
        if not after_ms or self.known_since_ms < 0:
            return None
        return max(self.busy_at_ms, self.known_since_ms) + after_ms

    def bounds(self, model: Model, proposed: dict[str, int], after_ms: int, now: int) -> dict[str, Bound]:
        """Return the bounds of pools for scale to zero and from zero.

        Args:
            model: State of the model.
            proposed: Recommended counts by pool; a pool left out keeps its current target.
            after_ms: Idle time before the model scales to zero; 0: never.
            now: Unix time in ms.
        """
        idle_at_ms = self.idle_at_ms(after_ms)
        if idle_at_ms is not None and now >= idle_at_ms:
            idle = Bound(ReasonCode.IDLE, maximum=0, numbers={"idle_ms": float(now - idle_at_ms + after_ms)})
            return dict.fromkeys(model.pools, idle)
        is_busy = not after_ms or (self.busy_at_ms >= 0 and now - self.busy_at_ms < after_ms)
        bounds: dict[str, Bound] = {}
        for role in dict.fromkeys(pool.knobs.role for pool in _pools(model)):
            pools = [pool for pool in _pools(model) if pool.knobs.role == role]
            if any(pool.minimum or _is_serving(pool, proposed.get(pool.name), now) for pool in pools):
                continue
            serving = [pool for pool in pools if _is_serving(pool, None, now)]
            if serving:
                last = min(serving, key=lambda pool: (pool.ready == 0, pool.cost_per_hour, pool.name))
                bounds[last.name] = Bound(ReasonCode.LAST_WORKER, minimum=1)
            elif is_busy and (first := _first([pool for pool in pools if not pool.overdue_workers(now)])):
                outstanding = float(model.traffic.outstanding(now))
                bounds[first.name] = Bound(ReasonCode.FIRST_WORKER, minimum=1, numbers={"under_way": outstanding})
        return bounds


def _pools(model: Model) -> Collection[Pool]:
    return model.pools.values()


def _is_serving(pool: Pool, count: int | None, now: int) -> bool:
    """Return True if a pool with ``count`` workers (None: its effective target) has any that are not overdue."""
    target = pool.effective_target(now) if count is None else min(count, pool.knobs.replicas_max)
    return target > pool.overdue_workers(now)


def _first(pools: Sequence[Pool]) -> Pool | None:
    """Return the pool to scale from zero: the cheapest of those that start fastest; None without pools."""
    start_up_ms = {pool.name: pool.start_up_ms(pool.knobs.start_deadline_ms) for pool in pools}
    longest_ms = _START_UP_RATIO_MAX * min(start_up_ms.values(), default=0)
    fastest = [pool for pool in pools if start_up_ms[pool.name] <= longest_ms]
    return min(fastest, key=lambda pool: (pool.cost_per_hour, pool.name), default=None)
