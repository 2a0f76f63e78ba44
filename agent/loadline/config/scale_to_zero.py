"""Validation of scale-to-zero settings and of pools that may be empty."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError

_IDLE_MIN_MS: Final = 10_000
"""Shortest plausible idle time: workers take longer to start, so a lower value is probably in seconds."""


def scale_to_zero_errors(model: ModelKnobs, place: str) -> Iterator[ConfigError]:
    """Yield errors of minimums of replicas or GPUs that prevent scale to zero."""
    if not model.scale_to_zero_after_ms:
        return
    off = "or remove scale_to_zero_after_ms"
    for index, pool in enumerate(model.pools):
        if pool.replicas_min:
            problem = f"{pool.replicas_min} prevents scale to zero, which scale_to_zero_after_ms enables"
            yield ConfigError(f"{place}.pools[{index}].replicas_min", problem, f"Set 0, {off}.")
    if model.gpu_budget_min:
        problem = f"{model.gpu_budget_min} prevents scale to zero, which scale_to_zero_after_ms enables"
        yield ConfigError(f"{place}.gpu_budget_min", problem, f"Remove it, {off}.")


def scale_to_zero_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Yield warnings about implausibly short idle times, and about pools that never become or stay empty."""
    idle_ms = model.scale_to_zero_after_ms
    if 0 < idle_ms < _IDLE_MIN_MS:
        yield (
            f"{place}.scale_to_zero_after_ms: {idle_ms} ms scales the model to zero between two requests, and the next "
            f"one waits for a worker to start. The unit is milliseconds: {idle_ms} s are {idle_ms * 1_000}."
        )
    roles = Counter(pool.role for pool in model.pools)
    for index, pool in enumerate(model.pools):
        here = f"{place}.pools[{index}].replicas_min"
        if pool.replicas_min:
            continue
        if roles[pool.role] == 1 and not model.scale_to_zero_after_ms:
            yield (
                f"{here}: 0 has the effect of 1 while scale_to_zero_after_ms is 0, since a role keeps its "
                "last worker. Set scale_to_zero_after_ms, or replicas_min = 1."
            )
        elif roles[pool.role] > 1 and not PLANNERS[model.planner].needs.shares_role_load:
            yield (
                f"{here}: an empty pool reports no load, so it is never scaled up again while another pool of its role "
                "has workers. Set replicas_min = 1 or more."
            )
