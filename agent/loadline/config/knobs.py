"""Every knob: its default, its unit in its name, its sentence."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loadline.core.events import Name, Role
from loadline.core.planning.guard import GuardKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Knobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all sections: an unknown key is an error, not a silent nothing."""


class AgentKnobs(Knobs, frozen=True):
    """Who this agent is."""

    name: Annotated[str, Meta(description="Name of this agent; empty: host name and process id.")] = ""
    namespace: Annotated[Name, Meta(description="Keys live under /loadline/<namespace>/ in etcd.")] = "default"
    root: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", description="First tokens of every NATS subject.")] = (
        "loadline"
    )
    log_format: Annotated[LogFormat, Meta(description="auto: console on a TTY, else json.")] = "auto"
    log_level: Annotated[LogLevel, Meta(description="Least level that is written.")] = "info"


class NatsKnobs(Knobs, frozen=True):
    """Where NATS is and how to log in."""

    servers: Annotated[
        tuple[str, ...], Meta(min_length=1, description="URLs; tls:// for TLS. No passwords here: use the files below.")
    ] = ("nats://127.0.0.1:4222",)
    user: Annotated[str, Meta(description="User name, with password_file.")] = ""
    password_file: Annotated[str, Meta(description="File that holds the password.")] = ""
    credentials_file: Annotated[str, Meta(description="A .creds file (JWT and nkey).")] = ""
    ca_file: Annotated[str, Meta(description="CA bundle for TLS; empty: the system's.")] = ""
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


class LeadershipKnobs(Knobs, frozen=True):
    """Who decides."""

    lease_ttl_s: Annotated[
        int, Meta(ge=2, le=600, description="TTL of the leader's lease: how long a dead leader blocks.")
    ] = 10
    margin_ms: Annotated[
        NotNegative, Meta(description="The leader stops committing this long before its lease may end.")
    ] = 2_000
    retry_ms: Annotated[Positive, Meta(description="Time between two campaigns while nobody is known to lead.")] = 500


class DecisionKnobs(Knobs, frozen=True):
    """How a decision becomes true."""

    ttl_ms: Annotated[Positive, Meta(description="A decision that is not applied by then expires, with an alarm.")] = (
        600_000
    )
    announce_interval_ms: Annotated[
        Positive, Meta(description="How often it is announced until a scaler accepts it.")
    ] = 1_000
    announce_interval_max_ms: Annotated[
        Positive, Meta(description="How often at most, once it has been announced for a while.")
    ] = 10_000
    retry_backoff_ms: Annotated[
        Positive, Meta(description="Wait after a decision that expired or was refused; doubles.")
    ] = 5_000
    retry_backoff_max_ms: Annotated[Positive, Meta(description="Longest such wait.")] = 300_000


class DrainKnobs(Knobs, frozen=True):
    """A worker's way out."""

    ttl_ms: Annotated[Positive, Meta(description="How long a worker may take to drain.")] = 600_000
    retry_ms: Annotated[
        Positive, Meta(description="Time between two drain commands to a worker that does not answer.")
    ] = 2_000
    revoke_after: Annotated[Positive, Meta(description="Unanswered commands after which its lease is revoked.")] = 3


class FleetKnobs(Knobs, frozen=True):
    """What is believed of workers."""

    stale_after_ms: Annotated[
        Positive, Meta(description="A worker that has not reported for this long is not fresh.")
    ] = 5_000
    quorum_ratio: Annotated[
        float, Meta(gt=0, le=1, description="Share of ready workers that must be fresh before a shrink.")
    ] = 0.8
    workers_max: Annotated[Positive, Meta(description="Workers that are kept; more are refused.")] = 20_000
    frontends_max: Annotated[Positive, Meta(description="Frontends of one model that are kept; more are refused.")] = (
        256
    )
    traffic_window_ms: Annotated[Positive, Meta(description="Length of the rolling traffic window.")] = 60_000


class PoolKnobs(Knobs, frozen=True):
    """Interchangeable workers: same model, role and accelerator arrangement."""

    name: Annotated[Name, Meta(description="Name of the pool, unique within its model.")]
    role: Annotated[Role, Meta(description="prefill, decode or aggregated.")]
    gpus_per_worker: Annotated[Positive, Meta(le=4096, description="GPUs that one worker occupies.")] = 1
    replicas_min: Annotated[NotNegative, Meta(description="Never fewer workers.")] = 1
    replicas_max: Annotated[Positive, Meta(description="Never more workers: a hard cap on cost.")] = 8
    start_deadline_ms: Annotated[Positive, Meta(description="A worker asked for counts as supply for this long.")] = (
        600_000
    )


class ModelKnobs(Knobs, frozen=True):
    """A served model: its pools, its planner and its rails."""

    name: Annotated[Name, Meta(description="Name of the model as its workers and frontends report it.")]
    pools: Annotated[tuple[PoolKnobs, ...], Meta(min_length=1, max_length=64, description="Its pools.")]
    planner: Annotated[str, Meta(description="Which planner decides.")] = "threshold"
    no_operation: Annotated[bool, Meta(description="Advise only: explain what would be done, decide nothing.")] = False
    gpu_budget_max: Annotated[Positive | None, Meta(description="Most GPUs over all pools of the model.")] = None
    gpu_budget_min: Annotated[int, Meta(ge=0, description="Fewest GPUs over all pools of the model.")] = 0
    guard: GuardKnobs = GuardKnobs()
    threshold: ThresholdKnobs = ThresholdKnobs()


class Config(Knobs, frozen=True):
    """A whole configuration file."""

    models: Annotated[tuple[ModelKnobs, ...], Meta(min_length=1, max_length=1024, description="The served models.")]
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
