"""Configuration of the source of routers' traffic."""

from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, field

from loadline.core.vocabulary.scalars import Name
from loadline.engine_metrics.router_tables import ROUTERS, RouterTable
from loadline.engine_metrics.tables import MetricTable, Terms
from loadline.errors import ConfigError
from loadline.servers import Knobs, check_servers
from loadline.sources.config import SourceKnobs, read

Metric = Annotated[str, Meta(max_length=200, pattern=r"^[A-Za-z_:][A-Za-z0-9_:]*$|^$")]
_CUSTOM: Final = "custom"


class CustomMetricsKnobs(Knobs, frozen=True):
    """Names of the metrics of another proxy; empty: it has none. Latencies are histograms in seconds."""

    model_label: Metric = "model"
    arrived: Annotated[Metric, Meta(description="Counter of requests that arrived.")] = ""
    finished: Annotated[Metric, Meta(description="Counter of requests that ended.")] = ""
    in_flight: Annotated[Metric, Meta(description="Gauge of requests at workers.")] = ""
    queued: Annotated[Metric, Meta(description="Gauge of requests held, because no worker can take them.")] = ""
    ttft: Annotated[Metric, Meta(description="Histogram of the time to first token.")] = ""
    itl: Annotated[Metric, Meta(description="Histogram of the inter-token latency.")] = ""
    isl: Annotated[Metric, Meta(description="Histogram of input lengths.")] = ""
    osl: Annotated[Metric, Meta(description="Histogram of output lengths.")] = ""

    def table(self) -> RouterTable:
        """Return the metrics as a table."""

        def terms(**named: str) -> dict[str, Terms]:
            return {quantity: ((name,),) for quantity, name in named.items() if name}

        histograms = {"ttft_ms": self.ttft, "itl_ms": self.itl, "isl_tokens": self.isl, "osl_tokens": self.osl}
        return RouterTable(
            traffic=MetricTable(
                prefix="",
                group_labels=(self.model_label,) if self.model_label else (),
                gauges=terms(in_flight_requests=self.in_flight, queued_requests=self.queued),
                counters=terms(arrived_requests=self.arrived, finished_requests=self.finished),
                histograms={quantity: (name,) for quantity, name in histograms.items() if name},
            )
        )


class FrontendKnobs(Knobs, frozen=True, kw_only=True):
    """Replicas of one router."""

    name: Name
    router: Literal["llm-d", "dynamo", "vllm-router", "sglang-router", "litellm", "custom"]
    urls: Annotated[
        tuple[str, ...],
        Meta(min_length=1, max_length=4_096, description="Page of metrics of each replica."),
    ]
    model: Annotated[str, Meta(max_length=100, description="Model of metrics without the name of one.")] = ""
    metrics: CustomMetricsKnobs = CustomMetricsKnobs()
    token_file: Annotated[str, Meta(description="File with a bearer token.")] = ""
    ca_file: Annotated[str, Meta(description="CA bundle for https; empty: the system's.")] = ""

    @property
    def table(self) -> RouterTable:
        """The metrics of the router."""
        return self.metrics.table() if self.router == _CUSTOM else ROUTERS[self.router]

    def frontend(self, url: str) -> str:
        """Return the name of a replica as a frontend."""
        return f"{self.name}-{urlsplit(url).netloc}"[:100]


class GatewayKnobs(SourceKnobs, frozen=True, kw_only=True):
    """Configuration file of `loadline source gateway`."""

    frontends: Annotated[tuple[FrontendKnobs, ...], Meta(min_length=1, max_length=256)]
    models: Annotated[
        dict[str, Name], Meta(max_length=1_024, description="Names of models in the metrics, and the agent's.")
    ] = field(default_factory=dict)
    timeout_ms: Annotated[int, Meta(ge=10, le=60_000, description="Time limit of an answer.")] = 5_000


def read_gateway(path: Path) -> GatewayKnobs:
    """Read the configuration.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    return read(GatewayKnobs, path, _checked)


def _checked(knobs: GatewayKnobs) -> GatewayKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    names = []
    for index, frontend in enumerate(knobs.frontends):
        place = f"frontends[{index}]"
        check_servers(frontend.urls, f"{place}.urls", ("http", "https"))
        names += [frontend.frontend(url) for url in frontend.urls]
        if frontend.router == _CUSTOM and not (frontend.metrics.arrived or frontend.metrics.finished):
            raise ConfigError(f"{place}.metrics", "counts no requests", "Name the metric of arrived or finished.")
        if not knobs.models and not frontend.model:
            raise ConfigError(f"{place}.model", "is empty, and [models] too", "Name the models of the agent.")
    if len(set(names)) < len(names):
        raise ConfigError("frontends", "two replicas have the same name and address", "Rename one.")
    return knobs
