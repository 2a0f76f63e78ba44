"""The cheapest workers that serve one part, of one pool or of several: exact, with nothing short.

A worker that stands is cheaper than one that starts, for its going costs too. So each option is up to two runs of
workers, those that stand and those that would start, each with one price. Runs are taken from the one that serves most
for its price; what was taken so far is a step: what is still to serve, and the cost. A step that serves less and costs
more than another is left out, and so is one whose rest cannot be cheaper than what was found, even if workers came in
fractions. This is the list form of dynamic programming for knapsacks (Pisinger, Kellerer, Pferschy 2004, section 3.4).
"""

from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Final, NamedTuple

from loadline.core.allocations import Option, Part

NOTHING: Final[Mapping[str, float]] = {}
SLACK: Final = 1e-9
"""Share of a demand that may be missing: 3 * 0.1 is not quite 0.3."""
_STEPS_MAX: Final = 64
"""Steps that are kept for each run, those with the lowest bounds."""
_COUNTS_MAX: Final = 32
"""Counts of a run that are tried for each step, from the highest. More of either matter to fleets of hundreds alone,
which come within half a percent of the best."""


class _Run(NamedTuple):
    """Workers of an option that cost the same."""

    option: int
    price: float
    serves: float
    room: int


class _Step(NamedTuple):
    """What is still to serve and what it costs so far, by how many of the last run, and what came before."""

    rest: float
    cost: float
    workers: int
    before: "_Step | None"


def cover(
    part: Part, switching_cost_hours: float = 0.0, prices: Mapping[str, float] = NOTHING
) -> dict[str, int] | None:
    """Workers by pool that serve the demand of a part for the least cost; None if even all of them cannot.

    ``prices`` is what a unit of a supply costs on top, in the unit of the costs. Equal costs: fewer changes, then pools
    first that are named first.
    """
    options = sorted(part.options, key=lambda option: option.pool)
    costs = [
        option.cost + sum(prices.get(name, 0.0) * units for name, units in option.takes.items()) for option in options
    ]
    counts, runs = _runs(options, costs, switching_cost_hours)
    slack = part.demand * SLACK
    rest = part.demand - sum(count * option.serves for count, option in zip(counts, options, strict=True))
    if rest > slack:
        runs = _useful(runs, rest)
        last = _cheapest(runs, rest, slack)
        if last is None:
            return None
        for run, count in zip(runs, _taken(last), strict=False):
            counts[run.option] += count
    return {option.pool: count for option, count in zip(options, counts, strict=True)}


def _runs(options: Sequence[Option], costs: Sequence[float], hours: float) -> tuple[list[int], list[_Run]]:
    """What is taken anyway, and the runs beyond it, those that serve most for their price first.

    A change more costs a millionth of the dearest worker, and a later name a billionth: that breaks ties.
    """
    counts: list[int] = []
    runs: list[_Run] = []
    tie = max(costs, default=0.0) * 1e-6 or 1e-6
    for number, (option, cost) in enumerate(zip(options, costs, strict=True)):
        switching = hours * option.cost + tie
        name = tie * 1e-3 * number
        standing = min(max(option.current, option.least), option.most)
        taken = standing if cost + name <= switching else option.least
        counts.append(taken)
        if standing > taken:
            runs.append(_Run(number, cost + name - switching, option.serves, standing - taken))
        if option.most > standing:
            runs.append(_Run(number, cost + name + switching, option.serves, option.most - standing))
    return counts, sorted(runs, key=lambda run: (run.price / run.serves, run.option))


def _useful(runs: Sequence[_Run], rest: float) -> list[_Run]:
    """Without those in whose place an earlier one, which has room for all, serves as much for as little."""
    useful: list[_Run] = []
    for run in runs:
        if not any(
            other.serves >= run.serves and other.price <= run.price and other.room * other.serves >= rest + other.serves
            for other in useful
        ):
            useful.append(run)
    return useful


def _cheapest(runs: Sequence[_Run], rest: float, slack: float) -> _Step | None:
    """The last of the steps that serve the rest for the least."""
    steps, best = [_Step(rest, 0.0, 0, None)], _filled(runs, rest, slack)
    if best is None:
        return None
    behind = [0.0]  # what all later runs can serve
    for run in reversed(runs[1:]):
        behind.append(behind[-1] + run.serves * run.room)
    for number, run in enumerate(runs):
        after = runs[number + 1] if number + 1 < len(runs) else None
        rate = after.price / after.serves if after else inf
        found: list[_Step] = []
        for step in steps:
            most = min(run.room, ceil((step.rest - slack) / run.serves))
            fewest = max(most - _COUNTS_MAX, _fewest(step, run, rate, behind[-1 - number] + slack, best))
            for count in range(most, fewest - 1, -1):
                taken = _Step(step.rest - count * run.serves, step.cost + count * run.price, count, step)
                if taken.rest > slack:
                    found.append(taken)
                elif taken.cost < best.cost:
                    best = taken
        steps = _undominated(found, rate)
    return best


def _filled(runs: Sequence[_Run], rest: float, slack: float) -> _Step | None:
    """A good answer: each run as far as it goes in whole workers, and one of them for what is left then."""
    step, best = _Step(rest, 0.0, 0, None), None
    for run in runs:
        count = ceil((step.rest - slack) / run.serves)
        cost = step.cost + count * run.price
        if count <= run.room and (best is None or cost < best.cost):
            best = _Step(step.rest - count * run.serves, cost, count, step)
        count = min(run.room, count - 1)
        step = _Step(step.rest - count * run.serves, step.cost + count * run.price, count, step)
    return best


def _fewest(step: _Step, run: _Run, rate: float, behind: float, best: _Step) -> int:
    """The fewest of a run with which later ones can still serve the rest, and for less than the best."""
    fewest = ceil((step.rest - behind) / run.serves)
    gain = run.serves * rate - run.price
    if 0.0 < gain < inf:
        fewest = max(fewest, ceil((step.cost + step.rest * rate - best.cost) / gain))
    return max(0, fewest)


def _undominated(steps: list[_Step], rate: float) -> list[_Step]:
    """Those of which no other serves as much for as little."""
    steps.sort(key=lambda step: (step.rest, step.cost))
    kept: list[_Step] = []
    cheapest = inf
    for step in steps:
        if step.cost < cheapest:
            cheapest = step.cost
            kept.append(step)
    if len(kept) > _STEPS_MAX:
        kept = sorted(kept, key=lambda step: step.cost + step.rest * rate)[:_STEPS_MAX]
    return kept


def _taken(last: _Step) -> list[int]:
    counts: list[int] = []
    step: _Step | None = last
    while step is not None and step.before is not None:
        counts.append(step.workers)
        step = step.before
    return counts[::-1]
