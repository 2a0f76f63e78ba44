"""Guardrails of the GPU budget of one model."""

import pytest

from loadline.core.fleet.pool import PoolKnobs
from tests.support.guardrail_harness import A, B, GuardrailHarness


@pytest.mark.parametrize(
    ("budget", "wanted", "expected"),
    [
        (14, {"a": 6}, {"a": 6, "b": 4}),  # 6 + 4 * 2
        (13, {"a": 6}, {"a": 5, "b": 4}),
        (14, {"b": 5}, {"a": 4, "b": 5}),
        (13, {"b": 5}, {"a": 4, "b": 4}),  # half a worker is rounded to none
        (13, {"a": 5, "b": 5}, {"a": 5, "b": 4}),  # the growth of the pool with the widest workers is limited first
        (12, {"a": 5, "b": 5}, {"a": 4, "b": 4}),
        (16, {"a": 8, "b": 6}, {"a": 8, "b": 4}),  # the narrowest workers first, so that most workers fit
        (14, {"a": 4, "b": 5}, {"a": 4, "b": 5}),
    ],
)
def test_growth_stops_at_the_budget(budget: int, wanted: dict[str, int], expected: dict[str, int]) -> None:
    targets, limits = GuardrailHarness(A, B).budget(budget).outcome(**wanted)
    assert targets == expected
    assert {limit.partition(":")[2] for limit in limits} <= {"gpu_budget_max", "gpu_budget_guard_hold"}


def test_growth_waits_for_the_gpus_of_draining_workers() -> None:
    harness = GuardrailHarness(A, B).budget(14)
    harness.drain("b", 1)
    assert harness.outcome(a=6) == ({"a": 4, "b": 4}, ["a:gpu_budget_max"])


def test_growth_waits_for_gpus_that_the_same_decision_frees() -> None:
    assert GuardrailHarness(A, B).budget(12).outcome(a=6, b=3) == ({"a": 4, "b": 3}, ["a:gpu_budget_max"])


def test_draining_gpus_above_the_budget_shrink_no_pool() -> None:
    harness = GuardrailHarness(A, B).budget(12)
    harness.drain("b", 2)
    assert harness.outcome() == ({"a": 4, "b": 4}, [])


def test_a_budget_below_the_current_gpus_shrinks_all_pools_in_proportion() -> None:
    reconciled = ["b:gpu_budget_reconcile", "a:gpu_budget_reconcile"]
    assert GuardrailHarness(A, B).budget(9).outcome() == ({"a": 3, "b": 3}, reconciled)
    assert GuardrailHarness(A, B).budget(4).outcome() == ({"a": 1, "b": 1}, reconciled)
    assert GuardrailHarness(A, B).budget(9).outcome(a=8, b=1) == ({"a": 3, "b": 3}, reconciled), "for any proposal"


def test_the_minimum_budget_grows_all_pools_in_proportion() -> None:
    reconciled = ["b:gpu_budget_reconcile", "a:gpu_budget_reconcile"]
    assert GuardrailHarness(A, B).budget(None, gpus_min=15).outcome() == ({"a": 5, "b": 5}, reconciled)
    assert GuardrailHarness(A, B).budget(None, gpus_min=23).outcome() == ({"a": 8, "b": 8}, reconciled)
    assert GuardrailHarness(A, B).budget(None, gpus_min=12).outcome(a=2) == (
        {"a": 4, "b": 4},
        ["a:gpu_budget_guard_hold"],
    )
    assert GuardrailHarness(A).budget(None, gpus_min=3).outcome(a=1) == ({"a": 3}, ["a:gpu_budget_min"])


def test_a_held_pool_is_not_grown_to_reach_the_minimum_budget() -> None:
    harness = GuardrailHarness(A, PoolKnobs("c", "prefill"), current=6).budget(16, gpus_min=11)
    assert harness.outcome(a=4) == ({"a": 4, "c": 6}, []), (
        "with a maximum budget the minimum may be missed by one worker"
    )
    assert harness.outcome(a=3) == ({"a": 6, "c": 6}, ["a:gpu_budget_guard_hold"])


def test_opposite_steps_apply_together_or_not_at_all() -> None:
    harness = GuardrailHarness(A, B).budget(12, gpus_min=12)
    assert harness.outcome(a=3, b=5) == ({"a": 4, "b": 4}, ["b:gpu_budget_guard_hold", "a:gpu_budget_guard_hold"])
    assert harness.outcome(a=2, b=5)[0] == {"a": 2, "b": 4}, (
        "the shrink comes first; the growth follows when GPUs are free"
    )


def test_a_shrink_that_feeds_a_growth_respects_the_minimum_budget() -> None:
    c = PoolKnobs("c", "prefill")
    assert GuardrailHarness(A, c).budget(8, gpus_min=8).outcome(a=1, c=7)[0] == {"a": 3, "c": 4}


def test_the_minimum_budget_never_exceeds_the_maximum() -> None:
    assert GuardrailHarness(B).budget(9, gpus_min=9).outcome() == ({"b": 4}, []), "a fifth worker would make ten"


def test_minimum_replicas_do_not_wait_for_draining_workers() -> None:
    harness = GuardrailHarness(A, current=0).budget(2)
    harness.drain("a", 2)
    assert harness.outcome() == ({"a": 1}, ["a:replicas_min"]), "replica bounds always apply"


def test_the_minimum_budget_waits_for_the_gpus_of_draining_workers() -> None:
    harness = GuardrailHarness(A, B).budget(13, gpus_min=13)
    harness.drain("a", 1)
    assert harness.outcome() == ({"a": 4, "b": 4}, [])
