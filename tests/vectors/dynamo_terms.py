"""What several of Dynamo's cases say, in the product's terms."""

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
    """A negative bound is none."""
    return GpuBand(floor if floor >= 0 else None, ceiling if ceiling >= 0 else None)


def learned(points: list[list[float]]) -> Regression:
    """After these samples of load and latency (ms)."""
    regression = Regression()
    for x, latency_ms in points:
        regression.push(x, latency_ms)
    return regression


def least_of(config: dict[str, Any], role: str) -> int:
    """Fewest replicas of a role."""
    return int(config.get(f"{role}_min_endpoint") or config.get("min_endpoint", 1))


def gpus_of(config: dict[str, Any], role: str) -> int:
    """GPUs of one worker of a role."""
    return int(config.get(f"{role}_engine_num_gpu", 1))


def word(code: ReasonCode | None) -> str | None:
    """A reason as it is written."""
    return None if code is None else code.value


def band_of(config: dict[str, Any]) -> GpuBand:
    """The GPUs that a configuration allows."""
    return band(config.get("min_gpu_budget", -1), config.get("max_gpu_budget", 8))


def leg_of(config: dict[str, Any], role: str, current: int, needed: int | None) -> PoolChange:
    """A role between what stands and what it needs, bounded."""
    least = least_of(config, role)
    step_max = config.get("max_throughput_scaling_replicas", STEP_MAX)
    wanted = limit_step(current, current if needed is None else needed, least, step_max)
    return PoolChange(current, wanted, gpus_of(config, role), least)
