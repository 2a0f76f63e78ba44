"""Configuration file of the scaler for Dynamo's virtual connector: the Dynamo namespace of each model."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from loadline.core.vocabulary.scalars import Name, Role
from loadline.errors import ConfigError
from loadline.scalers.config_file import ScalerKnobs, ScalerName, check_names, read_as
from loadline.scalers.dynamo_keys import COUNT_OF_ROLE
from loadline.servers import EtcdKnobs, Knobs, check_servers


class ConnectorPoolKnobs(Knobs, frozen=True):
    """Pool whose count is one of Dynamo's two."""

    name: Annotated[Name, Meta(description="Name of the pool, as in the agent's configuration.")]
    role: Annotated[Role, Meta(description="prefill, decode or aggregated; Dynamo counts aggregated as decode.")]


class ConnectorModelKnobs(Knobs, frozen=True):
    """Model, and the Dynamo deployment that serves it."""

    name: Name
    namespace: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_.-]+\Z", description="Dynamo's namespace of the deployment (DYN_NAMESPACE).")
    ]
    pools: Annotated[tuple[ConnectorPoolKnobs, ...], Meta(min_length=1, max_length=64)]


class DynamoVirtualKnobs(ScalerKnobs, frozen=True):
    """Configuration file of the scaler for Dynamo's virtual connector."""

    models: Annotated[tuple[ConnectorModelKnobs, ...], Meta(min_length=1, max_length=1024)]
    etcd: Annotated[EtcdKnobs, Meta(description="Dynamo's etcd.")] = EtcdKnobs()
    name: ScalerName = "dynamo-virtual"
    acknowledge_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            description="Time for Dynamo's client to acknowledge a decision; then the next one replaces it.",
        ),
    ] = 1_800_000


def read(path: Path) -> DynamoVirtualKnobs:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    return read_as(DynamoVirtualKnobs, path, _checked)


def _checked(knobs: DynamoVirtualKnobs) -> DynamoVirtualKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    check_servers(knobs.etcd.endpoints, "etcd.endpoints", ("http", "https"))
    check_names(knobs.models)
    namespaces: dict[str, str] = {}
    for index, model in enumerate(knobs.models):
        if model.namespace in namespaces:
            problem = f"has the namespace of {namespaces[model.namespace]}, and Dynamo has two counts for each"
            raise ConfigError(f"models[{index}].namespace", problem, "Deploy each model in a namespace of its own.")
        namespaces[model.namespace] = model.name
        _check_roles(index, model)
    return knobs


def _check_roles(index: int, model: ConnectorModelKnobs) -> None:
    """Check that each count of Dynamo has one pool of a model, the one with this index in the file.

    Raises:
        ConfigError: A role has no count, or two pools share one.
    """
    pools: dict[str, str] = {}
    for number, pool in enumerate(model.pools):
        place = f"models[{index}].pools[{number}]"
        key = COUNT_OF_ROLE.get(pool.role)
        if key is None:
            raise ConfigError(f"{place}.role", f"Dynamo has no count of {pool.role} workers", "Use another scaler.")
        if key in pools:
            problem = f"has the count {key}, as {pools[key]} has, and Dynamo has one for each role"
            remedy = "Merge the pools, or serve the second one as a model with a Dynamo namespace of its own."
            raise ConfigError(place, problem, remedy)
        pools[key] = pool.name
