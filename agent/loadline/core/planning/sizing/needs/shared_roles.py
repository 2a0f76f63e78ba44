"""Pools of one role, such as different accelerators, sized together: each serves what its engines can.

The role grows in the pools of the lowest cost per capacity, and shrinks in the most expensive ones.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import NO_MEAN, RunningMean, TrafficTotals
from loadline.core.planning.recommendation import PoolRecommendation
from loadline.core.planning.sizing.evidence.request_shares import (
    PoolTraffic,
    ReportedLatencies,
    RequestShares,
    shared_roles,
)
from loadline.core.planning.sizing.headroom import Candidate, grow_beyond_maximum, shrink
from loadline.core.planning.sizing.need import ROUNDING
from loadline.core.planning.sizing.needs.pool_needs import LIGHT, UNPROVEN_BY_ONE, PoolLoad, PoolNeeds
from loadline.core.vocabulary.reasons import Reason, ReasonCode, RoleDemand

_UNTRIED: Final = 1_000.0
"""Factor on the cost of a pool whose workers were never seen: it grows where no other pool can."""

_CAPABLE: Final = 0.1
"""Part of the rate of the best pool below which a pool cannot meet the objectives."""


class EmptyPool(Struct, frozen=True):
    """A pool without workers that report."""

    pool: Pool
    serves: float
    """Requests/s that its workers have served within the objectives, or serve by their profile; 0 if unknown."""


class SharedNeeds(Struct, frozen=True):
    """Needs of the pools of a role together."""

    needs: list[PoolNeeds]
    """Needs of the pools with workers."""
    empty: dict[str, PoolRecommendation]
    """Recommendations for empty pools that grow."""
    demand: RoleDemand


def pool_traffic(
    model: Model, interval: TrafficTotals, shares: RequestShares, reported: Mapping[str, ReportedLatencies]
) -> dict[str, PoolTraffic]:
    """Return the traffic of each pool, with latencies of its own where several pools have a role.

    Frontends report means over all pools of a role, which may be those of none of them. The reports of the workers
    tell how they differ, but not what requests wait for, such as prompts between two iterations.
    """
    found = dict.fromkeys(model.pools, PoolTraffic(interval))
    for pools in shared_roles(model):
        itls = {pool.name: reported[pool.name].itl_ms for pool in pools}
        ttfts = {pool.name: reported[pool.name].ttft_ms for pool in pools}
        for pool in pools:
            own = _part(interval.itl_ms, itls, pool.name), _part(interval.ttft_ms, ttfts, pool.name)
            totals = replace(interval, itl_ms=own[0], ttft_ms=own[1])
            found[pool.name] = PoolTraffic(totals, shares.of(model, pool))
    return found


def _part(role: RunningMean, reported: Mapping[str, RunningMean], name: str) -> RunningMean:
    """Return the mean of a pool: that of its role, in proportion to what the workers of the pools report."""
    total = sum(one.thousandths for one in reported.values())
    own, count = reported[name].value, sum(one.count for one in reported.values())
    if own is None or not total or role.value is None:
        return role
    return NO_MEAN.plus(role.value * own * 1_000.0 * count / total, role.count)


def share_needs(
    loads: Sequence[PoolLoad], needs: Sequence[PoolNeeds], empty: Sequence[EmptyPool], errors: Mapping[str, float]
) -> SharedNeeds | None:
    """Divide what the pools of a role need together; None if it is not known what any of their workers serves.

    Args:
        loads: Pools of the role whose workers report, each with its share of the arrivals.
        needs: Needs of each of them.
        empty: Pools of the role without workers that report.
        errors: Relative standard deviations of the shares of the arrivals, by pool.
    """
    known = [load.serves for load in loads if load.serves]
    if not known:
        return None
    serves = _as_routed(loads, errors, min(known), max(known))
    capacities = serves | {one.pool.name: one.serves or min(known) for one in empty}
    now, ratio = loads[0].now, loads[0].shrink_ratio
    pools = {load.pool.name: load.pool for load in loads} | {one.pool.name: one.pool for one in empty}
    supply = {name: pool.scaling_base(now) for name, pool in pools.items()}
    expected = sum(supply[name] * rate for name, rate in capacities.items())
    growing, lasting = sum(load.growing_per_s for load in loads), sum(load.lasting_per_s for load in loads)
    slack = ROUNDING * min(known)
    missing = 0.0 if loads[0].by_chance(expected + slack, growing, lasting) else growing - expected
    required = max(missing, _needed_otherwise(loads, needs, serves) - expected)
    held = max(lasting, sum(need.lasting * serves[load.pool.name] for load, need in zip(loads, needs, strict=True)))
    if required > slack:
        able = {name for name, pool in pools.items() if not pool.overdue_workers(now)} or pools.keys()
        untried = {one.pool.name for one in empty if not one.serves}
        candidates = [
            _candidate(pools[name], capacities[name], now, is_untried=name in untried) for name in pools if name in able
        ]
        counts = supply | grow_beyond_maximum(required - slack, candidates)
    elif any(pool.expected_workers(now) > pool.ready for pool in pools.values()):
        counts = supply  # a pool shrinks when the workers that it relies on are ready
    else:
        safe = {load.pool.name: _safe_per_s(load, serves[load.pool.name]) for load in loads}
        candidates = [_candidate(load.pool, safe[load.pool.name], now) for load in loads]
        left = sum(supply[name] * rate for name, rate in safe.items())
        counts = supply | shrink(max(0.0, left - held * ratio + slack), candidates)
        counts |= {name: pools[name].minimum for name, rate in serves.items() if not rate}
    role = _Role(counts, supply, capacities, growing, lasting, held, expected)
    demand = expected + required if required > slack else min(held * ratio, expected)
    able_to_serve = {name: rate for name, rate in capacities.items() if rate}
    return SharedNeeds(
        [role.part(load, need) for load, need in zip(loads, needs, strict=True)],
        {one.pool.name: role.growth(one) for one in empty if counts[one.pool.name] > one.pool.effective_target(now)},
        RoleDemand(loads[0].pool.knobs.role, demand, able_to_serve),
    )


class _Role(Struct, frozen=True):
    """Counts of the pools of a role, and what led to them."""

    counts: Mapping[str, int]
    supply: Mapping[str, int]
    """Ready and pending workers."""
    capacities: Mapping[str, float]
    """Requests/s that a worker serves."""
    growing_per_s: float
    lasting_per_s: float
    held_per_s: float
    """Requests/s that are needed for longer than a backlog lasts."""
    expected_per_s: float
    """Requests/s that the supply serves."""

    def part(self, load: PoolLoad, need: PoolNeeds) -> PoolNeeds:
        """Return the needs of a pool, whose workers have a part of the load in proportion to what they serve."""
        name, current = load.pool.name, load.pool.effective_target(load.now)
        wanted = current - self.supply[name] + self.counts[name]
        grows = any(self.counts[one] > count for one, count in self.supply.items())
        count = self.supply[name] if grows else self.counts[name]
        left = sum((self.supply[one] if grows else self.counts[one]) * rate for one, rate in self.capacities.items())
        serves = self.capacities[name]
        reason = Reason(ReasonCode.SHARED_DEMAND, name, self._numbers(serves))
        own = need.reason.code is not ReasonCode.DEMAND_TARGET and need.wanted > current
        return replace(
            need,
            wanted=wanted,
            keep=current if grows else wanted,
            lasting=self.held_per_s / left * count if left and serves else 0.0,
            requests_per_s=self.lasting_per_s / left * count * serves if left else 0.0,
            reason=need.reason if own else reason,
        )

    def growth(self, one: EmptyPool) -> PoolRecommendation:
        """Return the recommendation for an empty pool that grows."""
        name, count = one.pool.name, self.counts[one.pool.name]
        numbers = self._numbers(self.capacities[name]) | {"wanted": float(count)}
        return PoolRecommendation(count, (Reason(ReasonCode.SHARED_DEMAND, name, numbers),))

    def _numbers(self, serves: float) -> dict[str, float]:
        return {"requests_per_s": self.growing_per_s, "capacity": self.expected_per_s, "serves": serves}


def _as_routed(
    loads: Sequence[PoolLoad], errors: Mapping[str, float], rate_min: float, rate_max: float
) -> dict[str, float]:
    """Return the requests/s that a worker of each pool serves with the present division of the requests.

    A router may send as many requests to a slow worker as to a fast one. The pool that reaches its limit first then
    bounds what the others serve, as far as the division is more than chance. A pool that serves next to nothing within
    the objectives counts for nothing.

    Args:
        loads: Pools of a role.
        errors: Relative standard deviations of their shares.
        rate_min: Rate of a pool for which none is known.
        rate_max: Highest known rate.
    """
    serves = {load.pool.name: load.serves or rate_min for load in loads}
    serves = {name: rate if rate >= _CAPABLE * rate_max else 0.0 for name, rate in serves.items()}
    each = {load.pool.name: load.growing_per_s / load.pool.ready for load in loads}
    per_s_min = {name: rate * (1.0 - errors[name]) for name, rate in each.items()}
    bound = min((serves[name] / rate for name, rate in per_s_min.items() if rate and serves[name]), default=0.0)
    per_s_max = {name: rate * (1.0 + errors[name]) * bound for name, rate in each.items()}
    return {name: min(rate, per_s_max[name]) if per_s_max[name] else rate for name, rate in serves.items()}


def _safe_per_s(load: PoolLoad, serves: float) -> float:
    """Return the requests/s that a worker may have after a shrink of its role, which leaves it those of others too."""
    proven = load.proven_per_s
    if not proven:
        return serves
    promised = load.promised_per_s
    return max(LIGHT * min(serves, promised), min(serves, UNPROVEN_BY_ONE * proven, promised))


def _needed_otherwise(loads: Sequence[PoolLoad], needs: Sequence[PoolNeeds], serves: Mapping[str, float]) -> float:
    """Return the capacity that saturation, occupancy and backlogs of the pools need; 0 if they need none.

    It may come from any pool, so what is pending anywhere counts: only ready workers are known to be too few.
    """
    more = sum(
        max(0, need.wanted - load.pool.ready) * serves[load.pool.name]
        for load, need in zip(loads, needs, strict=True)
        if need.reason.code is not ReasonCode.DEMAND_TARGET
    )
    ready = sum(load.pool.ready * serves[load.pool.name] for load in loads)
    return ready + more if more else 0.0


def _candidate(pool: Pool, capacity: float, now: int, *, is_untried: bool = False) -> Candidate:
    current, knobs = pool.scaling_base(now), pool.knobs
    cost, replicas_max = pool.cost_per_hour * (_UNTRIED if is_untried else 1.0), max(knobs.replicas_max, current)
    return Candidate(pool.name, cost, capacity, current, pool.minimum, replicas_max)
