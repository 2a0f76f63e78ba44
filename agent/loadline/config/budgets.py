"""Validation of GPU budgets: errors if no fleet can meet a budget, warnings if a budget prevents all changes."""

from collections.abc import Iterator, Sequence

from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError


def budget_errors(model: ModelKnobs, place: str) -> Iterator[ConfigError]:
    """Yield errors of a budget that contradicts itself or the replica bounds of the pools."""
    yield from _errors(place, model, _smallest(model), _largest(model))


def fleet_budget_errors(fleet: FleetKnobs, models: Sequence[ModelKnobs]) -> Iterator[ConfigError]:
    """Yield errors of a fleet budget that contradicts itself or the bounds and budgets of the models."""
    smallest = sum(max(_smallest(model), model.gpu_budget_min) for model in models)
    largest = sum(min(_largest(model), model.gpu_budget_max or _largest(model)) for model in models)
    yield from _errors("fleet", fleet, smallest, largest, ", within the budgets of the models")


def budget_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Yield warnings about a budget that prevents scaling of a model up or down."""
    yield from _warnings(place, model, _smallest(model), _largest(model))


def fleet_budget_warnings(fleet: FleetKnobs, models: Sequence[ModelKnobs]) -> Iterator[str]:
    """Yield warnings about a fleet budget that prevents scaling of all models up or down."""
    smallest, largest = sum(map(_smallest, models)), sum(map(_largest, models))
    if smallest < largest:
        yield from _warnings("fleet", fleet, smallest, largest)


def _smallest(model: ModelKnobs) -> int:
    """Return the GPUs of the pools at minimum replicas."""
    return sum(pool.replicas_min * pool.gpus_per_worker for pool in model.pools)


def _largest(model: ModelKnobs) -> int:
    """Return the GPUs of the pools at maximum replicas."""
    return sum(pool.replicas_max * pool.gpus_per_worker for pool in model.pools)


def _errors(
    place: str, knobs: ModelKnobs | FleetKnobs, smallest: int, largest: int, within: str = ""
) -> Iterator[ConfigError]:
    low, high = knobs.gpu_budget_min, knobs.gpu_budget_max
    if high is not None and low > high:
        yield ConfigError(
            f"{place}.gpu_budget_min", f"{low} is above gpu_budget_max {high}", "Lower it or raise gpu_budget_max."
        )
    if high is not None and high < smallest:
        problem = (
            f"{high} GPUs are fewer than the {smallest} of the smallest fleet (replicas_min x gpus_per_worker{within})"
        )
        yield ConfigError(f"{place}.gpu_budget_max", problem, f"Set it to {smallest} or more, or lower replicas_min.")
    if low > largest:
        problem = (
            f"{low} GPUs are more than the {largest} of the largest fleet (replicas_max x gpus_per_worker{within})"
        )
        yield ConfigError(f"{place}.gpu_budget_min", problem, f"Set it to {largest} or less, or raise replicas_max.")


def _warnings(place: str, knobs: ModelKnobs | FleetKnobs, smallest: int, largest: int) -> Iterator[str]:
    low, high = knobs.gpu_budget_min, knobs.gpu_budget_max
    if high == smallest:
        yield (
            f"{place}.gpu_budget_max: {high} GPUs are the size of the smallest fleet, so no pool can be scaled up. "
            "Raise it or lower a replicas_min."
        )
    if low == largest:
        yield (
            f"{place}.gpu_budget_min: {low} GPUs are the size of the largest fleet, so no pool can be scaled down. "
            "Lower it or raise a replicas_max."
        )
