"""GPU budget over all models: its limits, and exchange of GPUs between models."""

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadline.cli.status_output import format_gpu_budget
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.queries.status import status
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.status import GpuBudgetStatus
from tests.support.fleet_harness import START
from tests.support.holds import hold_of
from tests.support.multi_model_world import MultiModelWorld

MINUTE_MS = 60_000
TURN_MS = 2


def pool(width: int = 1, least: int = 1, most: int = 100) -> PoolKnobs:
    return PoolKnobs("main", "aggregated", width, least, most)


def models_of(most: int | None, least: int = 0, drain_ms: int = 5_337, **workers: Any) -> MultiModelWorld:
    """Return models by name, each with a pool and a number of workers, and with budgets of models."""
    own = {key: workers.pop(key) for key in ("gpu_budget_min", "gpu_budget_max") if key in workers}
    pools = {name: [one if isinstance(one, tuple) else (pool(), one)] for name, one in workers.items()}
    knobs = FleetKnobs(gpu_budget_max=most, gpu_budget_min=least)
    return MultiModelWorld(pools, knobs, drain_ms=drain_ms, **own)


def counts(models: MultiModelWorld) -> dict[str, int]:
    return {name: pools["main"] for name, pools in models.effective_targets().items()}


def decided(models: MultiModelWorld, model: str) -> list[tuple[int, int]]:
    """Return the times and counts of the decisions on a model."""
    return [(at, decision.targets[0].replicas) for at, decision in models.decisions if decision.model == model]


def limit_codes(models: MultiModelWorld, model: str) -> list[ReasonCode]:
    return [reason.code for reason in hold_of(models.controller.state, model).limits]


def budget(models: MultiModelWorld) -> GpuBudgetStatus:
    controller = models.controller
    found = status(controller.settings, controller.state, "1", START, models.now).gpus
    assert found is not None
    return found


def test_growth_is_limited_to_the_gpus_that_all_models_leave() -> None:
    models = models_of(10, a=3, b=4)
    models.propose("a", main=8)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 6, "b": 4}
    assert limit_codes(models, "a") == [ReasonCode.FLEET_GPU_BUDGET_MAX]
    assert budget(models) == GpuBudgetStatus(0, 10, 10, 10, {"a": 2}, {})


def test_two_models_of_one_turn_do_not_take_the_same_gpus() -> None:
    models = models_of(10, a=3, b=4)
    models.propose("a", main=6)
    models.propose("b", main=7)
    models.run(1)
    assert [decision.targets[0].replicas for _, decision in models.decisions] == [6], (
        "b is planned with the counts of a"
    )
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 6, "b": 4}


def test_gpus_of_draining_workers_of_any_model_are_occupied() -> None:
    models = models_of(10, a=5, b=5)
    models.propose("a", main=3)
    models.propose("b", main=7)
    models.run(3_000)
    assert counts(models) == {"a": 3, "b": 5}
    assert budget(models) == GpuBudgetStatus(0, 10, 8, 10, {"b": 2}, {})
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 3, "b": 7}


def test_a_waiting_model_is_planned_as_soon_as_gpus_are_free() -> None:
    models = models_of(10, drain_ms=5_337, a=5, b=5)
    models.propose("b", main=7)
    models.run(7_000)
    models.propose("a", main=3)
    models.run(MINUTE_MS)
    (shrunk, _), (grown, _) = decided(models, "a")[-1], decided(models, "b")[-1]
    assert grown - shrunk - models.drain_ms - models.commit_ms <= 2 * TURN_MS


def test_gpus_of_a_pending_commit_are_taken_until_it_is_refused() -> None:
    models = models_of(10, a=3, b=4)
    models.commit_ms, models.refuses = 1_337, {"a"}
    models.propose("a", main=6)
    models.propose("b", main=7)
    models.run(1_337)
    assert models.decisions == [], "b waits for the GPUs of a's pending commit"
    models.run(2 * TURN_MS)
    assert [decision.targets[0].replicas for _, decision in models.decisions] == [7]


def test_minimum_replicas_of_each_model_are_reserved() -> None:
    models = models_of(6, a=2, b=(pool(least=2), 0))
    models.propose("a", main=6)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 4, "b": 2}


def test_the_minimum_budget_delays_a_shrink_until_another_model_grows() -> None:
    models = models_of(8, 8, a=4, b=4)
    models.propose("a", main=2)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 4, "b": 4}
    assert limit_codes(models, "a") == [ReasonCode.FLEET_GPU_BUDGET_MIN]
    assert budget(models).offers == {"a": 2}
    models.propose("b", main=5)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 3, "b": 5}, "one of the two models grew"
    assert "main:gpu_budget_gives_way" in models.decisions[-2][1].reasons


@pytest.mark.parametrize(("waits_ms", "pays"), [(300_000, True), (420_000, False)])
def test_an_offer_expires_after_its_ttl(waits_ms: int, pays: bool) -> None:  # noqa: FBT001 - a case
    models = models_of(8, 8, a=4, b=4)
    models.propose("a", main=2)
    models.run(2_000)
    models.propose("a")
    models.run(waits_ms)
    models.propose("b", main=6)
    models.run(MINUTE_MS)
    assert counts(models) == ({"a": 2, "b": 6} if pays else {"a": 4, "b": 4})


def test_an_offer_ends_when_its_model_needs_the_workers() -> None:
    models = models_of(8, 8, a=4, b=4)
    models.propose("a", main=2)
    models.run(2_000)
    models.propose("a", main=5)
    models.run(2_000)
    assert (budget(models).offers, budget(models).waiting) == ({}, {"a": 1})


def test_an_offer_without_data_releases_no_gpus() -> None:
    models = models_of(8, 8, a=4, b=4)
    models.propose("a", main=2)
    models.run(2_000)
    models.workers = {
        name: one for name, one in models.workers.items() if one.model != "a"
    }  # the workers stop reporting
    models.run(10_000)
    models.propose("b", main=6)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 4, "b": 4}


def test_the_smallest_offer_is_used_first_and_the_last_in_part() -> None:
    models = models_of(30, 30, a=12, b=6, c=10, d=2)
    for name, count in (("a", 4), ("b", 4), ("c", 9)):
        models.propose(name, main=count)
    models.run(2_000)
    assert budget(models).offers == {"a": 8, "b": 2, "c": 1}
    models.propose("d", main=7)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 10, "b": 4, "c": 9, "d": 7}


def test_claims_are_served_in_order() -> None:
    models = models_of(12, a=4, b=4, c=4)
    models.propose("c", main=6)
    models.run(2_000)
    models.propose("b", main=6)
    models.run(2_000)
    models.propose("a", main=2)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 2, "b": 4, "c": 6}


def test_a_claim_that_cannot_use_free_gpus_does_not_block_others() -> None:
    models = models_of(16, a=(pool(8), 1), b=5)
    models.propose("a", main=2)
    models.run(2_000)
    models.propose("b", main=8)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 1, "b": 8}


def test_the_minimum_of_a_model_is_exact_under_the_maximum_of_all() -> None:
    models = models_of(9, a=4, b=4, gpu_budget_min=3)
    models.propose("a", main=2)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 3, "b": 4}


def test_the_minimum_of_all_is_exact_under_the_maximum_of_a_model() -> None:
    models = models_of(None, 10, a=(pool(4), 3), gpu_budget_max=20)
    models.propose("a", main=2)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 3}


@pytest.mark.parametrize("least", [0, 1])  # 0 and 3 are 3 GPUs, which the width of a worker allows
def test_a_delayed_growth_keeps_its_model_at_its_minimum(least: int) -> None:
    one, two = (PoolKnobs(name, "aggregated", replicas_min=0) for name in ("one", "two"))
    pools = {"a": [(pool(), 5)], "b": [(one, 2), (two, 2)]}
    models = MultiModelWorld(pools, FleetKnobs(gpu_budget_max=9), gpu_budget_min=4, gpu_budget_max=16)
    models.propose("b", one=least, two=3)
    models.run(MINUTE_MS)
    assert models.decisions == [], "all GPUs are occupied until b has released one"
    models.propose("a", main=4)
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 4}, "b": {"one": least, "two": 3}}


def test_a_paused_model_neither_claims_nor_offers() -> None:
    models = models_of(8, 8, a=4, b=4)
    models.propose("a", main=2)
    models.run(2_000)
    models.controller.state.paused["a"] = "somebody"
    models.propose("b", main=6)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 4, "b": 4}
    assert budget(models).offers == {}


def test_a_fleet_above_its_budget_shrinks_in_proportion() -> None:
    models = models_of(9, a=12, b=6)
    models.run(MINUTE_MS)
    assert sum(counts(models).values()) <= 9
    assert counts(models)["a"] > counts(models)["b"]


def test_a_fleet_below_its_budget_grows() -> None:
    models = models_of(None, 12, a=4, b=2)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 9, "b": 3}, "each by its share of the missing GPUs when it is planned"
    models = models_of(20, 12, a=(pool(most=5), 4), b=2)
    models.run(MINUTE_MS)
    assert 11 <= sum(counts(models).values()) <= 13


def test_without_a_budget_no_limit_and_no_status() -> None:
    models = models_of(None, a=4, b=4)
    models.propose("a", main=90)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 90, "b": 4}
    controller = models.controller
    assert status(controller.settings, controller.state, "1", START, models.now).gpus is None


def test_claims_and_offers_survive_a_snapshot() -> None:
    models = models_of(8, 8, a=4, b=4)
    models.propose("a", main=2)
    models.run(2_000)
    before = models.controller.state.gpus
    assert before.offers
    models.controller.restore(models.controller.snapshot())
    assert models.controller.state.gpus == before
    assert msgspec.json.decode(models.controller.snapshot())["state"]["gpus"]["offers"]["a"]


def test_the_status_is_formatted_as_one_line() -> None:
    assert format_gpu_budget(GpuBudgetStatus(2, 10, 8, 9, {"a": 2}, {"b": 1})) == (
        "GPUs of all models: 8 decided, 9 occupied, budget 2 to 10; waiting: a for 2; offered: b 1"
    )
    assert format_gpu_budget(GpuBudgetStatus(2, None, 8, 9, {}, {})).endswith("budget 2 to unlimited")


# -- random recommendations ------------------------------------------------------------------------------------------


class BudgetSequence(NamedTuple):
    """Sequence of recommendations for models under a budget."""

    most: int
    least: int
    workers: dict[str, Any]
    drain_ms: int
    proposals: list[tuple[int, str, int]]


@st.composite
def budget_sequences(draw: st.DrawFn) -> BudgetSequence:
    widths = draw(st.lists(st.sampled_from([1, 1, 2, 4]), min_size=2, max_size=4))
    workers = {name: (pool(width), draw(st.integers(1, 4))) for name, width in zip("abcd", widths, strict=False)}
    held = sum(one.gpus_per_worker * count for one, count in workers.values())
    waits = st.sampled_from([1, 900, 4_000, 20_000])
    proposals = draw(st.lists(st.tuples(waits, st.sampled_from(sorted(workers)), st.integers(1, 8)), max_size=8))
    least = draw(st.sampled_from([0, held, max(0, held - 2)]))
    return BudgetSequence(
        held + draw(st.integers(0, 6)), least, workers, draw(st.sampled_from([700, 5_337])), proposals
    )


@given(budget_sequences())
@settings(max_examples=40, deadline=None)
def test_the_maximum_always_applies_and_every_wait_has_a_reason(play: BudgetSequence) -> None:
    models = models_of(play.most, play.least, drain_ms=play.drain_ms, **play.workers)
    seen: list[int] = []
    models.after_turn = lambda: seen.append(models.occupied())
    wanted: dict[str, int] = {}
    for wait_ms, model, replicas in play.proposals:
        models.propose(model, main=replicas)
        wanted[model] = replicas
        models.run(wait_ms)
    models.run(MINUTE_MS)
    assert max(seen, default=0) <= play.most
    widths = {name: one.gpus_per_worker for name, (one, _) in play.workers.items()}
    found = budget(models)
    assert found.decided == found.occupied, "all drains have ended"
    assert found.decided >= play.least - max(widths.values())
    for model, replicas in wanted.items():
        if counts(models)[model] < replicas:
            offered = sum(count for name, count in found.offers.items() if name != model)
            assert play.most - found.decided + offered < widths[model], f"{model} could grow"
        elif counts(models)[model] > replicas:
            assert found.decided - play.least < widths[model], f"{model} could shrink"
