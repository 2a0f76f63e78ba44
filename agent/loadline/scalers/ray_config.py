"""Configuration file of the scaler for Ray Serve: the deployment of each pool."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.scalers.config_file import ScalerKnobs, ScalerName, check_names, pools_by_place, read_as
from loadline.servers import Knobs, check_server


class RayPoolKnobs(Knobs, frozen=True):
    """Pool whose workers are the replicas of one deployment."""

    name: Annotated[Name, Meta(description="Name of the pool, as in the agent's configuration.")]
    application: Annotated[str, Meta(min_length=1, description="Application of Ray Serve.")]
    deployment: Annotated[str, Meta(min_length=1, description="Deployment in it, such as LLMServer:llama.")]


class RayModelKnobs(Knobs, frozen=True):
    """Model and its pools."""

    name: Name
    pools: Annotated[tuple[RayPoolKnobs, ...], Meta(min_length=1, max_length=64)]


class RayKnobs(ScalerKnobs, frozen=True):
    """Configuration file of the scaler for Ray Serve."""

    models: Annotated[tuple[RayModelKnobs, ...], Meta(min_length=1, max_length=1024)]
    name: ScalerName = "ray"
    address: Annotated[str, Meta(description="URL of Ray's dashboard.")] = "http://127.0.0.1:8265"
    token_file: Annotated[str, Meta(description="File with Ray's token, read again for each request; empty: none.")] = (
        ""
    )
    ca_file: Annotated[str, Meta(description="CA bundle for https.")] = ""
    timeout_ms: Annotated[int, Meta(ge=1, le=600_000, description="Time limit of an answer.")] = 5_000
    poll_ms: Annotated[int, Meta(ge=50, le=600_000, description="Time between two reads of all deployments.")] = 500


def read(path: Path) -> RayKnobs:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    return read_as(RayKnobs, path, _checked)


def _checked(knobs: RayKnobs) -> RayKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    check_server(knobs.address, "address", ("http", "https"))
    check_names(knobs.models)
    deployments: dict[tuple[str, str], str] = {}
    for place, pool in pools_by_place(knobs.models):
        deployment = (pool.application, pool.deployment)
        if deployment in deployments:
            problem = f"has the deployment of {deployments[deployment]}"
            raise ConfigError(place, problem, "Give each pool a deployment of its own.")
        deployments[deployment] = place
    return knobs
