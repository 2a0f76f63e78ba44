"""What a configuration says of models and pools without workers: who may sleep, and what never wakes."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from loadline.core.planning.planners import BY_ROLE
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError

_IDLE_LEAST_MS: Final = 10_000
"""Frontends report once a second, and no worker is back within this: less is surely seconds."""


def check_scale_to_zero(model: ModelKnobs, place: str) -> None:
    """Refuse a model that is to sleep and may not.

    Raises:
        ConfigError: Its bounds or its budget keep workers for ever.
    """
    if not model.scale_to_zero_after_ms:
        return
    off = "or leave scale_to_zero_after_ms out"
    for index, pool in enumerate(model.pools):
        if pool.replicas_min:
            problem = f"{pool.replicas_min} keeps workers in a model that is to scale to zero"
            raise ConfigError(f"{place}.pools[{index}].replicas_min", problem, f"Set 0, {off}.")
    if model.gpu_budget_min:
        problem = f"{model.gpu_budget_min} keeps workers in a model that is to scale to zero"
        raise ConfigError(f"{place}.gpu_budget_min", problem, f"Leave it out, {off}.")


def scale_to_zero_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Models that sleep at once; pools that may be empty and never are, or that stay so."""
    idle_ms = model.scale_to_zero_after_ms
    if 0 < idle_ms < _IDLE_LEAST_MS:
        yield (
            f"{place}.scale_to_zero_after_ms: after {idle_ms} ms it sleeps between two requests, and the "
            f"next one waits for a worker to start. Write milliseconds: {idle_ms} s are {idle_ms * 1_000}."
        )
    roles = Counter(pool.role for pool in model.pools)
    for index, pool in enumerate(model.pools):
        here = f"{place}.pools[{index}].replicas_min"
        if pool.replicas_min:
            continue
        if roles[pool.role] == 1 and not model.scale_to_zero_after_ms:
            yield (
                f"{here}: 0 is as 1 while scale_to_zero_after_ms is 0: a role keeps its last worker. "
                "Set it to the time after which the model may sleep, or replicas_min = 1."
            )
        elif roles[pool.role] > 1 and model.planner not in BY_ROLE:
            yield (
                f"{here}: an empty pool reports nothing, so nothing makes it grow again while another pool of its role "
                "has workers. Set replicas_min = 1 or more."
            )
