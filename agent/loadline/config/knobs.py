"""The sections of a configuration. What the core itself obeys is defined where it is obeyed, and gathered here."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loadline.config.defaults import NamespaceKnobs, ServiceClassKnobs
from loadline.core.decisions.drains import DrainKnobs
from loadline.core.decisions.leadership import LeadershipKnobs
from loadline.core.decisions.ledger import DecisionKnobs
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.scalars import Name

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Knobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the sections here: an unknown key is an error, not a silent nothing."""


class AgentKnobs(Knobs, frozen=True):
    """Who this agent is."""

    name: Annotated[
        str,
        Meta(
            max_length=128,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="Name of this agent; empty: host name and process id.",
        ),
    ] = ""
    namespace: Annotated[Name, Meta(description="Keys live under /loadline/<namespace>/ in etcd.")] = "default"
    root: Annotated[
        str, Meta(max_length=100, pattern=r"^[A-Za-z0-9_.-]+$", description="First tokens of every NATS subject.")
    ] = "loadline"
    only: Annotated[
        Literal["", "migration"],
        Meta(description="migration: migrate requests only; another autoscaler decides how many workers there are."),
    ] = ""
    log_format: Annotated[LogFormat, Meta(description="auto: console on a TTY, else json.")] = "auto"
    log_level: Annotated[LogLevel, Meta(description="Least level that is written.")] = "info"
    reload_interval_ms: Annotated[
        NotNegative,
        Meta(description="How often the configuration's file is looked at for a change; 0: only SIGHUP has it read."),
    ] = 2_000


class NatsKnobs(Knobs, frozen=True):
    """Where NATS is and how to log in."""

    servers: Annotated[
        tuple[str, ...], Meta(min_length=1, description="URLs; tls:// for TLS. No passwords here: use the files below.")
    ] = ("nats://127.0.0.1:4222",)
    user: Annotated[str, Meta(description="User name, with password_file.")] = ""
    password_file: Annotated[str, Meta(description="File that holds the password.")] = ""
    credentials_file: Annotated[str, Meta(description="A .creds file (JWT and nkey).")] = ""
    ca_file: Annotated[str, Meta(description="CA bundle for TLS; empty: the system's.")] = ""
    inbox_prefix: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_-]+$", description="First token of the subjects that replies come on.")
    ] = "_INBOX"
    frame_bytes_max: Annotated[Positive, Meta(description="Larger frames are dropped before they are parsed.")] = (
        262_144
    )


class EtcdKnobs(Knobs, frozen=True):
    """Where etcd is and how to log in."""

    endpoints: Annotated[
        tuple[str, ...], Meta(min_length=1, description="URLs of the members; tried in turn when one does not answer.")
    ] = ("http://127.0.0.1:2379",)
    user: Annotated[str, Meta(description="User name, with password_file.")] = ""
    password_file: Annotated[str, Meta(description="File that holds the password.")] = ""
    ca_file: Annotated[str, Meta(description="CA bundle for https.")] = ""
    cert_file: Annotated[str, Meta(description="Client certificate for https.")] = ""
    key_file: Annotated[str, Meta(description="Key of the client certificate.")] = ""
    timeout_ms: Annotated[Positive, Meta(description="Longest a single call may take.")] = 2_000
    insecure: Annotated[bool, Meta(description="Allow http:// to hosts other than this one.")] = False


class HttpKnobs(Knobs, frozen=True):
    """The HTTP side: /metrics, /healthz, /readyz."""

    host: Annotated[str, Meta(description="Address to listen on; loopback unless you say otherwise.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port to listen on; 0: none is opened.")] = 9464
    compatible_metrics: Annotated[
        tuple[Literal["inferno", "wva"], ...],
        Meta(description="Whose names replica counts have too: those of llm-d's autoscaler, for its dashboards."),
    ] = ()


class JournalKnobs(Knobs, frozen=True):
    """The record of every turn, for `loadline replay` and `loadline explain`."""

    directory: Annotated[str, Meta(description="Folder for the segments; empty: no journal.")] = ""
    segment_bytes_max: Annotated[
        Positive, Meta(description="A new segment, opened by a snapshot, begins at this size.")
    ] = 67_108_864
    bytes_max: Annotated[Positive, Meta(description="The oldest segments are deleted above this size.")] = 1_073_741_824


class RuntimeKnobs(Knobs, frozen=True):
    """The loop."""

    batch_max: Annotated[Positive, Meta(description="Most frames in one turn.")] = 512
    inbox_frames_max: Annotated[
        Positive, Meta(description="Frames that may wait; the oldest of the same subject gives way.")
    ] = 65_536
    turn_spacing_ms: Annotated[NotNegative, Meta(description="Least time between the starts of two turns.")] = 2
    status_interval_ms: Annotated[Positive, Meta(description="How often the status is published.")] = 1_000


class Config(Knobs, frozen=True):
    """A whole configuration: a file whose layers are merged into its models; see ``file_schema`` for its keys."""

    models: Annotated[tuple[ModelKnobs, ...], Meta(min_length=1, max_length=1024, description="The served models.")]
    accelerators: Annotated[tuple[AcceleratorKnobs, ...], Meta(max_length=64, description="What pools run on.")] = ()
    namespaces: Annotated[tuple[NamespaceKnobs, ...], Meta(max_length=256, description="Whose models these are.")] = ()
    service_classes: Annotated[
        tuple[ServiceClassKnobs, ...], Meta(max_length=64, description="What is promised to the users of models.")
    ] = ()
    agent: AgentKnobs = AgentKnobs()
    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()
    http: HttpKnobs = HttpKnobs()
    journal: JournalKnobs = JournalKnobs()
    runtime: RuntimeKnobs = RuntimeKnobs()
    leadership: LeadershipKnobs = LeadershipKnobs()
    decisions: DecisionKnobs = DecisionKnobs()
    drain: DrainKnobs = DrainKnobs()
    fleet: FleetKnobs = FleetKnobs()
    allocation: AllocationKnobs = AllocationKnobs()
