"""Settings of the agents in the chaos world: models with short intervals, so that an hour holds many decisions.

All intervals are a few seconds, times the tempo of the plan. One model is disaggregated, with a GPU budget below its
pools' bounds and a planner of single steps. The other is aggregated, with a planner of large steps and a minimum GPU
budget. With a limited GPU supply the other has priority, within a quota. A third one is in ``night_settings``.
"""

from typing import Final

from msgspec.structs import replace

from loadline.core.decisions.drains import DrainKnobs
from loadline.core.decisions.leadership import LeadershipKnobs
from loadline.core.decisions.ledger import DecisionKnobs
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.baselines.hpa import HpaKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.chaos.night_settings import NIGHT, NIGHT_POOL, NIGHT_PROFILE, night_model
from loadline.sim.chaos.plan import FaultPlan

INTERVAL_MS: Final = 2_000
"""Interval of reports, of planners and of migrations, at tempo 1."""
QUOTA_GPUS: Final = 6
_MIGRATION = MigrationKnobs(
    enabled=True,
    decode_load_metric="decode_batch_size",
    decode_load_threshold=0.0,
    prefill_load_metric="num_requests",
    neutral_load_metric="decode_batch_size",
    neutral_load_threshold=0.0,
    load_balance_threshold=2.0,
    req_select_rule="NUM_REQ",
    req_select_value=1.0,
    llumlet_grpc_timeout_seconds=2.0,
    ttl_ms=10_000,
    migrations_max=4,
    migrations_per_worker_max=2,
    breaker_ms=2_000,
    breaker_max_ms=10_000,
)


def chaos_settings(agent: str, plan: FaultPlan) -> Settings:
    """Return the settings of an agent, by its name and the plan of the run."""
    gpus, interval_ms = plan.gpus, INTERVAL_MS * plan.tempo
    threshold = ThresholdKnobs(
        metric_pulling_interval_ms=interval_ms,
        adjustment_interval_ms=3 * interval_ms,
        prefill_queue_scale_up_threshold=1.5,
        prefill_queue_scale_down_threshold=0.5,
        new_decode_worker_grace_intervals=1,
    )
    migration = replace(_MIGRATION, interval_ms=interval_ms)
    guard = GuardrailKnobs(
        step_up_max=2, stabilisation_ms=12_000, warm_up_ms=8_000, cooldown_up_ms=1_500, cooldown_down_ms=2_500
    )
    prefill = PoolKnobs("prefill", "prefill", 1, 1, 5, start_deadline_ms=30_000, accelerator="gpu")
    decode = PoolKnobs("decode", "decode", 2, 1, 5, start_deadline_ms=30_000, accelerator="gpu")
    both = PoolKnobs("both", "aggregated", 1, 2, 7, start_deadline_ms=30_000, accelerator="gpu")
    hpa = HpaKnobs(sync_interval_ms=interval_ms, down_stabilisation_ms=0)
    return Settings(
        agent,
        "all",
        (
            ModelKnobs(
                "split",
                (prefill, decode),
                planner="threshold",
                gpu_budget_max=11,
                guardrails=guard,
                planner_knobs={"threshold": threshold},
                migration=migration,
            ),
            ModelKnobs(
                "whole",
                (both,),
                "team",
                1,
                planner="hpa",
                gpu_budget_min=3,
                guardrails=guard,
                planner_knobs={"hpa": hpa},
                migration=migration,
            ),
            *([night_model(guard)] if plan.night else []),
        ),
        fleet=FleetKnobs(stale_after_ms=2 * interval_ms + 1_000, surplus_after_ms=20_000),
        leadership=LeadershipKnobs(blind_after_ms=8_000),
        decisions=DecisionKnobs(ttl_ms=40_000, retry_backoff_ms=1_000, retry_backoff_max_ms=10_000),
        drain=DrainKnobs(ttl_ms=25_000),
        accelerators=(AcceleratorKnobs("gpu"),),
        allocation=AllocationKnobs({} if gpus is None else {"gpu": gpus}),
        profiles={NIGHT: {NIGHT_POOL: NIGHT_PROFILE}} if plan.night else {},
        quotas={} if gpus is None else {"team": {"gpu": QUOTA_GPUS}},
    )
