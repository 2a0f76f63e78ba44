"""Covers, greedy allocation and its policies, and validation of problems."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import msgspec
import pytest

from loadline.core.planning.allocation import cover, greedy
from loadline.core.planning.allocation.covers import cached_counts
from loadline.core.planning.allocation.weighted import WeightedClaim, fair_shares
from loadline.core.vocabulary.allocations import (
    AllocationProblem,
    ModelRequest,
    PoolOption,
    RoleRequest,
    SaturationPolicy,
)


def option(pool: str, serves: float = 1.0, cost: float = 1.0, gpus: int = 1, **more: Any) -> PoolOption:
    return PoolOption(pool, serves, cost, {more.pop("type", "h100"): gpus}, **more)


def part(demand: float, *options: PoolOption, role: Any = "aggregated") -> RoleRequest:
    return RoleRequest(role, demand, options)


def want(name: str, *parts: RoleRequest, priority: int = 1) -> ModelRequest:
    return ModelRequest(name, priority, parts)


def plain(name: str, workers: float, priority: int = 1, **more: Any) -> ModelRequest:
    return want(name, part(workers, option(name, **more)), priority=priority)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: option("p", serves=0.0), "option 'p': capacity is 0.0; leave out a pool that serves nothing"),
        (lambda: option("p", serves=nan), "option 'p': capacity is nan"),
        (lambda: option("p", cost=-1.0), "option 'p': cost_per_hour is -1.0; it must be a finite number, at least 0"),
        (lambda: option("p", cost=inf), "option 'p': cost_per_hour is inf"),
        (lambda: option("p", gpus=-2), "option 'p': supplies: h100 is -2"),
        (lambda: option("p", current=-1), "option 'p': current is -1"),
        (
            lambda: option("p", replicas_min=3, replicas_max=2),
            r"option 'p': replicas_max is 2; it must be from replicas_min \(3\)",
        ),
        (lambda: part(nan, option("p")), "role 'aggregated': demand is nan"),
        (lambda: part(1.0, option("p"), option("p")), "role 'aggregated': 'p' is named twice; give each its own name"),
        (lambda: want("m", priority=0), "model 'm': priority is 0; 1 is the first"),
        (lambda: want("m", part(1.0, option("p")), part(1.0, option("p"))), "model 'm': 'p' is named twice"),
        (lambda: AllocationProblem((want("m"), want("m")), {}), "problem: 'm' is named twice"),
        (lambda: AllocationProblem((), {"h100": -1}), "limits: h100 is -1"),
        (lambda: AllocationProblem((), {}, switching_cost_hours=nan), "problem: switching_cost_hours is nan"),
    ],
)
def test_an_invalid_problem_is_refused_with_its_place(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_invalid_problem_is_refused_when_decoded() -> None:
    with pytest.raises(msgspec.ValidationError, match="option 'p': capacity is -1"):
        msgspec.json.decode(b'{"pool": "p", "capacity": -1, "cost_per_hour": 1}', type=PoolOption)


def test_pools_are_mixed_if_that_is_cheaper() -> None:
    large, small = option("large", serves=4.0, cost=4.0), option("small", serves=1.0, cost=1.2)
    assert cover(part(9.0, large, small)) == {"large": 2, "small": 1}
    assert cover(part(11.5, large, small)) == {"large": 3, "small": 0}


def test_one_expensive_worker_may_be_cheaper_than_two_cheap_ones() -> None:
    assert cover(part(1.5, option("small"), option("large", serves=1.5, cost=1.6))) == {"large": 1, "small": 0}


def test_current_workers_are_kept_unless_savings_exceed_the_switching_cost() -> None:
    def pools(cost: float) -> RoleRequest:
        return part(4.0, option("new", cost=cost), option("old", current=4))

    assert cover(pools(0.9), 0.1) == {"new": 0, "old": 4}  # 0.9 + 0.09, and 0.1 for the worker that stops
    assert cover(pools(0.8), 0.1) == {"new": 4, "old": 0}
    assert cover(pools(0.99), 0.0) == {"new": 4, "old": 0}


def test_ties_are_broken_by_fewer_changes_then_by_name() -> None:
    assert cover(part(2.0, option("b"), option("a"))) == {"a": 2, "b": 0}
    assert cover(part(2.0, option("b", current=1), option("a"))) == {"a": 1, "b": 1}


def test_a_cached_cover_belongs_to_the_requested_pools() -> None:
    cached_counts.cache_clear()
    first, other = (part(2.0, option(f"{one}-a"), option(f"{one}-b", current=1)) for one in ("first", "other"))
    found = cover(first)
    assert found == {"first-a": 1, "first-b": 1}
    found["first-a"] = 9
    assert cover(first) == {"first-a": 1, "first-b": 1}
    assert cover(other) == {"other-a": 1, "other-b": 1}
    assert cached_counts.cache_info().hits == 2
    assert cover(first, 0.1) == {"first-a": 1, "first-b": 1}
    assert cover(part(2.0, *first.options[:1])) == {"first-a": 2}
    assert cached_counts.cache_info().hits == 2


def test_a_cover_respects_bounds_and_may_not_exist() -> None:
    cheap, expensive = option("cheap", replicas_max=2), option("dear", cost=5.0, replicas_min=1)
    assert cover(part(4.0, cheap, expensive)) == {"cheap": 2, "dear": 2}
    assert cover(part(0.0, cheap, expensive)) == {"cheap": 0, "dear": 1}
    assert cover(part(3.0, cheap)) is None


def test_rounding_errors_add_no_worker() -> None:
    assert cover(part(0.1 + 0.2, option("p", serves=0.1))) == {"p": 3}


def test_prices_of_supplies_favour_pools_that_take_less() -> None:
    pools = part(4.0, option("a", cost=1.0, gpus=2), option("b", cost=1.5, type="l40s"))
    assert cover(pools) == {"a": 4, "b": 0}
    assert cover(pools, prices={"h100": 1.0}) == {"a": 0, "b": 4}


def test_the_model_with_the_highest_regret_is_served_first() -> None:
    def either(name: str, other: float) -> ModelRequest:
        return want(name, part(2.0, option(f"{name}-h", cost=10.0), option(f"{name}-l", cost=other, type="l40s")))

    found = greedy(AllocationProblem((either("m1", 12.0), either("m2", 30.0)), {"h100": 2, "l40s": 4}))
    assert found.counts == {"m1": {"m1-h": 0, "m1-l": 2}, "m2": {"m2-h": 2, "m2-l": 0}}
    assert not found.unserved


def test_a_higher_priority_is_served_first_at_any_cost() -> None:
    found = greedy(AllocationProblem((plain("cheap", 3, 2), plain("dear", 3, 1, cost=9.0)), {"h100": 4}))
    assert found.counts == {"cheap": {"cheap": 0}, "dear": {"dear": 3}}
    assert found.unserved == {"cheap": 1.0}


def test_an_unlisted_supply_is_unlimited() -> None:
    assert greedy(AllocationProblem((plain("m", 9),), {"l40s": 1})).counts == {"m": {"m": 9}}


def test_a_worker_may_take_several_supplies() -> None:
    both = PoolOption("p", 1.0, 1.0, {"h100": 2, "team/h100": 2})
    problem = AllocationProblem((want("m", part(3.0, both)),), {"h100": 100, "team/h100": 5}, "round_robin")
    assert greedy(problem).counts == {"m": {"p": 2}}


def test_minimum_replicas_are_granted_without_supply() -> None:
    found = greedy(AllocationProblem((plain("m", 3, replicas_min=2), plain("n", 1)), {"h100": 1}, "round_robin"))
    assert found.counts == {"m": {"m": 2}, "n": {"n": 0}}
    assert found.unserved == {"m": pytest.approx(1 / 3), "n": 1.0}


def test_an_unreachable_demand_gets_maximum_replicas() -> None:
    found = greedy(AllocationProblem((plain("m", 10, replicas_max=8),), {"h100": 8}))
    assert found.counts == {"m": {"m": 8}}
    assert found.unserved == {"m": pytest.approx(0.2)}


def test_remaining_supplies_are_mixed_if_no_pool_alone_suffices() -> None:
    two = want("m", part(4.0, option("a"), option("b", cost=1.1, type="l40s")))
    assert greedy(AllocationProblem((two,), {"h100": 3, "l40s": 1})).counts == {"m": {"a": 3, "b": 1}}


@pytest.mark.parametrize(
    ("policy", "delayed", "counts"),
    [
        ("none", False, {"a": 0, "b": 0, "c": 3}),
        ("priority_exhaustive", False, {"a": 0, "b": 8, "c": 0}),
        ("priority_round_robin", False, {"a": 4, "b": 4, "c": 0}),
        ("round_robin", False, {"a": 4, "b": 4, "c": 0}),
        ("priority_exhaustive", True, {"a": 0, "b": 5, "c": 3}),
        ("priority_round_robin", True, {"a": 2, "b": 3, "c": 3}),
        ("weighted", False, {"a": 4, "b": 4, "c": 0}),
    ],
)
def test_policies_distribute_supplies_that_serve_no_model_in_full(
    policy: SaturationPolicy,
    delayed: bool,  # noqa: FBT001 - a case
    counts: dict[str, int],
) -> None:
    wants = (plain("a", 9), plain("b", 10), plain("c", 3, 50))
    found = greedy(AllocationProblem(wants, {"h100": 8}, policy, delayed))
    assert {name: one[name] for name, one in found.counts.items()} == counts


def test_round_robin_ignores_priorities_and_priority_round_robin_does_not() -> None:
    wants = (plain("high", 9, 1), plain("low", 9, 2))
    for policy, high in (("round_robin", 4), ("priority_round_robin", 8)):
        found = greedy(AllocationProblem(wants, {"h100": 8}, policy, delayed_best_effort=True))  # type: ignore[arg-type]
        assert found.counts["high"] == {"high": high}


def test_roles_grow_together() -> None:
    roles = part(4.0, option("p"), role="prefill"), part(8.0, option("d", gpus=2), role="decode")
    for gpus, prefill, decode in ((2, 0, 0), (3, 1, 1), (5, 1, 2), (10, 2, 4), (11, 2, 4)):
        found = greedy(AllocationProblem((want("m", *roles),), {"h100": gpus}, "priority_exhaustive"))
        assert found.counts == {"m": {"p": prefill, "d": decode}}, gpus


def test_a_role_that_cannot_grow_stops_the_others() -> None:
    roles = part(4.0, option("p", type="l40s"), role="prefill"), part(4.0, option("d"), role="decode")
    found = greedy(AllocationProblem((want("m", *roles),), {"h100": 9, "l40s": 2}, "round_robin"))
    assert found.counts == {"m": {"p": 2, "d": 3}}  # the third decode worker came before the third of prefill


def test_fair_shares_fill_up_to_caps_and_round_by_remainder() -> None:
    assert fair_shares([WeightedClaim(1.0, 0, 8), WeightedClaim(3.0, 0, 8)], 8) == [2, 6]
    assert fair_shares([WeightedClaim(8.0, 0, 8), WeightedClaim(12.0, 0, 4)], 8) == [4, 4]
    assert fair_shares([WeightedClaim(1.0, 0, 7), WeightedClaim(1.0, 0, 7)], 7) == [4, 3]
    assert fair_shares([WeightedClaim(0.0, 1, 5), WeightedClaim(8.0, 0, 8)], 6) == [1, 5]
    assert fair_shares([WeightedClaim(1.0, 4, 9), WeightedClaim(1.0, 4, 9)], 6) == [4, 4]
    assert fair_shares([WeightedClaim(1.0, 0, 2), WeightedClaim(1.0, 0, 2)], 9) == [2, 2]


def test_part_of_a_mix_is_granted_when_one_type_is_exhausted() -> None:
    mix = part(4.0, option("a", replicas_max=2), option("b", cost=1.1, type="l40s", replicas_max=2))
    for h100, counts in ((0, {"a": 0, "b": 2}), (1, {"a": 1, "b": 2})):
        found = greedy(AllocationProblem((want("m", mix),), {"h100": h100, "l40s": 9}, "round_robin"))
        assert found.counts == {"m": counts}


def test_by_weight_priorities_divide_the_demand_and_no_gpu_stays_unused() -> None:
    found = greedy(AllocationProblem((plain("a", 8, 3), plain("b", 8, 1)), {"h100": 8}, "weighted"))
    assert found.counts == {"a": {"a": 2}, "b": {"b": 6}}
    wide = plain("a", 2, gpus=4), plain("b", 6)  # shares of 4.6 and 3.4: what is left of a's serves b
    assert greedy(AllocationProblem(wide, {"h100": 8}, "weighted")).counts == {"a": {"a": 1}, "b": {"b": 4}}


def test_by_weight_a_model_short_of_one_type_takes_another() -> None:
    def either(name: str) -> ModelRequest:
        return want(name, part(4.0, option(f"{name}-h"), option(f"{name}-l", cost=1.5, type="l40s")))

    found = greedy(AllocationProblem((either("a"), either("b")), {"h100": 4, "l40s": 9}, "weighted"))
    assert not found.unserved
    assert found.counts == {"a": {"a-h": 2, "a-l": 2}, "b": {"b-h": 2, "b-l": 2}}
