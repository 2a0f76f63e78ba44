"""Small results of simulations, written by hand."""

from typing import Any

from loadline.sim.compare.bounds import WorkBound
from loadline.sim.compare.comparison import ComparedRun, Comparison
from loadline.sim.result import Attainment, Percentiles, PoolSeries, ScalingAction, SimulationResult, TimeSeries


def pool_series(pool: str, role: str) -> PoolSeries:
    return PoolSeries(
        pool,
        role,
        desired=[1, 2, 2, 1],
        ready=[1, 1, 2, 2],
        starting=[0, 1, 0, 0],
        draining=[0, 0, 0, 1],
        waiting_requests=[0, 3, 1, 0],
        running_requests=[1, 4, 4, 2],
        kv_usage_ratio=[0.1, 0.9, 0.5, 0.2],
    )


def simulation_result(**changes: Any) -> SimulationResult:
    """Return a result with four steps of one minute, the third without arrivals."""
    series = TimeSeries(
        step_s=60.0,
        at_s=[0.0, 60.0, 120.0, 180.0],
        arrivals_per_s=[1.0, 2.0, 0.0, 0.5],
        prompt_tokens_per_s=[100.0, 20_000.0, 0.0, 50.0],
        queued_requests=[0, 2, 0, 0],
        ttft_p50_ms=[100.0, 300.0, None, 120.0],
        ttft_p95_ms=[200.0, 30_000.0, None, 220.0],
        itl_p50_ms=[10.0, 12.0, None, 11.0],
        itl_p95_ms=[15.0, 22.0, None, 16.0],
        pools=[pool_series("prefill", "prefill"), pool_series("decode", "decode")],
    )
    fields: dict[str, Any] = {
        "name": "mine",
        "trace": "azure",
        "seed": 7,
        "model": "llama",
        "planner": "threshold",
        "ttft_objective_ms": 500.0,
        "itl_objective_ms": 20.0,
        "duration_s": 240.0,
        "requests": 210,
        "finished": 207,
        "refused": 1,
        "unfinished": 2,
        "retried": 4,
        "preempted": 5,
        "migrated": 6,
        "attainment": Attainment(0.9, 0.99999, 0.875),
        "ttft_ms": Percentiles(123.4, 4_567.0, 30_000.0),
        "itl_ms": Percentiles(11.11, 19.99, None),
        "gpu_hours": 0.4,
        "gpu_hours_by_pool": {"prefill": 0.15, "decode": 0.25},
        "workers_max": {"prefill": 2, "decode": 2},
        "decisions": 3,
        "scaling_actions": 2,
        "flaps": 1,
        "drains": 1,
        "drops": 0,
        "actions": [
            ScalingAction("a1", 61.0, "decode", 1, 2, ["decode: it was full"], flap=False),
            ScalingAction("a2", 179.0, "decode", 2, 1, ["decode: it was empty", "the guard agreed"], flap=True),
        ],
        "series": series,
        "digest": "0123456789abcdef" * 4,
    }
    return SimulationResult(**(fields | changes))


def comparison() -> Comparison:
    runs = [
        ComparedRun("config", simulation_result()),
        ComparedRun("clairvoyant", simulation_result(attainment=Attainment(0.95, 1.0, 0.95))),
        ComparedRun("baseline", simulation_result(name="hpa", planner="hpa", gpu_hours=0.8)),
    ]
    return Comparison(WorkBound(0.125), runs)
