"""Validation of GPU capacity and quotas: unknown types, and limits below minimum replicas, are errors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from loadline.config.knobs import Config
from loadline.config.schedules import highest_minimum
from loadline.core.engines.accelerator import UNNAMED_ACCELERATOR
from loadline.core.planning.allocation.supplies import DEFAULT, limits_on
from loadline.errors import ConfigError
from loadline.toml.checking import did_you_mean


class _PoolGpus(NamedTuple):
    """GPUs of a pool at minimum replicas, and at the highest minimum of its schedules."""

    place: str
    namespace: str
    accelerator: str
    gpu_type: str
    gpus: int
    scheduled_gpus: int


def gpu_limit_errors(config: Config) -> Iterator[ConfigError]:
    """Yield errors of limits that name an unknown GPU type, or that the minimum replicas of pools exceed."""
    known = {one.gpu_type for one in config.accelerators}
    for index, one in enumerate(config.accelerators):
        if one.gpu_type == DEFAULT or "/" in one.gpu_type:
            problem = f"{one.gpu_type!r} is reserved in quotas"
            yield ConfigError(f"accelerators[{index}].type", problem, 'Choose another type, without "/".')
    yield from _type_errors(config.allocation.capacity, "allocation.capacity", known)
    for index, namespace in enumerate(config.namespaces):
        yield from _type_errors(namespace.gpu_quota, f"namespaces[{index}].gpu_quota", known | {DEFAULT})
    yield from _minimum_errors(config)


def _type_errors(limits: Mapping[str, int], place: str, known: set[str]) -> Iterator[ConfigError]:
    for kind in limits:
        if kind not in known:
            remedy = did_you_mean(kind, known) if known else "Add an [[accelerators]] table of that type."
            yield ConfigError(f"{place}.{kind}", f"no accelerator has the type {kind!r}", remedy)


def _minimum_errors(config: Config) -> Iterator[ConfigError]:
    """Yield errors of limits that do not cover the minimum replicas, which are always reserved."""
    for place, limit, pools in _limits(config):
        gpus = sum(one.gpus for one in pools)
        if gpus <= limit:
            continue
        names = ", ".join(one.place for one in pools if one.gpus)
        needed = f"{gpus} of the minimum replicas (replicas_min x gpus_per_worker) of {names}"
        problem = f"{limit} GPUs are fewer than the {needed}"
        remedy = f"Set it to {gpus} or more, or lower replicas_min."
        if not any(one.accelerator for one in pools):
            remedy = f"Set the accelerator of each pool, since a pool without one has no GPU type. Or: {remedy}"
        yield ConfigError(place, problem, remedy)


def _limits(config: Config) -> Iterator[tuple[str, int, list[_PoolGpus]]]:
    """Yield each limit: its place, its GPUs and the pools that it applies to."""
    limited: dict[str, list[_PoolGpus]] = {}
    limits: dict[str, int] = {}
    for pool in _pools(config):
        for supply, limit in limits_on(pool.gpu_type, pool.namespace, config.allocation.capacity, _quotas(config)):
            limits[supply] = limit
            limited.setdefault(supply, []).append(pool)
    for supply, pools in limited.items():
        namespace, quota, kind = supply.rpartition("/")
        place = f"allocation.capacity.{kind}"
        if quota:
            at = next(index for index, one in enumerate(config.namespaces) if one.name == namespace)
            place = f"namespaces[{at}].gpu_quota.{kind if kind in config.namespaces[at].gpu_quota else DEFAULT}"
        yield place, limits[supply], pools


def schedule_limit_warnings(config: Config) -> Iterator[str]:
    """Yield warnings about schedules whose minimums exceed a limit when their windows overlap."""
    for place, limit, pools in _limits(config):
        yield from _scheduled_above(place, limit, pools)
    if config.fleet.gpu_budget_max is not None:
        yield from _scheduled_above("fleet.gpu_budget_max", config.fleet.gpu_budget_max, list(_pools(config)))


def _scheduled_above(place: str, limit: int, pools: Sequence[_PoolGpus]) -> Iterator[str]:
    gpus = sum(one.scheduled_gpus for one in pools)
    if gpus > limit:
        names = ", ".join(one.place for one in pools if one.scheduled_gpus > one.gpus)
        yield (
            f"{place}: {limit} GPUs are fewer than the {gpus} that all pools need when the schedules of {names} "
            "overlap; schedules never exceed a limit. Raise it, or lower a replicas_min."
        )


def unlimited_pool_warnings(config: Config) -> Iterator[str]:
    """Yield warnings about pools without a GPU type, to which no limit applies."""
    for pool in _pools(config):
        limits = ["allocation.capacity"] if config.allocation.capacity else []
        limits += [
            f"namespaces[{index}].gpu_quota"
            for index, one in enumerate(config.namespaces)
            if one.name == pool.namespace and one.gpu_quota.keys() - {DEFAULT}
        ]
        if limits and not pool.accelerator:
            yield (
                f"{pool.place}.accelerator: is not set, so no limit in {' or '.join(limits)} applies to the pool. "
                "Set it to the name of one of [[accelerators]]."
            )


def _quotas(config: Config) -> dict[str, dict[str, int]]:
    return {one.name: one.gpu_quota for one in config.namespaces}


def _pools(config: Config) -> Iterator[_PoolGpus]:
    accelerators = {one.name: one for one in config.accelerators}
    for index, model in enumerate(config.models):
        for at, pool in enumerate(model.pools):
            gpu_type = accelerators.get(pool.accelerator, UNNAMED_ACCELERATOR).gpu_type
            gpus, scheduled_gpus = (
                count * pool.gpus_per_worker for count in (pool.replicas_min, highest_minimum(pool))
            )
            place = f"models[{index}].pools[{at}]"
            yield _PoolGpus(place, model.namespace, pool.accelerator, gpu_type, gpus, scheduled_gpus)
