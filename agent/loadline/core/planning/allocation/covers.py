"""Cheapest counts of the pools of one role that serve its demand, without limits on GPUs.

An existing worker is cheaper than one that starts, since stopping a worker costs too. So each pool has up to two runs
of workers with equal cost: existing ones and additional ones. Runs are searched in order of service per price. A step
of the search has the demand that is left and the cost so far; it is pruned if another step has less of both, or if its
remaining demand, even at fractional workers, cannot be served more cheaply than in the best solution so far. This is
the list form of dynamic programming for knapsacks (Kellerer, Pferschy, Pisinger 2004, section 3.4). It is exact as long
as neither ``_STEPS_MAX`` nor ``_COUNTS_MAX`` applies.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, inf
from operator import itemgetter
from typing import Final, NamedTuple

from loadline.core.vocabulary.allocations import RoleRequest

_NO_PRICES: Final[Mapping[str, float]] = {}
SLACK: Final = 1e-9
"""Fraction of a demand that may be missing due to rounding: 3 * 0.1 is not 0.3."""
_STEPS_MAX: Final = 64
"""Maximum steps for each run; those with the lowest bounds are used."""
_COUNTS_MAX: Final = 32
"""Maximum counts of a run that are tried for each step, from the highest. Both limits apply to pools of hundreds of
workers only, whose cost is within half a percent of the optimum."""
_CACHE_SIZE: Final = 2_048
"""Number of cached results: prefill and decode of 1,000 models, 3 MB. Few demands change between two allocations, and a
lookup takes a tenth of the time of the computation."""


class _Pool(NamedTuple):
    """Input of the search: one pool."""

    serves: float
    cost: float
    price: float
    """Cost of a worker, plus the prices of the supplies that it takes."""
    replicas_min: int
    replicas_max: int
    current: int


class _Run(NamedTuple):
    """Workers of one pool with equal cost."""

    pool: int
    """Index of the pool."""
    price: float
    serves: float
    workers: int
    """Number of workers in the run."""


_Step = tuple[float, float, int, "_Step | None"]
"""Step of the search: demand left, cost so far, workers of its run, and the previous step."""


def cover(
    part: RoleRequest, switching_cost_hours: float = 0.0, prices: Mapping[str, float] = _NO_PRICES
) -> dict[str, int] | None:
    """Return the cheapest counts by pool that serve the demand of a role; None if the maximum counts do not.

    Among equal costs, it prefers fewer changes, then pools in order of their names.

    Args:
        part: Demand and pools of the role.
        switching_cost_hours: Cost of starting or stopping a worker, in hours of its cost.
        prices: Additional price of a GPU by supply, in the unit of the costs.
    """
    options = sorted(part.options, key=lambda option: option.pool)
    pools = tuple(
        _Pool(
            option.capacity,
            option.cost_per_hour,
            option.cost_per_hour + sum(prices.get(name, 0.0) * units for name, units in option.supplies.items()),
            option.replicas_min,
            option.replicas_max,
            option.current,
        )
        for option in options
    )
    # Prices differ in each call, so results with prices are not cached.
    counts = (_counts if prices else cached_counts)(part.demand, pools, switching_cost_hours)
    return None if counts is None else {option.pool: count for option, count in zip(options, counts, strict=True)}


def _counts(demand: float, pools: tuple[_Pool, ...], hours: float) -> tuple[int, ...] | None:
    """Return the cheapest count of each pool; None if the maximum counts do not serve the demand."""
    counts, runs = _runs(pools, hours)
    slack = demand * SLACK
    rest = demand - sum(count * pool.serves for count, pool in zip(counts, pools, strict=True))
    if rest > slack:
        runs = _useful(runs, rest)
        last = _cheapest(runs, rest, slack)
        if last is None:
            return None
        for run, count in zip(runs, _run_counts(last), strict=False):
            counts[run.pool] += count
    return tuple(counts)


cached_counts = lru_cache(_CACHE_SIZE)(_counts)
"""``_counts`` with a cache."""


def _runs(pools: Sequence[_Pool], hours: float) -> tuple[list[int], list[_Run]]:
    """Return the counts that every solution has, and the runs beyond them in order of service per price.

    Ties are broken by a price of each change, a millionth of that of the most expensive worker, then by name.
    """
    counts: list[int] = []
    runs: list[_Run] = []
    tie = max((pool.price for pool in pools), default=0.0) * 1e-6 or 1e-6
    for number, pool in enumerate(pools):
        switching = hours * pool.cost + tie
        existing = min(max(pool.current, pool.replicas_min), pool.replicas_max)
        base = existing if pool.price <= switching else pool.replicas_min
        counts.append(base)
        if existing > base:
            runs.append(_Run(number, pool.price - switching, pool.serves, existing - base))
        if pool.replicas_max > existing:
            runs.append(_Run(number, pool.price + switching, pool.serves, pool.replicas_max - existing))
    return counts, sorted(runs, key=lambda run: (run.price / run.serves, run.pool))


def _useful(runs: Sequence[_Run], rest: float) -> list[_Run]:
    """Drop runs that an earlier run with enough workers dominates."""
    useful: list[_Run] = []
    for run in runs:
        if not any(
            other.serves >= run.serves
            and other.price <= run.price
            and other.workers * other.serves >= rest + other.serves
            for other in useful
        ):
            useful.append(run)
    return useful


def _cheapest(runs: Sequence[_Run], rest: float, slack: float) -> _Step | None:
    """Return the last step of the cheapest solution for the rest of the demand; None if there is none."""
    best = _filled(runs, rest, slack)
    if best is None:
        return None
    steps: list[_Step] = [(rest, 0.0, 0, None)]
    capacity_left = sum(run.serves * run.workers for run in runs) + slack  # of the runs after the current one
    for run, after in zip(runs, (*runs[1:], None), strict=True):
        price, serves = run.price, run.serves
        capacity_left -= serves * run.workers
        rate = after.price / after.serves if after else inf
        saving = serves * rate - price  # lower bound of what a worker of this run saves
        found: list[_Step] = []
        for step in steps:
            left, cost = step[0], step[1]
            highest = min(run.workers, ceil((left - slack) / serves))
            lowest = max(0, highest - _COUNTS_MAX, ceil((left - capacity_left) / serves))
            if 0.0 < saving < inf:
                lowest = max(lowest, ceil((cost + left * rate - best[1]) / saving))
            for count in range(highest, lowest - 1, -1):
                missing, spent = left - count * serves, cost + count * price
                if missing > slack:
                    found.append((missing, spent, count, step))
                elif spent < best[1]:
                    best = (missing, spent, count, step)
        steps = _undominated(found, rate)
    return best


def _filled(runs: Sequence[_Run], rest: float, slack: float) -> _Step | None:
    """Return a first solution to prune with: whole runs, then part of one; None if the demand cannot be served."""
    best: _Step | None = None
    step: _Step = (rest, 0.0, 0, None)
    for run in runs:
        left, cost = step[0], step[1]
        count = ceil((left - slack) / run.serves)
        if count <= run.workers and (best is None or cost + count * run.price < best[1]):
            best = (left - count * run.serves, cost + count * run.price, count, step)
        count = min(run.workers, count - 1)
        step = (left - count * run.serves, cost + count * run.price, count, step)
    return best


def _undominated(steps: list[_Step], rate: float) -> list[_Step]:
    """Return the steps that no other step dominates."""
    steps.sort(key=itemgetter(0, 1))
    undominated: list[_Step] = []
    cheapest = inf
    for step in steps:
        if step[1] < cheapest:
            cheapest = step[1]
            undominated.append(step)
    if len(undominated) > _STEPS_MAX:
        undominated = sorted(undominated, key=lambda step: step[1] + step[0] * rate)[:_STEPS_MAX]
    return undominated


def _run_counts(last: _Step) -> list[int]:
    """Return the workers of each run up to a step."""
    counts: list[int] = []
    step: _Step | None = last
    while step is not None and step[3] is not None:
        counts.append(step[2])
        step = step[3]
    return counts[::-1]
