"""Baselines: the fleet of a configuration with another planner and without guardrails."""

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners import PLANNERS
from loadline.core.planning.planners.baselines.hpa import HpaKnobs
from loadline.core.planning.planners.baselines.keda import KedaKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.compare.baselines import BASELINES, baseline, peak_replicas
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPoolKnobs, StartDelayKnobs, pools_of
from loadline.sim.profiles import LinearProfile
from loadline.traces import Arrival, Trace

# A pass of one prompt of 1,000 tokens takes 1 s, so a worker computes one prompt per second.
PROFILE = LinearProfile(alpha=10.0, beta=0.0, gamma=0.0, delta=1.0)
POOLS = (
    PoolKnobs("prefill", "prefill", replicas_max=20),
    PoolKnobs("decode", "decode", replicas_min=3, replicas_max=20),
)
MODEL = ModelKnobs(
    "llama",
    POOLS,
    gpu_budget_max=30,
    planner_knobs={"hpa": HpaKnobs(tolerance=0.5)},
    guardrails=GuardrailKnobs(step_up_max=1),
)
SETTINGS = Settings("agent", "all", (replace(MODEL, name="other"), MODEL))
FLEET = SimulatedFleetKnobs(
    tuple(SimulatedPoolKnobs(pool.name, kv_blocks=10_000, linear=PROFILE) for pool in POOLS), "llama", ttft_ms=5_000.0
)
OBJECTIVES = ObjectiveKnobs(5_000.0, 50.0)


def busy(*waves: tuple[float, int]) -> Trace:
    """Return a trace of waves of prompts of 1,000 tokens: start of each, and arrivals within a second."""
    return Trace(
        "t", [Arrival(at_s + number / count, 1_000, 2) for at_s, count in waves for number in range(count)], 600.0
    )


def test_there_is_a_baseline_for_each_common_autoscaler() -> None:
    found = {name: baseline(name, SETTINGS, FLEET, busy((0.0, 1))).models[1].planner for name in BASELINES}
    assert found == {
        "static-peak": "static",
        "hpa": "hpa",
        "kpa": "kpa",
        "keda-queue": "keda",
        "keda-saturation": "keda",
        "keda-tokens": "keda",
        "keda-latency": "keda",
        "aibrix-kpa": "kpa",
        "aibrix-apa": "apa",
        "wva": "saturation",
    }
    assert set(found.values()) <= PLANNERS.keys()


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_keeps_bounds_and_budget_and_has_no_other_guardrail(name: str) -> None:
    found = baseline(
        name, replace(SETTINGS, models=(SETTINGS.models[0], replace(MODEL, no_operation=True))), FLEET, busy((0.0, 1))
    )
    other, model = found.models
    assert other == SETTINGS.models[0]
    assert (model.pools, model.gpu_budget_max, model.no_operation) == (POOLS, 30, False)
    guardrails = asdict(model.effective_guardrails)
    steps = {guardrails.pop("step_up_max"), guardrails.pop("step_down_max")}
    assert min(steps) > max(pool.replicas_max for pool in POOLS)
    assert set(guardrails.values()) == {0}
    assert model.knobs_of("hpa") == (
        HpaKnobs() if name == "hpa" else MODEL.knobs_of("hpa")
    )  # its usual settings, not those of the user


def test_static_peak_has_workers_for_the_busiest_minute() -> None:
    # 600 prompts of 1 s each arrive within a minute: 14 workers, which are 71 % busy.
    replicas = (
        baseline("static-peak", SETTINGS, FLEET, busy((0.0, 60), (100.0, 300), (150.0, 300))).models[1].knobs.replicas
    )
    assert replicas == {"prefill": 14, "decode": 3}  # decode has almost no load, but minimum replicas


@pytest.mark.parametrize(("kv_blocks", "full"), [(1_001, 16.0), (10_000, 100.0), (1, 1.0)])
def test_the_kpa_target_is_limited_to_the_requests_that_a_cache_holds(kv_blocks: int, full: float) -> None:
    pools = tuple(replace(pool, kv_blocks=kv_blocks) for pool in FLEET.pools)
    found = baseline("kpa", SETTINGS, replace(FLEET, pools=pools), busy((0.0, 60)))
    assert found.models[1].knobs.target_concurrency == full  # requests of 1001 tokens, in blocks of 16


def knobs_of(name: str, fleet: SimulatedFleetKnobs = FLEET) -> Any:
    return baseline(name, SETTINGS, fleet, busy((0.0, 60))).models[1].knobs


def test_the_rules_of_keda_are_calibrated_to_the_fleet() -> None:
    # A pass of 8,192 tokens takes 8.192 s: 1,000 tokens/s. Of the objective of 5 s, a prompt of 1,000 tokens leaves 4.
    assert knobs_of("keda-tokens") == KedaKnobs("tokens", prefill_tokens_per_s=1_000.0, backlog_s=0.65 * 4.0)
    slow = tuple(
        replace(pool, start_delay=StartDelayKnobs(mean_s=mean_s))
        for pool, mean_s in zip(FLEET.pools, (20.0, 110.0), strict=True)
    )
    for rule in ("queue", "saturation"):
        found = knobs_of(f"keda-{rule}", replace(FLEET, pools=slow))
        assert (found.rule, found.start_up_ms) == (rule, 110_000)


def test_a_prompt_that_uses_up_the_objective_leaves_a_tenth_of_it_to_the_backlog() -> None:
    assert knobs_of("keda-tokens", replace(FLEET, ttft_ms=900.0)).backlog_s == pytest.approx(0.09)


def test_the_latency_rule_has_the_objectives_of_the_fleet() -> None:
    model = baseline("keda-latency", SETTINGS, FLEET, busy((0.0, 60))).models[1]
    assert (model.knobs.rule, model.effective_objectives.ttft_ms) == ("latency", 5_000.0)


def test_aibrix_has_rules_and_settings_of_its_own() -> None:
    knobs = knobs_of("aibrix-kpa")
    assert (knobs.rules, knobs_of("kpa").rules) == ("aibrix", "knative")
    # The cache holds 159.84 requests of 1,001 tokens; the target is half of it.
    assert knobs.target("decode") == pytest.approx(160_000 / 1_001 / 2)
    assert knobs.target("prefill") == 10.0
    assert (knobs.stable_window_ms, knobs.panic_window_ms, knobs.max_scale_up_rate) == (180_000, 60_000, 2.0)


def test_static_peak_keeps_within_the_bounds() -> None:
    pools = pools_of(FLEET, MODEL)
    assert peak_replicas(pools, MODEL, busy((0.0, 6_000)), OBJECTIVES)["prefill"] == 20
    assert peak_replicas(pools, MODEL, Trace("t", [Arrival(0.0, 1, 1)], 1.0), OBJECTIVES) == {"prefill": 1, "decode": 3}


def test_the_cheapest_pool_is_filled_first() -> None:
    cheap = PoolKnobs("cheap", "prefill", replicas_max=4)
    expensive = PoolKnobs("dear", "prefill", gpus_per_worker=2, replicas_max=20)
    model = replace(MODEL, pools=(expensive, cheap, POOLS[1]))
    fleet = replace(
        FLEET,
        pools=tuple(SimulatedPoolKnobs(name, kv_blocks=10_000, linear=PROFILE) for name in ("dear", "cheap", "decode")),
    )
    found = peak_replicas(pools_of(fleet, model), model, busy((0.0, 600)), OBJECTIVES)
    assert found == {"cheap": 4, "dear": 10, "decode": 3}
