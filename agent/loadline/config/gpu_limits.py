"""What a configuration says of limited GPUs: limits of what does not exist, or below the least counts, are errors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from loadline.config.knobs import Config
from loadline.config.names import did_you_mean
from loadline.config.schedules import highest_minimum
from loadline.core.engines.accelerator import UNNAMED_ACCELERATOR
from loadline.core.planning.allocation.supplies import DEFAULT, limits_on
from loadline.errors import ConfigError


class _Taker(NamedTuple):
    """A pool, the GPUs of its least count, and those of its highest floor."""

    place: str
    namespace: str
    accelerator: str
    gpu_type: str
    gpus: int
    floor_gpus: int


def check_gpu_limits(config: Config) -> None:
    """Refuse limits that mean nothing, or that no fleet can keep.

    Raises:
        ConfigError: A limit is of a type that does not exist, or the least counts of pools exceed it.
    """
    known = {one.gpu_type for one in config.accelerators}
    for index, one in enumerate(config.accelerators):
        if one.gpu_type == DEFAULT or "/" in one.gpu_type:
            problem = f"{one.gpu_type!r} cannot be limited: quotas have a meaning for it"
            raise ConfigError(f"accelerators[{index}].type", problem, 'Choose another type, without "/".')
    _check_types(config.allocation.capacity, "allocation.capacity", known)
    for index, namespace in enumerate(config.namespaces):
        _check_types(namespace.gpu_quota, f"namespaces[{index}].gpu_quota", known | {DEFAULT})
    _check_least(config)


def _check_types(limits: Mapping[str, int], place: str, known: set[str]) -> None:
    for kind in limits:
        if kind not in known:
            remedy = did_you_mean(kind, known) if known else "Write an [[accelerators]] of that type."
            raise ConfigError(f"{place}.{kind}", f"{kind!r} is the type of no accelerator", remedy)


def _check_least(config: Config) -> None:
    """Least counts take GPUs whatever is short: they must be there."""
    for place, limit, taking in _limited(config):
        gpus = sum(taker.gpus for taker in taking)
        if gpus <= limit:
            continue
        pools = ", ".join(taker.place for taker in taking if taker.gpus)
        problem = (
            f"{limit} GPUs are fewer than the {gpus} of the least counts (replicas_min x gpus_per_worker) of {pools}"
        )
        remedy = f"Set it to {gpus} or more, or lower replicas_min."
        if not any(taker.accelerator for taker in taking):
            remedy = f"A pool without an accelerator has no type: name one of [[accelerators]] in it. Or: {remedy}"
        raise ConfigError(place, problem, remedy)


def _limited(config: Config) -> Iterator[tuple[str, int, list[_Taker]]]:
    """Each limit: where it is written, its GPUs, and who takes of them."""
    takers: dict[str, list[_Taker]] = {}
    limits: dict[str, int] = {}
    for taker in _takers(config):
        for supply, limit in limits_on(taker.gpu_type, taker.namespace, config.allocation.capacity, _quotas(config)):
            limits[supply] = limit
            takers.setdefault(supply, []).append(taker)
    for supply, taking in takers.items():
        namespace, quota, kind = supply.rpartition("/")
        place = f"allocation.capacity.{kind}"
        if quota:
            at = next(index for index, one in enumerate(config.namespaces) if one.name == namespace)
            place = f"namespaces[{at}].gpu_quota.{kind if kind in config.namespaces[at].gpu_quota else DEFAULT}"
        yield place, limits[supply], taking


def schedule_limit_warnings(config: Config) -> Iterator[str]:
    """Floors of schedules for which there are not enough GPUs where their windows meet."""
    for place, limit, taking in _limited(config):
        yield from _floors_above(place, limit, taking)
    if config.fleet.gpu_budget_max is not None:
        yield from _floors_above("fleet.gpu_budget_max", config.fleet.gpu_budget_max, list(_takers(config)))


def _floors_above(place: str, limit: int, taking: Sequence[_Taker]) -> Iterator[str]:
    gpus = sum(taker.floor_gpus for taker in taking)
    if gpus > limit:
        pools = ", ".join(taker.place for taker in taking if taker.floor_gpus > taker.gpus)
        yield (
            f"{place}: {limit} GPUs are fewer than the {gpus} that all pools have to have at least where the schedules "
            f"of {pools} meet, and it is never exceeded for a schedule. Raise it, or lower a replicas_min."
        )


def unlimited_pool_warnings(config: Config) -> Iterator[str]:
    """Pools that limits of types do not bind, for they have no type."""
    for taker in _takers(config):
        limits = ["allocation.capacity"] if config.allocation.capacity else []
        limits += [
            f"namespaces[{index}].gpu_quota"
            for index, one in enumerate(config.namespaces)
            if one.name == taker.namespace and one.gpu_quota.keys() - {DEFAULT}
        ]
        if limits and not taker.accelerator:
            yield (
                f"{taker.place}.accelerator: it names none, so no type in {' or '.join(limits)} binds it. "
                "Name one of [[accelerators]]."
            )


def _quotas(config: Config) -> dict[str, dict[str, int]]:
    return {one.name: one.gpu_quota for one in config.namespaces}


def _takers(config: Config) -> Iterator[_Taker]:
    accelerators = {one.name: one for one in config.accelerators}
    for index, model in enumerate(config.models):
        for at, pool in enumerate(model.pools):
            gpu_type = accelerators.get(pool.accelerator, UNNAMED_ACCELERATOR).gpu_type
            gpus, floor_gpus = (count * pool.gpus_per_worker for count in (pool.replicas_min, highest_minimum(pool)))
            place = f"models[{index}].pools[{at}]"
            yield _Taker(place, model.namespace, pool.accelerator, gpu_type, gpus, floor_gpus)
