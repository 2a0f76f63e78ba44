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

_AS_FAST: Final = 1.2
"""A pool that takes this much longer to come than the fastest is as fast, and may be the cheaper one."""


class IdleTracker(Struct):
    """Time of the last work of a model, and start of the gapless observation of it."""

    busy_at_ms: int = -1
    """Unix ms of the last work; -1: none since this agent started."""
    known_since_ms: int = -1
    """Unix ms since which all frontends report; -1: one of them does not."""
    arrivals: int = 0
    """Total arrivals at the last observation."""

    def observe(self, model: Model, now: int) -> None:
        """Record whether there is work at ``now`` (ms)."""
        traffic = model.traffic
        came, self.arrivals = traffic.totals.arrivals != self.arrivals, traffic.totals.arrivals
        asked = came or traffic.outstanding(now) or traffic.refused_requests(now)
        if asked or any(pool.load.waiting or pool.load.running for pool in _pools(model)):
            self.busy_at_ms = now
        if not traffic.is_complete(now):
            self.known_since_ms = -1
        elif self.known_since_ms < 0:
            self.known_since_ms = now

    def idle_at_ms(self, after_ms: int) -> int | None:
        """Return when (Unix ms) the model scales to zero if nothing happens; None: never, or unknown."""
        if not after_ms or self.known_since_ms < 0:
            return None
        return max(self.busy_at_ms, self.known_since_ms) + after_ms

    def bounds(self, model: Model, proposed: dict[str, int], after_ms: int, now: int) -> dict[str, Bound]:
        """Return the bounds of the pools by idleness.

        Args:
            model: The model as reported.
            proposed: Recommended counts by pool; a pool left out keeps its target.
            after_ms: Idle time before the model scales to zero; 0: never.
            now: In ms.
        """
        idle_at_ms = self.idle_at_ms(after_ms)
        if idle_at_ms is not None and now >= idle_at_ms:
            idle = Bound(ReasonCode.IDLE, most=0, numbers={"idle_ms": float(now - idle_at_ms + after_ms)})
            return dict.fromkeys(model.pools, idle)
        awake = not after_ms or (self.busy_at_ms >= 0 and now - self.busy_at_ms < after_ms)
        kept: dict[str, Bound] = {}
        for role in dict.fromkeys(pool.knobs.role for pool in _pools(model)):
            pools = [pool for pool in _pools(model) if pool.knobs.role == role]
            if any(pool.minimum or _is_serving(pool, proposed.get(pool.name), now) for pool in pools):
                continue
            serving = [pool for pool in pools if _is_serving(pool, None, now)]
            if serving:
                last = min(serving, key=lambda pool: (pool.ready == 0, pool.cost_per_hour, pool.name))
                kept[last.name] = Bound(ReasonCode.LAST_WORKER, least=1)
            elif awake and (first := _first([pool for pool in pools if not pool.overdue_workers(now)])):
                under_way = float(model.traffic.outstanding(now))
                kept[first.name] = Bound(ReasonCode.FIRST_WORKER, least=1, numbers={"under_way": under_way})
        return kept


def _pools(model: Model) -> Collection[Pool]:
    return model.pools.values()


def _is_serving(pool: Pool, count: int | None, now: int) -> bool:
    """Return True if a pool serves with ``count`` workers (None: its current target), missing workers excluded."""
    return (pool.effective_target(now) if count is None else count) > pool.overdue_workers(now)


def _first(pools: Sequence[Pool]) -> Pool | None:
    """Return the pool to scale from zero: the cheapest of those that start soonest."""
    times = {pool.name: pool.start_up_ms(pool.knobs.start_deadline_ms) for pool in pools}
    soon = [pool for pool in pools if times[pool.name] <= _AS_FAST * min(times.values())]
    return min(soon, key=lambda pool: (pool.cost_per_hour, pool.name), default=None)
