"""Conversions of terms that several of Dynamo's cases share to the product's."""

from typing import Any

from loadline.core.engines.regression import Regression
from loadline.core.planning.guardrails.gpu_band import GpuBand
from loadline.core.planning.guardrails.pool_changes import PoolChange
from loadline.core.planning.sizing.forecast_steps import STEP_MAX, limit_step
from loadline.core.vocabulary.reasons import ReasonCode

ROLES = ("prefill", "decode")
LIMITS = (
    "min_gpu_budget",
    "max_gpu_budget",
    "min_endpoint",
    "prefill_min_endpoint",
    "decode_min_endpoint",
    "prefill_engine_num_gpu",
    "decode_engine_num_gpu",
)


def band(floor: int, ceiling: int) -> GpuBand:
    """Return the GPU band; a negative bound means unlimited."""
    return GpuBand(floor if floor >= 0 else None, ceiling if ceiling >= 0 else None)


def learned(points: list[list[float]]) -> Regression:
    """Return the regression over samples of load and latency (ms)."""
    regression = Regression()
    for x, latency_ms in points:
        regression.push(x, latency_ms)
    return regression


def least_of(config: dict[str, Any], role: str) -> int:
    """Return the minimum replicas of a role."""
    return int(config.get(f"{role}_min_endpoint") or config.get("min_endpoint", 1))


def gpus_of(config: dict[str, Any], role: str) -> int:
    """Return the GPUs of one worker of a role."""
    return int(config.get(f"{role}_engine_num_gpu", 1))


def word(code: ReasonCode | None) -> str | None:
    """Return what Dynamo calls a reason."""
    if code is ReasonCode.GPU_BUDGET_HOLD:
        return "gpu_budget_guard_hold"
    return None if code is None else code.value


def band_of(config: dict[str, Any]) -> GpuBand:
    """Return the GPU budget of a configuration."""
    return band(config.get("min_gpu_budget", -1), config.get("max_gpu_budget", 8))


def leg_of(config: dict[str, Any], role: str, current: int, needed: int | None) -> PoolChange:
    """Return the change of a role from its current to its needed count, with its bounds."""
    least = least_of(config, role)
    step_max = config.get("max_throughput_scaling_replicas", STEP_MAX)
    wanted = limit_step(current, current if needed is None else needed, least, step_max)
    return PoolChange(current, wanted, gpus_of(config, role), least)
