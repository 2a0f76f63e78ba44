"""Guardrails of GPUs: the budget of one model, that of all models, and limited supplies."""

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.constraints import (
    UNBOUNDED,
    UNLIMITED_HEADROOM,
    BudgetHeadroom,
    Constraints,
    SupplyHeadroom,
)
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.planning.guardrails.proposal import Proposal
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
    assert {limit.partition(":")[2] for limit in limits} <= {"gpu_budget_max", "gpu_budget_hold"}


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
        ["a:gpu_budget_hold"],
    )
    assert GuardrailHarness(A).budget(None, gpus_min=3).outcome(a=1) == ({"a": 3}, ["a:gpu_budget_min"])


def test_a_held_pool_is_not_grown_to_reach_the_minimum_budget() -> None:
    harness = GuardrailHarness(A, PoolKnobs("c", "prefill"), current=6).budget(16, gpus_min=11)
    assert harness.outcome(a=4) == ({"a": 4, "c": 6}, []), (
        "with a maximum budget the minimum may be missed by one worker"
    )
    assert harness.outcome(a=3) == ({"a": 6, "c": 6}, ["a:gpu_budget_hold"])


def test_opposite_steps_apply_together_or_not_at_all() -> None:
    harness = GuardrailHarness(A, B).budget(12, gpus_min=12)
    assert harness.outcome(a=3, b=5) == ({"a": 4, "b": 4}, ["b:gpu_budget_hold", "a:gpu_budget_hold"])
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


# -- the budget over all models, and limited supplies ------------------------------------------------------------------


def shared(
    harness: GuardrailHarness,
    *,
    budget: BudgetHeadroom = UNBOUNDED,
    supply: SupplyHeadroom = UNLIMITED_HEADROOM,
    **wanted: int,
) -> Proposal:
    """Return the proposal for a model that shares GPUs with others."""
    limits = Constraints(harness.acting_since_ms, budget=budget, supply=supply)
    return harness.guard.apply(harness.refresh(), wanted, limits, harness.now)


def codes(proposal: Proposal) -> list[str]:
    return [f"{reason.pool}:{reason.code}" for reason in proposal.limits]


def test_without_shared_limits_a_model_wants_what_it_gets() -> None:
    assert GuardrailHarness(A, B).apply(a=5).wanted == {"a": 5, "b": 4}


@pytest.mark.parametrize(
    ("own", "budget", "band"),
    [
        (GpuBand(), BudgetHeadroom(4, 9), GpuBand(4, 9)),
        (GpuBand(6), BudgetHeadroom(4), GpuBand(6, exact=True)),
        (GpuBand(3), BudgetHeadroom(4), GpuBand(4, exact=True)),
        (GpuBand(None, 7), BudgetHeadroom(4, 9), GpuBand(4, 7)),
        (GpuBand(6, 8), BudgetHeadroom(4, 5), GpuBand(5, 5)),
        (GpuBand(2, 8), BudgetHeadroom(4), GpuBand(4, 8, exact=True)),
    ],
)
def test_two_budgets_make_the_narrower_band(own: GpuBand, budget: BudgetHeadroom, band: GpuBand) -> None:
    assert budget.within(own) == band


@pytest.mark.parametrize(
    ("wanted", "quorate", "target", "applied"),
    [
        (4, True, 2, ["a:gpu_budget_gives_way"]),
        (3, True, 2, ["a:gpu_budget_gives_way"]),
        (5, True, 5, []),  # it needs its GPUs by now
        (4, False, 4, []),
    ],
)
def test_a_pool_gives_way_to_other_models_unless_it_grows_or_is_silent(
    wanted: int, target: int, applied: list[str], *, quorate: bool
) -> None:
    proposal = shared(GuardrailHarness(A, quorate=quorate), budget=BudgetHeadroom(releases={"a": 2}), a=wanted)
    assert (proposal.targets, codes(proposal)) == ({"a": target}, applied)


@pytest.mark.parametrize(
    ("budget", "wanted", "target", "applied"),
    [
        (BudgetHeadroom(ceiling=6, free=9), 8, 6, ["a:fleet_gpu_budget_max"]),
        (BudgetHeadroom(ceiling=9, free=1), 8, 5, ["a:fleet_gpu_budget_max"]),
        (BudgetHeadroom(ceiling=9, free=9), 8, 8, []),
        (BudgetHeadroom(floor=3, free=9), 1, 3, ["a:fleet_gpu_budget_min"]),
        (BudgetHeadroom(floor=3, ceiling=9), 4, 4, []),
    ],
)
def test_a_model_keeps_to_its_headroom_in_the_budget_over_all_models(
    budget: BudgetHeadroom, wanted: int, target: int, applied: list[str]
) -> None:
    proposal = shared(GuardrailHarness(A), budget=budget, a=wanted)
    assert (proposal.targets, codes(proposal)) == ({"a": target}, applied)
    assert proposal.wanted == {"a": wanted}, "the next allocation knows what it wanted"


@pytest.mark.parametrize(
    ("own", "free", "wanted", "expected"),
    [
        ((None, 8), 9, {"a": 1, "c": 7}, {"a": 1, "c": 7}),
        ((None, 8), 1, {"a": 1, "c": 7}, {"a": 3, "c": 5}),  # one of three workers has a GPU, so one may leave
        ((None, 8), 0, {"a": 1, "c": 7}, {"a": 4, "c": 4}),
        ((None, 7), 3, {"a": 0, "c": 8}, {"a": 0, "c": 7}),
        ((None, 0), 1, {"a": 1, "c": 7}, {"a": 1, "c": 5}),
        ((20, 8), 1, {"a": 1, "c": 7}, {"a": 3, "c": 5}),  # without the tolerance of two bounds
        ((20, 8), 9, {"a": 1, "c": 6}, {"a": 1, "c": 6}),  # with it
        ((20, 8), 9, {"a": 3, "c": 4}, {"a": 4, "c": 4}),  # at its minimum, a model does not shrink alone
    ],
)
def test_shrinks_keep_the_minimum_budget_while_growth_waits_for_other_models(
    own: tuple[int | None, int], free: int, wanted: dict[str, int], expected: dict[str, int]
) -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode", replicas_min=0), PoolKnobs("c", "prefill"))
    harness.budget(*own)
    budget = BudgetHeadroom(ceiling=30, free=free)
    proposal = shared(harness, budget=budget, a=wanted["a"], c=wanted["c"])
    assert proposal.targets == expected
    changed = {name for name, count in wanted.items() if expected[name] != count}
    assert {reason.pool for reason in proposal.limits} == changed


def test_growth_takes_the_free_gpus_of_a_supply_and_waits_for_others() -> None:
    supply = SupplyHeadroom({"a": {"h100": 1}, "b": {"h100": 2}}, {"h100": 3})
    proposal = shared(GuardrailHarness(A, B), supply=supply, a=6, b=6)
    assert (proposal.targets, codes(proposal)) == ({"a": 6, "b": 4}, ["b:gpus_occupied"])
    assert (proposal.wanted, proposal.waits) == ({"a": 6, "b": 4}, {"h100": 4})
    assert (proposal.limits[0].detail, proposal.limits[0].numbers["free"]) == ("h100", 3.0)
    proposal = shared(GuardrailHarness(A, B), supply=supply, a=5, b=5)
    assert (proposal.targets, proposal.limits, proposal.waits) == ({"a": 5, "b": 5}, [], {})


def test_growth_does_not_take_the_gpus_of_a_pool_that_shrinks_at_the_same_time() -> None:
    supply = SupplyHeadroom({"a": {"h100": 1}, "b": {"h100": 2}}, {"h100": 1})
    proposal = shared(GuardrailHarness(A, B), supply=supply, a=6, b=2)
    assert (proposal.targets, codes(proposal)) == ({"a": 5, "b": 2}, ["a:gpus_occupied"])


def test_pools_of_other_supplies_and_minimum_replicas_do_not_wait() -> None:
    supply = SupplyHeadroom({"a": {"h100": 1}, "b": {"l4": 2}}, {"h100": 0, "l4": 4})
    proposal = shared(GuardrailHarness(A, B), supply=supply, a=6, b=6)
    assert proposal.targets == {"a": 4, "b": 6}
    alone = SupplyHeadroom({"a": {"h100": 1}}, {"h100": 0})
    assert shared(GuardrailHarness(A, current=0), supply=alone, a=3).targets == {"a": A.replicas_min}


def test_the_waits_of_all_pools_for_a_supply_add_up() -> None:
    supply = SupplyHeadroom({"a": {"h100": 1}, "b": {"h100": 2}}, {"h100": 0})
    assert shared(GuardrailHarness(A, B), supply=supply, a=6, b=6).waits == {"h100": 2 + 2 * 2}


@pytest.mark.parametrize(
    ("budget", "wanted", "numbers"),
    [
        ((13, 0), {"a": 6}, {"wanted": 6, "allowed": 5, "gpus": 6 + 4 * 2, "budget": 13}),
        ((None, 12), {"a": 1}, {"wanted": 1, "allowed": 4, "gpus": 4 + 4 * 2}),
        ((12, 0), {"a": 6}, {"wanted": 6, "allowed": 4, "gpus": 4 + 4 * 2}),
    ],
)
def test_the_reason_of_a_budget_has_the_gpus_that_it_was_about(
    budget: tuple[int | None, int], wanted: dict[str, int], numbers: dict[str, int]
) -> None:
    (reason,) = GuardrailHarness(A, B).budget(*budget).apply(**wanted).limits
    assert reason.numbers == numbers


def test_a_shrink_that_feeds_a_growth_goes_as_far_as_the_growth_that_has_gpus() -> None:
    harness = GuardrailHarness(A, PoolKnobs("c", "prefill")).budget(10, gpus_min=8)
    harness.drain("a", 1)  # of 10 GPUs, one is free
    assert harness.outcome(a=1, c=7) == ({"a": 2, "c": 5}, ["c:gpu_budget_max", "a:gpu_budget_min"]), "8 less a worker"


def test_the_reason_of_a_minimum_budget_has_the_proposed_gpus() -> None:
    (reason,) = GuardrailHarness(B).budget(None, gpus_min=6).apply(b=1).limits
    assert reason.numbers == {"wanted": 1, "allowed": 3, "gpus": 2, "budget": 6}


def test_the_gpus_of_draining_workers_are_part_of_the_reason_of_a_budget() -> None:
    harness = GuardrailHarness(A, B).budget(14)
    harness.drain("b", 1)
    (reason,) = harness.apply(a=6).limits
    assert reason.numbers == {"wanted": 6, "allowed": 4, "gpus": 6 + 4 * 2 + 2, "budget": 14}
