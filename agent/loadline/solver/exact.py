"""Exact allocation of limited supplies: serve as many models as possible by priority, at the lowest cost.

The number of served models is maximised for the first priority, then for the second and so on, and the cheapest such
solution is used. All priorities are solved together, since the cheapest solution for the first may leave too little for
the second. Each model is served by one of its candidates: those of ``greedy``, and by column generation (Dantzig and
Wolfe 1960) the cheapest cover at the shadow prices of the supplies, until a few rounds find no new ones.

Models that cannot be served share the leftovers by the code of ``greedy``. If the leftovers of a priority are shared
before the next priority is served, they may take supplies chosen for the next, which is then solved again. So an answer
can be worse than that of ``greedy``; the better of the two is returned.
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
from loadline.core.planning.allocation.regret import Chosen, Counts, allocation_of, grant_workers, groups_of, serve
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.solver.beam_search import beam_search
from loadline.solver.candidate_table import CandidateTable, Values
from loadline.solver.mixes import minimal_mixes
from loadline.solver.ranking import rank_allocation

_ROUNDS: Final = 2
"""Rounds of column generation: for 100 models of five pools, they find 50, 20 and (a third) 5 candidates."""
_PRIORITY_FACTOR: Final = 8.0
"""Factor of a model's worth per priority level during column generation."""
_PRIORITY_EXPONENT_MAX: Final = 6
"""Largest exponent of the factor; beyond it, costs would be lost in rounding."""
_GAPS: Final = (0.003, 0.01)
"""Accepted relative gap to the bound: before the beam search, and after it, to avoid the ten times slower integer
program."""
_COST_WEIGHT: Final = 0.05
"""Weight of all costs when models are counted, to prefer the cheapest of equal counts."""
_COUNT_GAPS: Final = (0.9, 0.9)
"""Accepted gap of a count to the bound: one model changes it by at least 1 - ``_COST_WEIGHT``, so it is optimal."""
_MODELS_MAX: Final = 24
"""Number of models in the integer program: they have some 170 candidates and take 100 ms."""
_MIXES: Final = 2_048
"""Limit on enumerated mixes of all models, which take 0.3 s at worst; five workers of four pools have 56."""
_LEVEL_SPAN_MAX: Final = 1e6
"""Limit up to which the counts of several priorities are combined into one objective."""


def solve(problem: AllocationProblem, time_limit_s: float) -> Allocation | None:
    """Allocate within the time limit; return None if there was no time to improve on ``greedy``."""
    deadline_s = time.monotonic() + time_limit_s
    supply = supply_of(problem)
    contenders = contenders_of(problem, supply)
    policy, delayed = problem.policy, problem.delayed_best_effort
    quick = allocation_of(
        contenders, grant_workers(contenders, RemainingSupply(dict(supply.left)), policy, delayed=delayed)
    )
    if policy == "weighted" or all(one.candidates[0].counts == quick.counts[one.request.name] for one in contenders):
        return quick
    if time.monotonic() >= deadline_s:
        return None
    found = allocation_of(contenders, _granted(contenders, supply, problem, deadline_s))
    return min(quick, found, key=lambda one: rank_allocation(problem, one))


def _granted(
    contenders: Sequence[Contender], supply: RemainingSupply, problem: AllocationProblem, deadline_s: float
) -> Counts:
    """Choose the served models of all priorities at once, and again for later ones after leftovers were shared."""
    counts: Counts = {}
    chosen: Chosen | None = None
    groups = groups_of(contenders, problem.policy, delayed=problem.delayed_best_effort)
    for at, group in enumerate(groups):
        if chosen is None:
            remaining = [one for each in groups[at:] for one in each]
            chosen, _ = serve(remaining, RemainingSupply(dict(supply.left)))
            if any(chosen.get(one.request.name) is not one.candidates[0] for one in remaining):
                chosen = _improved(remaining, supply, chosen, problem.switching_cost_hours, deadline_s)
        for name in (one.request.name for one in group if one.request.name in chosen):
            supply.take(chosen[name].takes)
            counts[name] = chosen[name].counts
        unserved = [one for one in _last_first(group) if one.request.name not in chosen]
        leftovers = share_out(unserved, supply, problem.policy)
        if leftovers:
            counts |= leftovers
            chosen = None
    return counts


def _last_first(group: Sequence[Contender]) -> list[Contender]:
    """Sort models in the order in which greedy drops them: by priority, then by the cost of their last candidate."""
    return sorted(group, key=lambda one: (one.request.priority, -one.candidates[-1].value, one.request.name))


def _improved(
    group: Sequence[Contender], supply: RemainingSupply, chosen: Chosen, hours: float, deadline_s: float
) -> Chosen:
    """Find a solution that serves at least as many models at no higher cost."""
    group = sorted(group, key=lambda one: one.request.name)
    candidates = _candidates(group, supply, chosen, hours, deadline_s)
    table = CandidateTable(candidates, supply.left)
    owners = [group[place].request.name for place in table.models]
    selected: Values = np.array(
        [chosen.get(name) is one for name, one in zip(owners, table.candidates, strict=True)], float
    )
    cost_weight = _COST_WEIGHT / max(1e-9, sum(max(one.value for one in own) for own in candidates))
    for weights in _levels(group):
        served = weights[table.models]
        if served @ selected < weights.sum():
            costs = cost_weight * table.values - served
            selected = _cheaper(table, costs, selected, _COUNT_GAPS, deadline_s)
        table.limit_missed(weights, float(weights.sum() - served @ selected))
    cost = float(table.values @ selected)
    selected = _cheaper(table, table.values, selected, [gap * cost for gap in _GAPS], deadline_s)
    return {owners[at]: table.candidates[at] for at in np.flatnonzero(selected)}


def _cheaper(
    table: CandidateTable, costs: Values, selected: Values, gaps: Sequence[float], deadline_s: float
) -> Values:
    """Find a cheaper solution; return the present one if it is close to the bound or nothing is found in time."""
    gap_before, gap_after = gaps
    relaxed = table.relaxed(costs, deadline_s - time.monotonic())
    if relaxed is None or relaxed.bound + gap_before >= costs @ selected:
        return selected
    other = beam_search(table, relaxed, float(costs @ selected))
    selected = selected if other is None else other
    if relaxed.bound + gap_after >= costs @ selected:
        return selected
    other = table.integral(costs, relaxed, _MODELS_MAX, gap_after, deadline_s - time.monotonic())
    return other if other is not None and costs @ other < costs @ selected else selected


def _candidates(
    group: Sequence[Contender], supply: RemainingSupply, chosen: Chosen, hours: float, deadline_s: float
) -> list[list[Bundle]]:
    """Extend the candidates by those that are cheapest at the shadow prices of short supplies."""
    found = [{_key(candidate): candidate for candidate in one.candidates} for one in group]
    limit = _MIXES // len(group)
    for one, own in zip(group, found, strict=True):
        # Greedy may have found a new mix. Few models all enter the integer program, so enumerate their mixes.
        more = [chosen[one.request.name]] if one.request.name in chosen else []
        for candidate in more + (minimal_mixes(one.request, supply, hours, limit) if len(group) <= _MODELS_MAX else []):
            own.setdefault(_key(candidate), candidate)
    priorities = sorted({one.request.priority for one in group}, reverse=True)
    worth = np.array(
        [_PRIORITY_FACTOR ** min(priorities.index(one.request.priority), _PRIORITY_EXPONENT_MAX) for one in group]
    )
    for _ in range(_ROUNDS):
        table = CandidateTable([list(own.values()) for own in found], supply.left)
        missed = _PRIORITY_FACTOR * (1.0 + float(table.values.max())) * worth[table.models]
        relaxed = table.relaxed(table.values - missed, deadline_s - time.monotonic())
        if relaxed is None or not relaxed.prices.any():
            break
        prices = dict(zip(supply.left, relaxed.prices.tolist(), strict=True))
        for one, own in zip(group, found, strict=True):
            candidate = priced(one.request, supply, hours, prices)
            own.setdefault(_key(candidate), candidate)
    return [list(own.values()) for own in found]


def _key(candidate: Bundle) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(candidate.counts.items()))


def _levels(group: Sequence[Contender]) -> list[Values]:
    """Return the objectives to maximise in turn: weights by model, where a priority outweighs all lower ones."""
    sizes = Counter(one.request.priority for one in group)
    batches: list[list[int]] = []
    span = inf
    for priority in sorted(sizes):
        span *= sizes[priority] + 1
        if span > _LEVEL_SPAN_MAX:
            batches.append([])
            span = sizes[priority] + 1
        batches[-1].append(priority)
    levels: list[Values] = []
    for batch in batches:
        weights, weight = dict.fromkeys(sizes, 0), 1
        for priority in reversed(batch):
            weights[priority] = weight
            weight *= sizes[priority] + 1
        levels.append(np.array([weights[one.request.priority] for one in group], dtype=np.float64))
    return levels
