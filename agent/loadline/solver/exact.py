"""Who gets what of limited supplies, exactly: as many models as can be by priority, for the least cost.

First as many of the first priority are served as can be, then of the second and so on, and of all ways to do that the
cheapest is taken: one choice for all priorities, for what serves the first for the least may leave the second too
little. Each model is served by one of its candidates. Those of ``greedy`` come first; then supplies get prices, by what
a little more of them would save, and the cheapest cover at these prices is another candidate. After a few rounds there
are none to find (column generation, Dantzig and Wolfe 1960).

A model that cannot be served gets its part of the leftovers by the same code as with ``greedy``. Where those of a
priority are shared before the next one is served, they may take what was chosen for that, which is chosen anew. So an
answer can turn out worse than that of ``greedy``, which is then the answer.
"""

import time
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Final

import numpy as np

from loadline.core.planning.allocation.contenders import (
    Bundle,
    Contender,
    RemainingSupply,
    contenders_of,
    priced,
    supply_of,
)
from loadline.core.planning.allocation.leftovers import share_out
from loadline.core.planning.allocation.regret import Chosen, Counts, allocation, grant, groups_of, serve
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.solver.beam_search import beam_search
from loadline.solver.candidate_table import CandidateTable, Values
from loadline.solver.mixes import minimal_mixes
from loadline.solver.ranking import rank_allocation

_ROUNDS: Final = 2
"""Of prices and new candidates: of 100 wants with five pools, the first finds 50, the second 20, a third 5."""
_DEARER: Final = 8.0
"""How much more a model of the next higher priority is worth while prices are looked for."""
_DEARER_MAX: Final = 6
"""So many times: beyond that, costs would be lost in the rounding."""
_NEAR: Final = (0.003, 0.01)
"""Share of the cost that an answer may be above the bound: before a search, and after it, which is a tenth of the work
of choosing some wants anew."""
_TIE: Final = 0.05
"""All costs together where models are counted, so that of as many the cheapest come first."""
_NEAR_MISSED: Final = (0.9, 0.9)
"""How near a count must be to the bound: one more model would be 1 - ``_TIE`` nearer at least, so this proves it."""
_FREE: Final = 24
"""Wants that are chosen anew: they have some 170 candidates, and take 100 ms."""
_MIXES: Final = 2_048
"""Of all wants together, where each mix counts: so many take 0.3 s at worst. Five workers of four pools have 56."""
_LEVELS: Final = 1e6
"""Numbers of served models of several priorities are one number up to this, and are maximised together."""


def solve(problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
    """Allocate in so many seconds; None if there was no time for more than ``greedy``."""
    deadline_s = time.monotonic() + time_limit_s
    supply = supply_of(problem)
    contenders = contenders_of(problem, supply)
    policy, delayed = problem.policy, problem.delayed_best_effort
    quick = allocation(contenders, grant(contenders, RemainingSupply(dict(supply.left)), policy, delayed=delayed))
    if policy == "weighted" or all(one.candidates[0].counts == quick.counts[one.want.name] for one in contenders):
        return quick
    if time.monotonic() >= deadline_s:
        return None
    found = allocation(contenders, _granted(contenders, supply, problem, deadline_s))
    return min(quick, found, key=lambda one: rank_allocation(problem, one))


def _granted(
    contenders: Sequence[Contender], supply: RemainingSupply, problem: AllocationProblem, deadline_s: float
) -> Counts:
    """Who is served is chosen for all priorities at once, and again for the next ones when leftovers were shared."""
    counts: Counts = {}
    chosen: Chosen | None = None
    groups = groups_of(contenders, problem.policy, delayed=problem.delayed_best_effort)
    for at, group in enumerate(groups):
        if chosen is None:
            to_come = [one for each in groups[at:] for one in each]
            chosen, _ = serve(to_come, RemainingSupply(dict(supply.left)))
            if any(chosen.get(one.want.name) is not one.candidates[0] for one in to_come):
                chosen = _improved(to_come, supply, chosen, problem.switching_cost_hours, deadline_s)
        for name in (one.want.name for one in group if one.want.name in chosen):
            supply.take(chosen[name].takes)
            counts[name] = chosen[name].counts
        unserved = [one for one in _last_first(group) if one.want.name not in chosen]
        leftovers = share_out(unserved, supply, problem.policy)
        if leftovers:
            counts |= leftovers
            chosen = None
    return counts


def _last_first(group: Sequence[Contender]) -> list[Contender]:
    """In the order in which greedy gives up on them: by priority, those with the dearest last choice first."""
    return sorted(group, key=lambda one: (one.want.priority, -one.candidates[-1].value, one.want.name))


def _improved(
    group: Sequence[Contender], supply: RemainingSupply, chosen: Chosen, hours: float, deadline_s: float
) -> Chosen:
    """A choice that serves as many or more, for as little or less."""
    group = sorted(group, key=lambda one: one.want.name)
    candidates = _candidates(group, supply, chosen, hours, deadline_s)
    table = CandidateTable(candidates, supply.left)
    owners = [group[want].want.name for want in table.wants]
    taken: Values = np.array([chosen.get(name) is one for name, one in zip(owners, table.choices, strict=True)], float)
    small = _TIE / max(1e-9, sum(max(one.value for one in own) for own in candidates))
    for weights in _levels(group):
        served = weights[table.wants]
        if served @ taken < weights.sum():
            costs = small * table.values - served
            taken = _less(table, costs, taken, _NEAR_MISSED, deadline_s)
        table.limit_missed(weights, float(weights.sum() - served @ taken))
    spent = float(table.values @ taken)
    taken = _less(table, table.values, taken, [share * spent for share in _NEAR], deadline_s)
    return {owners[at]: table.choices[at] for at in np.flatnonzero(taken)}


def _less(table: CandidateTable, costs: Values, taken: Values, nears: Sequence[float], deadline_s: float) -> Values:
    """What costs less; or what is taken already, if that is near enough or nothing is found in time."""
    near, good = nears
    relaxed = table.relaxed(costs, deadline_s - time.monotonic())
    if relaxed is None or relaxed.bound + near >= costs @ taken:
        return taken
    other = beam_search(table, relaxed, float(costs @ taken))
    taken = taken if other is None else other
    if relaxed.bound + good >= costs @ taken:
        return taken
    other = table.chosen(costs, relaxed, _FREE, good, deadline_s - time.monotonic())
    return other if other is not None and costs @ other < costs @ taken else taken


def _candidates(
    group: Sequence[Contender], supply: RemainingSupply, chosen: Chosen, hours: float, deadline_s: float
) -> list[list[Bundle]]:
    """Those there are, and those that are best at the prices of what is short."""
    found = [{_key(choice): choice for choice in one.candidates} for one in group]
    most = _MIXES // len(group)
    for one, own in zip(group, found, strict=True):
        # Greedy may have mixed one anew. Of few wants each is chosen anew here, so that every mix counts.
        more = [chosen[one.want.name]] if one.want.name in chosen else []
        for choice in more + (minimal_mixes(one.want, supply, hours, most) if len(group) <= _FREE else []):
            own.setdefault(_key(choice), choice)
    priorities = sorted({one.want.priority for one in group}, reverse=True)
    worth = np.array([_DEARER ** min(priorities.index(one.want.priority), _DEARER_MAX) for one in group])
    for _ in range(_ROUNDS):
        table = CandidateTable([list(own.values()) for own in found], supply.left)
        missed = _DEARER * (1.0 + float(table.values.max())) * worth[table.wants]
        relaxed = table.relaxed(table.values - missed, deadline_s - time.monotonic())
        if relaxed is None or not relaxed.prices.any():
            break
        prices = dict(zip(supply.left, relaxed.prices.tolist(), strict=True))
        for one, own in zip(group, found, strict=True):
            choice = priced(one.want, supply, hours, prices)
            own.setdefault(_key(choice), choice)
    return [list(own.values()) for own in found]


def _key(choice: Bundle) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(choice.counts.items()))


def _levels(group: Sequence[Contender]) -> list[Values]:
    """What to maximise in turn: weights by want, of which one of a higher priority is more than all lower ones."""
    sizes = Counter(one.want.priority for one in group)
    batches: list[list[int]] = []
    span = inf
    for priority in sorted(sizes):
        span *= sizes[priority] + 1
        if span > _LEVELS:
            batches.append([])
            span = sizes[priority] + 1
        batches[-1].append(priority)
    levels: list[Values] = []
    for batch in batches:
        weights, weight = dict.fromkeys(sizes, 0), 1
        for priority in reversed(batch):
            weights[priority] = weight
            weight *= sizes[priority] + 1
        levels.append(np.array([weights[one.want.priority] for one in group], dtype=np.float64))
    return levels
