"""To zero and from zero, whatever the planner: a model may sleep while nobody asks anything of it.

A model that had nothing to do for ``scale_to_zero_after_ms`` has all its pools emptied. Nothing to do is: no request
came, none waits at a frontend and none is under way, by frontends that all report, none of whose reports was refused,
and no worker says that it has work. What has completed says nothing: the first request of a long prompt completes late.
The first request that is reported wakes one pool of each role, though its report be refused; how many workers more is
for the planner to say.

Until then a role keeps its last worker, though its planner wants none: what is empty answers nobody.
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
    """When a model last had something to do, and since when that is known without a gap."""

    busy_at_ms: int = -1
    """-1: never since this agent listens."""
    known_since_ms: int = -1
    """Since when all frontends report; -1: one of them does not."""
    arrivals: int = 0
    """In all, when it was last looked at."""

    def observe(self, model: Model, now: int) -> None:
        """Look at ``now`` (ms) whether there is something to do."""
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
        """When the model falls asleep if nothing happens; None: never, or that is not known."""
        if not after_ms or self.known_since_ms < 0:
            return None
        return max(self.busy_at_ms, self.known_since_ms) + after_ms

    def bounds(self, model: Model, proposed: dict[str, int], after_ms: int, now: int) -> dict[str, Bound]:
        """What the pools are kept to.

        Args:
            model: What is believed.
            proposed: Counts by pool; one that is left out is proposed as it stands.
            after_ms: How long a model has nothing to do before it falls asleep; 0: it never does.
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
            if any(pool.minimum or _serves(pool, proposed.get(pool.name), now) for pool in pools):
                continue
            standing = [pool for pool in pools if _serves(pool, None, now)]
            if standing:
                last = min(standing, key=lambda pool: (pool.ready == 0, pool.cost_per_hour, pool.name))
                kept[last.name] = Bound(ReasonCode.LAST_WORKER, least=1)
            elif awake and (first := _first([pool for pool in pools if not pool.missing_workers(now)])):
                under_way = float(model.traffic.outstanding(now))
                kept[first.name] = Bound(ReasonCode.FIRST_WORKER, least=1, numbers={"under_way": under_way})
        return kept


def _pools(model: Model) -> Collection[Pool]:
    return model.pools.values()


def _serves(pool: Pool, count: int | None, now: int) -> bool:
    """Whether a pool of so many workers serves, None: of as many as stand. Those that did not come in time do not."""
    return (pool.effective_target(now) if count is None else count) > pool.missing_workers(now)


def _first(pools: Sequence[Pool]) -> Pool | None:
    """Which of these pools to wake: the one that comes soonest, by those that came, and of such the cheapest."""
    times = {pool.name: pool.start_up_ms(pool.knobs.start_deadline_ms) for pool in pools}
    soon = [pool for pool in pools if times[pool.name] <= _AS_FAST * min(times.values())]
    return min(soon, key=lambda pool: (pool.cost_per_hour, pool.name), default=None)
