"""Configuration of the source that reads a Prometheus server."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from loadline.core.vocabulary.scalars import Name
from loadline.errors import ConfigError
from loadline.servers import Knobs, check_server
from loadline.sources.config import RegisteringKnobs, WorkerKnobs, read, require_pools

Label = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
Selector = Annotated[str, Meta(max_length=1_000, description='Matchers of labels, such as job="vllm"; empty: all.')]


class PrometheusPoolKnobs(WorkerKnobs, frozen=True, kw_only=True):
    """Engines of one pool."""

    engine: Annotated[
        Literal["vllm", "sglang", "trtllm", "tgi", "llm-d-sim"],
        Meta(description="Engine, whose metrics are asked for."),
    ]
    selector: Selector = ""
    worker_label: Annotated[Label, Meta(description="Label that names a worker.")] = "pod"
    traffic: Annotated[
        bool, Meta(description="Report the engines' traffic too, for fleets whose routers are not read.")
    ] = False


class PrometheusFrontendKnobs(Knobs, frozen=True, kw_only=True):
    """Replicas of one router."""

    name: Name
    router: Literal["llm-d", "dynamo", "vllm-router", "sglang-router", "litellm"]
    selector: Selector = ""
    replica_label: Annotated[Label, Meta(description="Label that names a replica.")] = "pod"
    model: Annotated[str, Meta(max_length=100, description="Model of metrics without the name of one.")] = ""


class PrometheusKnobs(RegisteringKnobs, frozen=True, kw_only=True):
    """Configuration file of `loadline source prometheus`."""

    report_interval_ms: Annotated[int, Meta(ge=50, le=60_000, description="Time between two queries and reports.")] = (
        2_000
    )
    lost_after_s: Annotated[
        int, Meta(ge=2, le=3_600, description="A worker without values for longer, while others have some, is removed.")
    ] = 30
    url: Annotated[str, Meta(description="Prometheus, or what has its API; with a prefix if it has one.")] = (
        "http://127.0.0.1:9090"
    )
    max_age_s: Annotated[
        int, Meta(ge=1, le=3_600, description="Age up to which a value counts: two intervals of Prometheus, or more.")
    ] = 60
    timeout_ms: Annotated[int, Meta(ge=10, le=60_000, description="Time limit of an answer.")] = 5_000
    token_file: Annotated[str, Meta(description="File with a bearer token.")] = ""
    ca_file: Annotated[str, Meta(description="CA bundle for https; empty: the system's.")] = ""
    pools: Annotated[tuple[PrometheusPoolKnobs, ...], Meta(max_length=64)] = ()
    frontends: Annotated[tuple[PrometheusFrontendKnobs, ...], Meta(max_length=64)] = ()
    models: Annotated[
        dict[str, Name], Meta(max_length=1_024, description="Names of models in routers' metrics, and the agent's.")
    ] = field(default_factory=dict)

    @property
    def returned_after_s(self) -> int:
        """Time in which all targets are read again, in s: they are within an interval, which may be 60 s."""
        return max(self.lost_after_s, self.max_age_s)


def read_prometheus(path: Path) -> PrometheusKnobs:
    """Read the configuration.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    return read(PrometheusKnobs, path, _checked)


def _checked(knobs: PrometheusKnobs) -> PrometheusKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    check_server(knobs.url, "url", ("http", "https"))
    require_pools([(pool.model, pool.name) for pool in knobs.pools])
    if not knobs.pools and not knobs.frontends:
        raise ConfigError("pools", "is missing, and frontends too", "Write [[pools]] or [[frontends]].")
    for index, frontend in enumerate(knobs.frontends):
        if not knobs.models and not frontend.model:
            raise ConfigError(f"frontends[{index}].model", "is empty, and [models] too", "Name the agent's models.")
    return knobs
