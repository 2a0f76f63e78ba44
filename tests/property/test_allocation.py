"""Properties of every allocation: limits, bounds, independence of input order, and distance to the optimum."""

import random
from collections.abc import Callable
from itertools import product
from math import ceil
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from loadline.core.planning.allocation import cover, greedy
from loadline.core.planning.allocation.contenders import served
from loadline.core.vocabulary.allocations import (
    Allocation,
    AllocationProblem,
    ModelRequest,
    PoolOption,
    RoleRequest,
    SaturationPolicy,
)
from loadline.solver import solve
from tests.support.contended_systems import is_contended, optimum, rank, single_type_system, system

T = TypeVar("T")
POLICIES: list[SaturationPolicy] = ["none", "priority_exhaustive", "priority_round_robin", "round_robin", "weighted"]
AMOUNTS = st.sampled_from([1.0, 2.0, 3.0]) | st.floats(0.5, 3.0)


@st.composite
def options(draw: st.DrawFn, pool: str) -> PoolOption:
    least = draw(st.integers(0, 1))
    takes = draw(st.dictionaries(st.sampled_from(["h100", "l40s", "team"]), st.integers(0, 3), max_size=2))
    cost = draw(AMOUNTS | st.just(0.0))
    most = draw(st.integers(least, 8))
    return PoolOption(pool, draw(AMOUNTS), cost, takes, least, most, draw(st.integers(0, 4)))


@st.composite
def parts(draw: st.DrawFn, name: str = "m") -> RoleRequest:
    pools = [f"{name}-{number}" for number in range(draw(st.integers(1, 3)))]
    # Half of the smallest subnormal is 0, so demands are drawn in quarters of a worker, as in practice.
    demand = draw(st.floats(0.0, 12.0, allow_subnormal=False) | st.integers(0, 12).map(float))
    return RoleRequest(
        draw(st.sampled_from(["prefill", "decode"])), demand, tuple(draw(options(pool)) for pool in pools)
    )


@st.composite
def problems(draw: st.DrawFn) -> AllocationProblem:
    wants = []
    for number in range(draw(st.integers(0, 4))):
        roles = tuple(draw(parts(f"{number}-{role}")) for role in range(draw(st.integers(1, 2))))
        wants.append(ModelRequest(f"model-{number}", draw(st.integers(1, 3)), roles))
    limits = draw(st.dictionaries(st.sampled_from(["h100", "l40s", "team"]), st.integers(0, 20)))
    return AllocationProblem(tuple(wants), limits, draw(st.sampled_from(POLICIES)), draw(st.booleans()))


def cost(part: RoleRequest, counts: dict[str, int], hours: float) -> float:
    return sum(
        one.cost_per_hour * (counts[one.pool] + hours * abs(counts[one.pool] - one.current)) for one in part.options
    )


def cheapest(part: RoleRequest, hours: float) -> float | None:
    """Return the minimum cost by exhaustive search."""
    ranges = [
        range(
            one.replicas_min,
            max(one.replicas_min, min(one.replicas_max, max(one.current, ceil(part.demand / one.capacity)))) + 1,
        )
        for one in part.options
    ]
    every = (dict(zip((one.pool for one in part.options), counts, strict=True)) for counts in product(*ranges))
    return min((cost(part, counts, hours) for counts in every if served(part, counts) == 1.0), default=None)


@given(parts(), st.sampled_from([0.0, 0.1, 0.5, 1.5]))
@settings(max_examples=400, deadline=None)
def test_a_cover_is_the_cheapest(part: RoleRequest, hours: float) -> None:
    found, ideal = cover(part, hours), cheapest(part, hours)
    if found is None or ideal is None:
        assert found is None
        assert ideal is None
        return
    assert all(one.replicas_min <= found[one.pool] <= one.replicas_max for one in part.options)
    assert served(part, found) == 1.0
    assert cost(part, found, hours) <= ideal * 1.00001 + 0.0001


def assert_valid(problem: AllocationProblem, allocation: Allocation) -> None:
    """Assert that bounds and limits hold and that unserved models are reported."""
    left = dict(problem.limits)
    least = dict.fromkeys(problem.limits, 0)
    assert list(allocation.counts) == sorted(want.name for want in problem.models)
    for want in problem.models:
        counts = allocation.counts[want.name]
        for option in (option for part in want.roles for option in part.options):
            assert option.replicas_min <= counts[option.pool] <= option.replicas_max
            for name in option.supplies.keys() & left.keys():
                left[name] -= option.supplies[name] * counts[option.pool]
                least[name] += option.supplies[name] * option.replicas_min
        worst = min(served(part, counts) for part in want.roles)
        assert allocation.unserved.get(want.name, 0.0) == 1.0 - worst
    assert all(units >= 0 or least[name] > problem.limits[name] for name, units in left.items())


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_limits_and_bounds_hold_and_the_order_does_not_matter(problem: AllocationProblem, draw: random.Random) -> None:
    found = greedy(problem)
    assert_valid(problem, found)
    assert greedy(shuffled(problem, draw)) == found


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_limits_and_bounds_hold_for_the_exact_solver(problem: AllocationProblem, draw: random.Random) -> None:
    found = solve(problem, 60.0)
    assert found is not None
    assert_valid(problem, found)
    assert solve(shuffled(problem, draw), 60.0) == found


def shuffled(problem: AllocationProblem, draw: random.Random) -> AllocationProblem:
    """Return the same problem in another order."""

    def mixed(many: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(draw.sample(many, len(many)))

    wants = (
        replace(want, roles=mixed(tuple(replace(part, options=mixed(part.options)) for part in want.roles)))
        for want in problem.models
    )
    limits = dict(mixed(tuple(problem.limits.items())))
    return replace(problem, models=mixed(tuple(wants)), limits=limits)


@pytest.mark.parametrize(
    ("of", "first", "least"), [*((system, first, 25) for first in range(0, 330, 30)), (single_type_system, 0, 5)]
)
def test_the_exact_solver_is_within_a_hundredth_of_the_best(
    of: Callable[[int], AllocationProblem], first: int, least: int
) -> None:
    number = 0
    for seed in range(first, first + 30):
        problem = of(seed)
        ideal = optimum(problem)
        number += is_contended(problem, ideal)
        found = solve(problem, 60.0)
        assert found is not None
        unserved, spent = rank(problem, found)
        assert unserved == ideal[0], seed
        assert spent <= ideal[1] * 1.01, seed
        assert (unserved, spent) <= rank(problem, greedy(problem)), seed
    assert number >= least


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_exact_solver_is_never_worse_than_greedy(policy: SaturationPolicy, *, delayed: bool) -> None:
    more = 0
    for seed in range(60):
        problem = replace(system(seed), policy=policy, delayed_best_effort=delayed)
        found, ideal, quick = solve(problem, 60.0), optimum(problem), rank(problem, greedy(problem))
        assert found is not None
        unserved, spent = rank(problem, found)
        assert (unserved, spent) <= quick, seed
        more += unserved < quick[0]
        if policy == "weighted":
            continue  # no model is served first
        single = next((number for number, count in enumerate(ideal[0], 1) if count), len(ideal[0]))
        assert unserved[:single] == ideal[0][:single], seed
        if single == len(ideal[0]) or delayed or policy == "none":  # leftovers take nothing from the next priority
            assert unserved == ideal[0], seed
            assert spent <= ideal[1] * 1.01, seed
    assert more >= (0 if policy == "weighted" else 5)
