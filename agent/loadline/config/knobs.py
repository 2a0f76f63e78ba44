"""Sections of a configuration. Sections that the core uses are defined next to their use, and combined here."""

from typing import Annotated, Literal

from msgspec import Meta

from loadline.config.defaults import NamespaceKnobs, ServiceClassKnobs
from loadline.core.decisions.drains import DrainKnobs
from loadline.core.decisions.leadership import LeadershipKnobs
from loadline.core.decisions.ledger import DecisionKnobs
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.scalars import Name
from loadline.servers import EtcdKnobs, Knobs, NatsKnobs, PathText, Positive

Port = Annotated[int, Meta(ge=0, le=65535)]
NotNegative = Annotated[int, Meta(ge=0)]
LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]


class AgentKnobs(Knobs, frozen=True):
    """Identity of the agent, logs, and reload of the configuration."""

    name: Annotated[
        str,
        Meta(
            max_length=100,
            pattern=r"^[^\x00-\x1f\x7f]*\Z",
            description="Name of this agent; empty: host name and process id.",
        ),
    ] = ""
    namespace: Annotated[Name, Meta(description="The agent's keys in etcd begin with /loadline/<namespace>/.")] = (
        "default"
    )
    root: Annotated[
        str, Meta(max_length=100, pattern=r"^[A-Za-z0-9_.-]+\Z", description="Prefix of every NATS subject.")
    ] = "loadline"
    only: Annotated[
        Literal["", "migration"],
        Meta(description="migration: only migrate requests, while another autoscaler sets the worker counts."),
    ] = ""
    log_format: Annotated[LogFormat, Meta(description="auto: console on a TTY, else json.")] = "auto"
    log_level: Annotated[LogLevel, Meta(description="Minimum level of log messages.")] = "info"
    reload_interval_ms: Annotated[
        NotNegative,
        Meta(description="Time between two checks of the configuration file for changes; 0: reload on SIGHUP only."),
    ] = 2_000


class HttpKnobs(Knobs, frozen=True):
    """HTTP server: /metrics, /healthz, /readyz, and the live page at /."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port to listen on; 0 disables the server.")] = 9464
    token_file: Annotated[
        str,
        Meta(
            description="File with a token of 16 characters or more, with which the live page is shown to other "
            "machines and can pause models; empty: it pauses none, and is shown if host is a loopback address, "
            "otherwise to nobody."
        ),
    ] = ""
    compatible_metrics: Annotated[
        tuple[Literal["inferno", "wva"], ...],
        Meta(description="Additional names of replica metrics, as in llm-d's autoscaler, for its dashboards."),
    ] = ()


class JournalKnobs(Knobs, frozen=True):
    """Record of every turn, for `loadline replay` and `loadline explain`."""

    directory: Annotated[PathText, Meta(description="Folder of the segments; empty: no journal.")] = ""
    segment_bytes_max: Annotated[
        Positive,
        Meta(
            description="Size at which a new segment begins, with a snapshot; at most an eighth of `bytes_max`, or of "
            "the part of it that a shard has."
        ),
    ] = 67_108_864
    bytes_max: Annotated[Positive, Meta(description="Size of all segments above which the oldest are deleted.")] = (
        1_073_741_824
    )


class RuntimeKnobs(Knobs, frozen=True):
    """Turns: the agent handles the received messages in batches, one batch per turn."""

    batch_max: Annotated[Positive, Meta(description="Maximum frames (received messages) in one turn.")] = 512
    inbox_frames_max: Annotated[
        Positive,
        Meta(
            description="Maximum frames that wait for a turn; beyond it, the senders with the most frames lose their "
            "oldest."
        ),
    ] = 65_536
    turn_spacing_ms: Annotated[NotNegative, Meta(description="Minimum time between the starts of two turns.")] = 2
    status_interval_ms: Annotated[Positive, Meta(description="Interval of status messages.")] = 1_000


class OtelKnobs(Knobs, frozen=True):
    """OpenTelemetry: one trace a decision. The standard variables OTEL_* set endpoint, sampling and resource."""

    traces: Annotated[bool, Meta(description="Export traces by OTLP over HTTP. Needs the extra `otel`.")] = False


class SharingKnobs(Knobs, frozen=True):
    """Sharing of the models out to all agents of a namespace, instead of one that leads all while others stand by."""

    shards: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Number of parts of the models that agents share out, the same for all agents; 1: one agent"
            " leads all models. Ten for each agent divide them evenly. Models that draw on the same limited GPUs are in"
            " one part.",
        ),
    ] = 1


class TensorboardKnobs(Knobs, frozen=True):
    """TensorBoard: event files with the scalars of Dynamo's first planner."""

    log_dir: Annotated[
        PathText, Meta(description="Folder of the files; empty: none. Needs the extra `tensorboard`.")
    ] = ""
    interval_ms: Annotated[Positive, Meta(description="Time between two samples.")] = 10_000


class Config(Knobs, frozen=True):
    """Configuration of an agent, with layers merged into the models; ``file_schema`` has the keys of its file."""

    models: Annotated[tuple[ModelKnobs, ...], Meta(min_length=1, max_length=1024, description="The served models.")]
    accelerators: Annotated[
        tuple[AcceleratorKnobs, ...], Meta(max_length=64, description="Accelerators of pools.")
    ] = ()
    namespaces: Annotated[tuple[NamespaceKnobs, ...], Meta(max_length=256, description="Teams that own models.")] = ()
    service_classes: Annotated[
        tuple[ServiceClassKnobs, ...], Meta(max_length=64, description="Priorities and objectives shared by models.")
    ] = ()
    agent: AgentKnobs = AgentKnobs()
    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()
    http: HttpKnobs = HttpKnobs()
    journal: JournalKnobs = JournalKnobs()
    otel: OtelKnobs = OtelKnobs()
    tensorboard: TensorboardKnobs = TensorboardKnobs()
    runtime: RuntimeKnobs = RuntimeKnobs()
    leadership: LeadershipKnobs = LeadershipKnobs()
    sharing: SharingKnobs = SharingKnobs()
    decisions: DecisionKnobs = DecisionKnobs()
    drain: DrainKnobs = DrainKnobs()
    fleet: FleetKnobs = FleetKnobs()
    allocation: AllocationKnobs = AllocationKnobs()
