"""The exact solver: cases that greedy misses, and time limits; tests/property measures its gap."""

import math
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from loadline.core.planning.allocation import greedy
from loadline.core.planning.allocation.contenders import RemainingSupply
from loadline.core.vocabulary.allocations import AllocationProblem, ModelRequest, PoolOption, RoleRequest
from loadline.solver import solve
from loadline.solver.mixes import minimal_mixes


def option(pool: str, cost: float = 1.0, type_: str = "h100", **more: Any) -> PoolOption:
    return PoolOption(pool, 1.0, cost, {type_: 1}, **more)


def want(name: str, demand: float, *options: PoolOption, priority: int = 1) -> ModelRequest:
    return ModelRequest(name, priority, (RoleRequest("aggregated", demand, options),))


def counts(problem: AllocationProblem) -> dict[str, int]:
    found = solve(problem, 60.0)
    assert found is not None
    return {pool: count for one in found.counts.values() for pool, count in one.items() if count}


# The first model has the higher regret, so greedy gives it the H100s; then too few GPUs remain for the second.
STRANDED = AllocationProblem(
    (
        want("m1", 4, option("h1"), PoolOption("l1", 2.0, 3.0, {"l40s": 1})),
        want("m2", 4, option("h2"), option("l2", 1.1, "l40s")),
    ),
    {"h100": 4, "l40s": 3},
)


def test_more_models_are_served_than_by_greedy() -> None:
    assert greedy(STRANDED).unserved == {"m2": 1.0}
    assert counts(STRANDED) == {"h1": 2, "l1": 1, "h2": 2, "l2": 2}


def test_the_cheapest_solution_is_taken() -> None:
    first = want("m1", 2, option("h1", 1.0), option("l1", 2.0, "l40s"))
    second = want("m2", 3, option("h2", 1.0), option("l2", 1.9, "l40s"))
    problem = AllocationProblem((first, second), {"h100": 3, "l40s": 9})
    assert counts(problem) == {"h1": 2, "h2": 1, "l2": 2}
    assert not greedy(problem).unserved


def test_a_model_of_a_higher_priority_outweighs_all_lower_ones() -> None:
    lower = tuple(want(f"low-{number}", 1, option(f"l-{number}"), priority=2) for number in range(5))
    problem = AllocationProblem((want("high", 5, option("h", cost=100.0)), *lower), {"h100": 5})
    assert counts(problem) == {"h": 5}


@pytest.mark.parametrize("priorities", [30, 100])
def test_many_priorities_are_lexicographic(priorities: int) -> None:
    wants = tuple(want(f"m{one}", 1, option(f"p{one}", cost=one), priority=one) for one in range(1, priorities + 1))
    assert counts(AllocationProblem(wants, {"h100": 20})) == {f"p{one}": 1 for one in range(1, 21)}


def test_leftovers_follow_the_same_policies() -> None:
    wants = want("a", 9, option("a")), want("b", 10, option("b")), want("c", 3, option("c"), priority=50)
    for delayed, expected in ((False, {"a": 4, "b": 4}), (True, {"a": 2, "b": 3, "c": 3})):
        problem = AllocationProblem(wants, {"h100": 8}, "priority_round_robin", delayed)
        assert counts(problem) == expected
        assert solve(problem, 60.0) == greedy(problem)


def test_leftovers_go_to_unserved_models() -> None:
    wants = want("big", 4, option("big")), want("s1", 2, option("s1")), want("s2", 2, option("s2"))
    problem = AllocationProblem(wants, {"h100": 5}, "round_robin")
    assert list(greedy(problem).unserved) == ["s1", "s2"]
    assert counts(problem) == {"big": 1, "s1": 2, "s2": 2}


# The cheapest for the first priority are three H100s and the L40S, which leaves the fourth H100 for "p2".
HUNGRY = AllocationProblem(
    (
        want("dear", 3, option("d", 3.0)),
        want("cheap", 4, option("ch", 2.0), option("cl", 1.0, "l40s")),
        want("p2", 1, option("ph"), option("pl", 1.5, "l40s"), priority=2),
    ),
    {"h100": 4, "l40s": 1},
    "priority_exhaustive",
    delayed_best_effort=True,
)


def test_the_cheapest_choice_for_one_priority_leaves_supply_for_the_next() -> None:
    first = want("m1", 2, option("h1"), option("l1", 1.1, "l40s"))
    for policy in ("none", "priority_exhaustive", "priority_round_robin", "round_robin"):
        problem = AllocationProblem((first, want("m2", 2, option("h2"), priority=2)), {"h100": 2, "l40s": 2}, policy)
        assert greedy(problem).unserved
        assert counts(problem) == {"l1": 2, "h2": 2}


def test_greedy_may_be_better_when_leftovers_take_supply_of_the_next_priority() -> None:
    assert counts(HUNGRY) == {"ch": 3, "cl": 1, "ph": 1}
    problem = replace(HUNGRY, delayed_best_effort=False)  # "dear" would take the fourth H100
    assert solve(problem, 60.0) == greedy(problem)
    assert counts(problem) == {"d": 3, "cl": 1, "ph": 1}


def test_an_answer_is_never_worse_than_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadline.solver.exact._granted", lambda *_: {})
    assert solve(STRANDED, 60.0) == greedy(STRANDED)


def test_the_weighted_policy_needs_no_solver() -> None:
    problem = replace(STRANDED, policy="weighted")
    assert solve(problem, 60.0) == greedy(problem)


def test_new_mixes_of_greedy_are_candidates() -> None:
    problem = AllocationProblem((want("m", 4, option("a"), option("b", 1.1, "l40s")),), {"h100": 3, "l40s": 1})
    assert counts(problem) == {"a": 3, "b": 1}
    many = tuple(want(f"m{one}", 4, option(f"a{one}"), option(f"b{one}", 1.1, "l40s")) for one in range(30))
    assert len(counts(AllocationProblem(many, {"h100": 90, "l40s": 30}))) >= 30


def test_without_time_only_unconstrained_problems_have_an_answer() -> None:
    assert solve(STRANDED, 0.0) is None
    plenty = replace(STRANDED, limits={"h100": 9, "l40s": 9})
    assert solve(plenty, 0.0) == greedy(plenty)


def test_at_the_time_limit_the_best_solution_so_far_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.0])  # the deadline is set first, and is not over at the first check
    monkeypatch.setattr("loadline.solver.exact.time.monotonic", lambda: next(times, 100.0))
    assert solve(STRANDED, 1.0) == greedy(STRANDED)


def test_every_mix_is_minimal() -> None:
    pools = option("a", replicas_min=1), PoolOption("b", 3.0, 3.0, {"h100": 2})
    found = minimal_mixes(want("m", 5, *pools), RemainingSupply({"h100": 9}), 0.0, limit=3)
    assert [choice.counts for choice in found] == [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 5, "b": 0}]
    assert [choice.takes for choice in found] == [{"h100": 4}, {"h100": 3}, {"h100": 4}]


def test_no_mixes_are_returned_above_the_limit() -> None:
    pools = option("a"), option("b"), option("c")
    assert len(minimal_mixes(want("m", 2, *pools), RemainingSupply({}), 0.0, limit=6)) == 6
    assert not minimal_mixes(want("m", 2, *pools), RemainingSupply({}), 0.0, limit=5)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the divisions of a demand by the capacity of a pool."""
    counter: Counter[str] = Counter()

    def counted(number: float) -> int:
        counter["ceil"] += 1
        return math.ceil(number)

    monkeypatch.setattr("loadline.solver.mixes.ceil", counted)
    return counter


def test_mixes_of_small_workers_that_a_large_one_ends_are_not_looked_through(looks: Counter[str]) -> None:
    """One worker of the last pool serves all of the demand, so a mix of it and others is not minimal."""
    small = [PoolOption(f"a{number}", 0.1, 1.0, replicas_max=200) for number in range(3)]
    model = want("m", 20, *small, PoolOption("b", 20.0, 1.0, replicas_max=1))
    assert not minimal_mixes(model, RemainingSupply({}), 0.0, limit=2_048), "the small ones alone have 20,301"
    assert looks["ceil"] < 10_000


def test_no_mix_is_looked_for_that_all_workers_cannot_be(looks: Counter[str]) -> None:
    """Five pools of 32 workers have 39 million mixes, none of which serves more than 160."""
    pools = [option(f"p{number}", replicas_max=32) for number in range(5)]
    assert not minimal_mixes(want("m", 161, *pools), RemainingSupply({"h100": 40}), 0.0, limit=512)
    assert looks["ceil"] < 10
    (mix,) = minimal_mixes(want("m", 160, *pools), RemainingSupply({"h100": 200}), 0.0, limit=512)
    assert set(mix.counts.values()) == {32}
