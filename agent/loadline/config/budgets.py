"""What a configuration says of GPUs: budgets that no fleet can meet are errors, those that leave no choice warnings."""

from collections.abc import Iterator, Sequence

from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.errors import ConfigError


def check_budget(model: ModelKnobs, place: str) -> None:
    """Refuse a model's budget that its pools cannot meet.

    Raises:
        ConfigError: It contradicts itself, or the bounds of the pools.
    """
    _check(place, model, _smallest(model), _largest(model))


def check_fleet_budget(fleet: FleetKnobs, models: Sequence[ModelKnobs]) -> None:
    """Refuse a budget over all models that they cannot meet together.

    Raises:
        ConfigError: It contradicts itself, or the bounds and budgets of the models.
    """
    smallest = sum(max(_smallest(model), model.gpu_budget_min) for model in models)
    largest = sum(min(_largest(model), model.gpu_budget_max or _largest(model)) for model in models)
    _check("fleet", fleet, smallest, largest, ", within the budgets of the models")


def budget_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """A model's budget that leaves its planner nothing to do."""
    yield from _warnings(place, model, _smallest(model), _largest(model))


def fleet_budget_warnings(fleet: FleetKnobs, models: Sequence[ModelKnobs]) -> Iterator[str]:
    """A budget over all models that leaves the planners nothing to do."""
    smallest, largest = sum(map(_smallest, models)), sum(map(_largest, models))
    if smallest < largest:
        yield from _warnings("fleet", fleet, smallest, largest)


def _smallest(model: ModelKnobs) -> int:
    """GPUs of the smallest fleet that the pools allow."""
    return sum(pool.replicas_min * pool.gpus_per_worker for pool in model.pools)


def _largest(model: ModelKnobs) -> int:
    return sum(pool.replicas_max * pool.gpus_per_worker for pool in model.pools)


def _check(place: str, knobs: ModelKnobs | FleetKnobs, smallest: int, largest: int, within: str = "") -> None:
    least, most = knobs.gpu_budget_min, knobs.gpu_budget_max
    if most is not None and least > most:
        raise ConfigError(
            f"{place}.gpu_budget_min", f"{least} is above gpu_budget_max {most}", "Lower it or raise gpu_budget_max."
        )
    if most is not None and most < smallest:
        problem = (
            f"{most} GPUs are fewer than the {smallest} of the smallest fleet (replicas_min x gpus_per_worker{within})"
        )
        raise ConfigError(f"{place}.gpu_budget_max", problem, f"Set it to {smallest} or more, or lower replicas_min.")
    if least > largest:
        problem = (
            f"{least} GPUs are more than the {largest} of the largest fleet (replicas_max x gpus_per_worker{within})"
        )
        raise ConfigError(f"{place}.gpu_budget_min", problem, f"Set it to {largest} or less, or raise replicas_max.")


def _warnings(place: str, knobs: ModelKnobs | FleetKnobs, smallest: int, largest: int) -> Iterator[str]:
    least, most = knobs.gpu_budget_min, knobs.gpu_budget_max
    if most == smallest:
        yield (
            f"{place}.gpu_budget_max: {most} GPUs are the smallest fleet, so nothing can grow. "
            "Raise it or lower a replicas_min."
        )
    if least == largest:
        yield (
            f"{place}.gpu_budget_min: {least} GPUs are the largest fleet, so nothing can shrink. "
            "Lower it or raise a replicas_max."
        )
