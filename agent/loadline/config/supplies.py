"""What a configuration says of limited GPUs: limits of what does not exist, or below the least counts, are errors."""

from collections.abc import Iterator, Mapping

from loadline.config.knobs import Config
from loadline.config.names import did_you_mean
from loadline.core.models.accelerator import UNSAID
from loadline.core.planning.supplies import DEFAULT, limits_on
from loadline.errors import ConfigError


def check_supplies(config: Config) -> None:
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
    least: dict[str, int] = {}
    limits: dict[str, int] = {}
    for namespace, kind, gpus in _least_gpus(config):
        for supply, limit in limits_on(kind, namespace, config.allocation.capacity, _quotas(config)):
            limits[supply] = limit
            least[supply] = least.get(supply, 0) + gpus
    for supply, gpus in least.items():
        if gpus <= limits[supply]:
            continue
        namespace, quota, kind = supply.rpartition("/")
        place = f"allocation.capacity.{kind}"
        if quota:
            at = next(index for index, one in enumerate(config.namespaces) if one.name == namespace)
            place = f"namespaces[{at}].gpu_quota.{kind if kind in config.namespaces[at].gpu_quota else DEFAULT}"
        problem = (
            f"{limits[supply]} GPUs are fewer than the {gpus} of the least counts (replicas_min x gpus_per_worker)"
        )
        raise ConfigError(place, problem, f"Set it to {gpus} or more, or lower replicas_min.")


def supply_warnings(config: Config) -> Iterator[str]:
    """Pools that no limit binds although there are some."""
    limited = bool(config.allocation.capacity)
    for index, model in enumerate(config.models):
        for at, pool in enumerate(model.pools):
            if limited and not pool.accelerator:
                yield (
                    f"models[{index}].pools[{at}].accelerator: it names none, so allocation.capacity does not bind it. "
                    "Name one of [[accelerators]]."
                )


def _quotas(config: Config) -> dict[str, dict[str, int]]:
    return {one.name: one.gpu_quota for one in config.namespaces}


def _least_gpus(config: Config) -> Iterator[tuple[str, str, int]]:
    """Namespace, type and GPUs of the least count of every pool."""
    accelerators = {one.name: one for one in config.accelerators}
    for model in config.models:
        for pool in model.pools:
            accelerator = accelerators.get(pool.accelerator, UNSAID)
            yield model.namespace, accelerator.gpu_type, pool.replicas_min * pool.gpus_per_worker
