"""The cheapest workers that serve one part, of one pool or of several: exact, with nothing short.

A worker that stands is cheaper than one that starts, for its going costs too. So each option is up to two runs of
workers, those that stand and those that would start, each with one price. Runs are taken from the one that serves most
for its price; what was taken so far is a step: what is still to serve, and the cost. A step that serves less and costs
more than another is left out, and so is one whose rest cannot be cheaper than what was found, even if workers came in
fractions. This is the list form of dynamic programming for knapsacks (Pisinger, Kellerer, Pferschy 2004, section 3.4).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, inf
from operator import itemgetter
from typing import Final, NamedTuple

from loadline.core.vocabulary.allocations import RoleRequest

NOTHING: Final[Mapping[str, float]] = {}
SLACK: Final = 1e-9
"""Share of a demand that may be missing: 3 * 0.1 is not quite 0.3."""
_STEPS_MAX: Final = 64
"""Steps that are kept for each run, those with the lowest bounds."""
_COUNTS_MAX: Final = 32
"""Counts of a run that are tried for each step, from the highest. More of either matter to fleets of hundreds alone,
which come within half a percent of the best."""
_KNOWN: Final = 2_048
"""Parts of which the cover is remembered, the last ones: prefill and decode of 1,000 models, some 3 MB. Few demands
change from one allocation to the next, and to look one up takes a tenth of the time to make it."""


class _Pool(NamedTuple):
    """A pool as the cover algorithm sees it."""

    serves: float
    cost: float
    price: float
    """Cost of a worker, with the prices of the supplies it takes."""
    least: int
    most: int
    current: int


class _Run(NamedTuple):
    """A run of workers of one pool with equal cost."""

    pool: int
    price: float
    serves: float
    room: int


_Step = tuple[float, float, int, "_Step | None"]
"""Step of the search: demand left, cost so far, workers of the last run, and the step before."""


def cover(
    part: RoleRequest, switching_cost_hours: float = 0.0, prices: Mapping[str, float] = NOTHING
) -> dict[str, int] | None:
    """Workers by pool that serve the demand of a part for the least cost; None if even all of them cannot.

    ``prices`` is what a unit of a supply costs on top, in the unit of the costs. Equal costs: fewer changes, then pools
    first that are named first.
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
    # Prices are never the same twice.
    counts = (_counts if prices else remembered)(part.demand, pools, switching_cost_hours)
    return None if counts is None else {option.pool: count for option, count in zip(options, counts, strict=True)}


def _counts(demand: float, pools: tuple[_Pool, ...], hours: float) -> tuple[int, ...] | None:
    """Return the cheapest workers of each pool that serve a demand; None if all of them cannot."""
    counts, runs = _runs(pools, hours)
    slack = demand * SLACK
    rest = demand - sum(count * pool.serves for count, pool in zip(counts, pools, strict=True))
    if rest > slack:
        runs = _useful(runs, rest)
        last = _cheapest(runs, rest, slack)
        if last is None:
            return None
        for run, count in zip(runs, _taken(last), strict=False):
            counts[run.pool] += count
    return tuple(counts)


remembered = lru_cache(_KNOWN)(_counts)
"""The same, looked up where it was asked before."""


def _runs(pools: Sequence[_Pool], hours: float) -> tuple[list[int], list[_Run]]:
    """Return the workers taken in any case, and further runs ordered by service per price.

    A change more costs a millionth of the dearest worker, and equal runs come in the order of names: that breaks ties.
    """
    counts: list[int] = []
    runs: list[_Run] = []
    tie = max((pool.price for pool in pools), default=0.0) * 1e-6 or 1e-6
    for number, pool in enumerate(pools):
        switching = hours * pool.cost + tie
        in_place = min(max(pool.current, pool.least), pool.most)
        taken = in_place if pool.price <= switching else pool.least
        counts.append(taken)
        if in_place > taken:
            runs.append(_Run(number, pool.price - switching, pool.serves, in_place - taken))
        if pool.most > in_place:
            runs.append(_Run(number, pool.price + switching, pool.serves, pool.most - in_place))
    return counts, sorted(runs, key=lambda run: (run.price / run.serves, run.pool))


def _useful(runs: Sequence[_Run], rest: float) -> list[_Run]:
    """Drop runs that an earlier, long enough run dominates."""
    useful: list[_Run] = []
    for run in runs:
        if not any(
            other.serves >= run.serves and other.price <= run.price and other.room * other.serves >= rest + other.serves
            for other in useful
        ):
            useful.append(run)
    return useful


def _cheapest(runs: Sequence[_Run], rest: float, slack: float) -> _Step | None:
    """Return the last step of the cheapest way to serve the rest."""
    best = _filled(runs, rest, slack)
    if best is None:
        return None
    steps: list[_Step] = [(rest, 0.0, 0, None)]
    behind = sum(run.serves * run.room for run in runs) + slack  # what runs can serve from here on
    for run, after in zip(runs, (*runs[1:], None), strict=True):
        price, serves, room = run.price, run.serves, run.room
        behind -= serves * room
        rate = after.price / after.serves if after else inf
        gain = serves * rate - price  # what a worker of this run saves, at least
        found: list[_Step] = []
        for step in steps:
            left, cost = step[0], step[1]
            most = min(room, ceil((left - slack) / serves))
            fewest = max(0, most - _COUNTS_MAX, ceil((left - behind) / serves))
            if 0.0 < gain < inf:
                fewest = max(fewest, ceil((cost + left * rate - best[1]) / gain))
            for count in range(most, fewest - 1, -1):
                missing, spent = left - count * serves, cost + count * price
                if missing > slack:
                    found.append((missing, spent, count, step))
                elif spent < best[1]:
                    best = (missing, spent, count, step)
        steps = _undominated(found, rate)
    return best


def _filled(runs: Sequence[_Run], rest: float, slack: float) -> _Step | None:
    """Return a good answer to prune with: whole runs first, then one more worker."""
    best: _Step | None = None
    step: _Step = (rest, 0.0, 0, None)
    for run in runs:
        left, cost = step[0], step[1]
        count = ceil((left - slack) / run.serves)
        if count <= run.room and (best is None or cost + count * run.price < best[1]):
            best = (left - count * run.serves, cost + count * run.price, count, step)
        count = min(run.room, count - 1)
        step = (left - count * run.serves, cost + count * run.price, count, step)
    return best


def _undominated(steps: list[_Step], rate: float) -> list[_Step]:
    """Return the steps that no other step dominates."""
    steps.sort(key=itemgetter(0, 1))
    kept: list[_Step] = []
    cheapest = inf
    for step in steps:
        if step[1] < cheapest:
            cheapest = step[1]
            kept.append(step)
    if len(kept) > _STEPS_MAX:
        kept = sorted(kept, key=lambda step: step[1] + step[0] * rate)[:_STEPS_MAX]
    return kept


def _taken(last: _Step) -> list[int]:
    counts: list[int] = []
    step: _Step | None = last
    while step is not None and step[3] is not None:
        counts.append(step[2])
        step = step[3]
    return counts[::-1]
