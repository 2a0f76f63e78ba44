"""Allocation of GPU types over all models: capacity, priorities and waits."""

from typing import Any, Literal

import pytest

from loadline.cli.status_output import format_supply
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.fleet_allocation import PAUSE_MS
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.queries.status import status
from loadline.core.vocabulary.allocations import SaturationPolicy
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.status import SupplyStatus
from tests.support.fleet_harness import START
from tests.support.holds import hold_of
from tests.support.multi_model_world import STEPS, GpuLimits, MultiModelWorld

MINUTE_MS = 60_000
ACCELERATORS = (AcceleratorKnobs("h100", cost_per_hour=2.0), AcceleratorKnobs("a100"))


def pool(name: str = "main", gpu: str = "h100", width: int = 1, least: int = 1, most: int = 100) -> PoolKnobs:
    return PoolKnobs(name, "aggregated", width, least, most, accelerator=gpu)


def models_of(
    capacity: dict[str, int],
    workers: dict[str, Any],
    *,
    first: dict[str, int] | None = None,
    policy: SaturationPolicy = "priority_round_robin",
    solver: Literal["exact", "greedy"] = "greedy",
    guardrails: GuardrailKnobs = STEPS,
    **limited: Any,
) -> MultiModelWorld:
    """Return models by name: each value is a number of workers, a pool with a number, or several of these."""
    pools = {
        name: one if isinstance(one, list) else [one if isinstance(one, tuple) else (pool(), one)]
        for name, one in workers.items()
    }
    knobs = AllocationKnobs(capacity, policy, solver=solver)
    return MultiModelWorld(
        pools,
        FleetKnobs(),
        drain_ms=5_337,
        limited=GpuLimits(knobs, ACCELERATORS, priorities=first or {}, **limited),
        guardrails=guardrails,
    )


def counts(models: MultiModelWorld) -> dict[str, int]:
    return {name: pools["main"] for name, pools in models.effective_targets().items()}


def limit_codes(models: MultiModelWorld, model: str) -> list[str]:
    """Return the reason codes of the last hold, with their details."""
    found = hold_of(models.controller.state, model).limits
    return [f"{reason.code} {reason.detail}".strip() for reason in found]


def supplies(models: MultiModelWorld) -> dict[str, SupplyStatus]:
    controller = models.controller
    found = status(controller.settings, controller.state, "1", START, models.now).supplies
    return {one.supply: one for one in found}


def with_capacity_check(models: MultiModelWorld) -> MultiModelWorld:
    """Check after every turn that no more GPUs are occupied than exist."""

    def check() -> None:
        for one in supplies(models).values():
            assert one.occupied <= one.limit, f"{one} at {models.now - START} ms"

    models.after_turn = check
    return models


def test_sufficient_supplies_change_no_recommendation() -> None:
    models = with_capacity_check(models_of({"h100": 10}, {"a": 3, "b": 4}))
    models.propose("a", main=5)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 5, "b": 4}
    assert limit_codes(models, "a") == []
    assert models.problems == []


def test_growth_is_limited_to_the_capacity() -> None:
    models = with_capacity_check(models_of({"h100": 10}, {"a": 3, "b": 4}))
    models.propose("a", main=8)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 6, "b": 4}
    assert limit_codes(models, "a") == ["capacity_limited h100"]
    assert supplies(models) == {"h100": SupplyStatus("h100", 10, 10, {"a": 2})}


def test_an_unlisted_type_is_unlimited() -> None:
    models = models_of({"a100": 1}, {"a": 3})
    models.propose("a", main=50)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 50}


def test_models_of_equal_priority_do_not_take_workers_from_each_other() -> None:
    models = with_capacity_check(models_of({"h100": 10}, {"a": 5, "b": 5}))
    models.propose("a", main=9)
    models.propose("b", main=6)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 5, "b": 5}


@pytest.mark.parametrize("policy", ["none", "priority_exhaustive", "priority_round_robin", "round_robin"])
def test_a_higher_priority_gets_the_gpus_of_a_lower_one(policy: SaturationPolicy) -> None:
    models = with_capacity_check(models_of({"h100": 10}, {"high": 2, "low": 8}, first={"high": 1}, policy=policy))
    models.propose("low", main=8)
    models.propose("high", main=7)
    models.run(1_000)
    assert counts(models)["high"] == 2, "the model that gives way drains first"
    assert limit_codes(models, "high")[0] == "gpus_occupied h100"
    assert limit_codes(models, "low")[0] == "gives_way high"
    assert supplies(models)["h100"].waiting["high"] == 5
    models.run(MINUTE_MS)
    assert counts(models) == {"high": 7, "low": 1 if policy == "none" else 3}
    models.propose("high", main=2)
    models.run(2 * MINUTE_MS)
    assert counts(models) == {"high": 2, "low": 8}, "the model gets its workers back"


def test_a_waiting_model_grows_as_soon_as_gpus_are_free() -> None:
    models = with_capacity_check(models_of({"h100": 10}, {"high": 2, "low": 8}, first={"high": 1}))
    models.propose("low", main=8)
    models.propose("high", main=7)
    models.run(MINUTE_MS)
    (shrunk,) = [at for at, one in models.decisions if one.model == "low"]
    (grown,) = [at for at, one in models.decisions if one.model == "high"]
    assert grown - shrunk - models.drain_ms - models.commit_ms <= 4


def test_freed_gpus_are_reserved_for_the_higher_priority() -> None:
    models = with_capacity_check(
        models_of({"h100": 10}, {"high": (pool(width=4), 1), "low": 2, "mid": 4}, first={"high": 1})
    )
    models.propose("low", main=4)
    models.propose("mid", main=1)
    models.propose("high", main=2)
    models.run(MINUTE_MS)
    assert counts(models) == {"high": 2, "low": 1, "mid": 1}


def test_a_model_that_gives_way_respects_its_guardrails() -> None:
    guardrails = GuardrailKnobs(
        step_up_max=100, step_down_max=2, stabilisation_ms=600_000, cooldown_down_ms=3_000, warm_up_ms=0
    )
    models = with_capacity_check(
        models_of({"h100": 10}, {"high": 2, "low": 8}, first={"high": 1}, guardrails=guardrails)
    )
    models.propose("low", main=8)
    models.propose("high", main=7)
    models.run(MINUTE_MS)
    steps = [one.targets[0].replicas for _, one in models.decisions if one.model == "low"]
    assert steps == [6, 4, 3], "two at a time, without stabilisation"


def test_a_model_without_data_releases_no_gpus() -> None:
    models = with_capacity_check(models_of({"h100": 10}, {"high": 2, "low": 6, "mute": 2}, first={"high": 1}))
    models.propose("low", main=6)
    models.propose("mute", main=2)
    models.silent.add("mute")
    models.run(MINUTE_MS)
    models.propose("high", main=10)
    models.run(MINUTE_MS)
    assert counts(models) == {"high": 7, "low": 1, "mute": 2}


def test_a_quota_limits_the_models_of_its_namespace() -> None:
    models = with_capacity_check(
        models_of(
            {"h100": 20},
            {"a": 3, "b": 3, "c": 3},
            namespaces={"a": "team", "b": "team"},
            quotas={"team": {"h100": 8}},
        )
    )
    for name in ("a", "b", "c"):
        models.propose(name, main=9)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 4, "b": 4, "c": 9}
    assert limit_codes(models, "a") == ["quota_limited team/h100"]
    assert supplies(models)["team/h100"] == SupplyStatus("team/h100", 8, 8, {"a": 5, "b": 5})


@pytest.mark.parametrize(
    ("quota", "count"), [({"default": 4}, 4), ({"default": 4, "h100": -1}, 9), ({"a100": 2}, 9), ({"h100": 0}, 1)]
)
def test_a_quota_reason_names_the_quota(quota: dict[str, int], count: int) -> None:
    models = models_of({}, {"a": 1}, namespaces={"a": "team"}, quotas={"team": quota})
    models.propose("a", main=9)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": count}


def test_a_lowered_capacity_shrinks_models() -> None:
    models = models_of({"h100": 6}, {"a": 5, "b": 5})
    models.propose("a", main=5)
    models.propose("b", main=5)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 5, "b": 1}, "one model is served instead of none"


def test_a_paused_model_keeps_its_workers() -> None:
    models = with_capacity_check(models_of({"h100": 10}, {"high": 2, "low": 8}, first={"high": 1}))
    models.propose("low", main=8)
    models.controller.state.paused["low"] = "operator"
    models.propose("high", main=7)
    models.run(MINUTE_MS)
    assert counts(models) == {"high": 2, "low": 8}
    assert limit_codes(models, "high") == ["capacity_limited h100"]


def test_the_allocation_survives_a_snapshot() -> None:
    models = models_of({"h100": 10}, {"high": 2, "low": 8}, first={"high": 1})
    models.propose("low", main=8)
    models.propose("high", main=7)
    models.run(2_000)
    before = models.controller.state.allocation
    models.controller.restore(models.controller.snapshot())
    assert models.controller.state.allocation == before
    assert before.waiting
    models.run(MINUTE_MS)
    assert counts(models) == {"high": 7, "low": 3}


def test_minimum_replicas_do_not_wait_for_gpus() -> None:
    models = models_of({"h100": 4}, {"a": 4, "b": (pool(least=2), 0)})
    models.propose("a", main=4)
    models.run(MINUTE_MS)
    assert counts(models) == {"a": 2, "b": 2}
    assert ReasonCode.REPLICAS_MIN in {reason.split(":")[-1] for _, one in models.decisions for reason in one.reasons}


def test_the_status_lists_waiting_models() -> None:
    models = models_of({"h100": 10}, {"a": 3, "b": 4})
    models.propose("a", main=8)
    models.run(MINUTE_MS)
    (one,) = supplies(models).values()
    assert format_supply(one) == "GPUs of h100: 10 occupied of 10; waiting: a for 2"
    assert format_supply(SupplyStatus("team/h100", 8, 3, {})) == "GPUs of team/h100: 3 occupied of 8"


def test_short_supplies_are_allocated_again_after_a_pause() -> None:
    models = with_capacity_check(models_of({"h100": 10}, {"a": 3, "b": 4}))
    models.propose("a", main=8)
    models.run(1_000)
    models.propose("b", main=5)
    models.run(4)
    models.propose("a", main=4)
    models.propose("b", main=7)
    models.run(PAUSE_MS // 2)
    assert counts(models) == {"a": 4, "b": 4}, "a shrink does not wait"
    assert list(models.controller.state.allocation.changed_demands) == ["a", "b"]
    models.run(10_000)
    assert counts(models) == {"a": 4, "b": 6}


def test_the_first_allocation_of_a_term_knows_the_demand_of_settled_models() -> None:
    """The counts are known from before the term; without the demands no shortage is seen, and `a` takes the GPUs."""
    models = models_of({"h100": 6}, {"a": 2, "b": 2}, first={"a": 200, "b": 1})
    models.run(60_000)
    for name in "ab":
        models.propose(name, main=2)
    models.run(200_000)
    known = len(models.decisions)
    for model in models.controller.state.fleet.models.values():
        model.pools["main"].reset_decided(2, models.now)
    models.controller.state.acting_since_ms = -1
    for name in "ab":
        models.propose(name, main=5)
    models.run(1_500)
    decided = [(one.model, one.targets[0].replicas) for _, one in models.decisions[known:]]
    assert decided == [("a", 1), ("b", 4)]
