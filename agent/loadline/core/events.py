"""What happened: one frozen Struct for each fact that reaches the controller.

Events are the only input of the core and the content of the journal, so each is small, immutable and encodable.
Structs that are also sent over the wire (``WorkerSample``, ``WorkerRecord``) carry the bounds that the decoder
enforces.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Role = Literal["prefill", "decode", "aggregated"]
WorkerPhase = Literal["starting", "ready", "draining"]

# 2**53: the largest integer that every JSON reader keeps exact.
Count = Annotated[int, Meta(ge=0, le=2**53)]
# The bounds also refuse NaN, which MessagePack would let through.
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Milliseconds = Annotated[float, Meta(ge=0.0, le=1e12)]
Tokens = Annotated[float, Meta(ge=0.0, le=1e12)]
# Printable, no control characters: names end up in log lines, subjects and keys.
# A character takes up to twelve bytes in a subject and a load subject holds three names: 100 each stay below the 4096
# bytes of a line of NATS' protocol, which cuts off whoever sends more.
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Text = Annotated[str, Meta(max_length=256)]


class WorkerSample(Struct, frozen=True, omit_defaults=True, gc=False):
    """One look at one rank of a worker. What is absent is unknown; an idle worker says zero."""

    sequence: Annotated[Count, Meta(description="Rises with every sample of this rank and incarnation.")]
    timestamp_ms: Annotated[Count, Meta(description="The worker's own clock; shown, never trusted for freshness.")]
    rank: Annotated[int, Meta(ge=0, lt=1024, description="Data-parallel rank within the worker.")] = 0
    kv_blocks_used: Annotated[Count | None, Meta(description="KV cache blocks in use.")] = None
    kv_blocks_total: Annotated[Count | None, Meta(description="KV cache blocks there are.")] = None
    kv_usage_ratio: Annotated[Ratio | None, Meta(description="KV cache in use, 0..1, where blocks are unknown.")] = None
    waiting_requests: Annotated[Count | None, Meta(description="Requests queued at the engine.")] = None
    running_requests: Annotated[Count | None, Meta(description="Requests in the running batch.")] = None
    queued_prefill_tokens: Annotated[Count | None, Meta(description="Prompt tokens not yet started.")] = None
    active_prefill_tokens: Annotated[Count | None, Meta(description="Prompt tokens being computed.")] = None
    decode_tokens: Annotated[Count | None, Meta(description="KV tokens held by decoding requests.")] = None
    decode_batch_requests: Annotated[Count | None, Meta(description="Requests in the decode batch.")] = None
    waiting_to_decode_tokens: Annotated[Count | None, Meta(description="Tokens prefilled, not yet decoding.")] = None
    ttft_ms: Annotated[Milliseconds | None, Meta(description="Last time to first token.")] = None
    itl_ms: Annotated[Milliseconds | None, Meta(description="Last inter-token latency.")] = None
    isl_tokens: Annotated[Tokens | None, Meta(description="Last input sequence length.")] = None
    iteration_ms: Annotated[Milliseconds | None, Meta(description="Wall time of the last engine iteration.")] = None
    migration_slots_in: Annotated[Count | None, Meta(description="Requests it can take in now.")] = None
    migration_slots_out: Annotated[Count | None, Meta(description="Requests it can give away now.")] = None
    schedulable: Annotated[bool, Meta(description="False when the engine must not be given work.")] = True


class WorkerRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a worker says of itself once, under its lease in the registry."""

    model: Name
    pool: Name
    worker: Name
    role: Role
    incarnation: Annotated[Count, Meta(description="Differs for every life of the worker and rises: its start in ms.")]
    state: Annotated[WorkerPhase, Meta(description="starting, ready or draining.")] = "ready"
    accelerator: Annotated[Text, Meta(description="Accelerator type, such as h100.")] = ""
    gpus: Annotated[int, Meta(ge=0, le=4096, description="GPUs that the worker occupies.")] = 1
    node: Annotated[Text, Meta(description="Failure domain: the machine.")] = ""
    unit: Annotated[Text, Meta(description="Failure domain: the group that fails together.")] = ""
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024, description="Ranks that report samples.")] = 1
    kv_blocks_total: Annotated[Count | None, Meta(description="KV cache blocks of one rank.")] = None
    block_size_tokens: Annotated[Count | None, Meta(description="Tokens in one KV block.")] = None
    max_batch_requests: Annotated[Count | None, Meta(description="Largest batch, in requests.")] = None
    max_batched_tokens: Annotated[Count | None, Meta(description="Largest batch, in tokens.")] = None


class Histogram(Struct, frozen=True):
    """Counts by upper bound: ``counts[i]`` values were <= ``bounds[i]``; the last count is what is above them all."""

    bounds: Annotated[tuple[Tokens, ...], Meta(max_length=64)]
    counts: Annotated[tuple[Count, ...], Meta(max_length=65)]


class TrafficSample(Struct, frozen=True, omit_defaults=True):
    """What a frontend saw in one interval. ``arrivals: 0`` says idle; no report says nothing."""

    sequence: Annotated[Count, Meta(description="Rises with every report of this incarnation.")]
    interval_ms: Annotated[int, Meta(ge=1, le=3_600_000, description="Length of the interval.")]
    arrivals: Annotated[Count, Meta(description="Requests that arrived.")]
    completed: Annotated[Count, Meta(description="Requests that finished.")] = 0
    queued: Annotated[Count, Meta(description="Requests held because no worker could take them.")] = 0
    in_flight: Annotated[Count, Meta(description="Requests that workers hold.")] = 0
    isl_tokens: Annotated[Tokens | None, Meta(description="Mean input length of the arrivals.")] = None
    osl_tokens: Annotated[Tokens | None, Meta(description="Mean output length of the completed.")] = None
    ttft_ms: Annotated[Milliseconds | None, Meta(description="Mean time to first token.")] = None
    itl_ms: Annotated[Milliseconds | None, Meta(description="Mean inter-token latency.")] = None
    ttft_met: Annotated[Count | None, Meta(description="Completed requests within the TTFT objective.")] = None
    itl_met: Annotated[Count | None, Meta(description="Completed requests within the ITL objective.")] = None
    isl_histogram: Histogram | None = None
    osl_histogram: Histogram | None = None


class Event(Struct, frozen=True, tag=True, tag_field="type", omit_defaults=True, gc=False):
    """Base of all events; the tag is the class name."""


class LoadReported(Event, frozen=True):
    """A worker published samples, oldest first."""

    model: str
    pool: str
    worker: str
    incarnation: int
    samples: list[WorkerSample]


class TrafficReported(Event, frozen=True):
    """A frontend published an interval."""

    model: str
    frontend: str
    incarnation: int
    sample: TrafficSample


class RegisteredWorker(Struct, frozen=True):
    """A worker's record with the lease that it lives by."""

    record: WorkerRecord
    lease_id: int


class RegistryRead(Event, frozen=True):
    """The whole registry was read: workers that are not in it are gone."""

    workers: list[RegisteredWorker]


class WorkerRegistered(Event, frozen=True):
    """A worker appeared in the registry, or changed its record."""

    worker: RegisteredWorker


class WorkerDeregistered(Event, frozen=True):
    """A worker's key is gone: its lease was revoked or ran out."""

    model: str
    pool: str
    worker: str


class LeadershipWon(Event, frozen=True):
    """A campaign succeeded. ``asked_at_ms`` is when it was asked for, so the lease is at least that old."""

    scope: str
    epoch: int
    lease_id: int
    asked_at_ms: int


class CampaignLost(Event, frozen=True):
    """Another agent leads, or the store could not be asked."""

    scope: str
    leader: str
    detail: str = ""


class LeaseRenewed(Event, frozen=True):
    """The leader's lease was extended. ``asked_at_ms`` is when the renewal was asked for."""

    scope: str
    lease_id: int
    asked_at_ms: int


class LeaseRenewalFailed(Event, frozen=True):
    """The leader's lease could not be extended; ``lost`` when the store says that it is gone."""

    scope: str
    lease_id: int
    lost: bool
    detail: str = ""


class LeaderChanged(Event, frozen=True):
    """The leader's key changed hands, or vanished (``leader`` empty, ``epoch`` 0), as of a revision of the store."""

    scope: str
    leader: str
    epoch: int
    revision: int


class Victim(Struct, frozen=True):
    """A worker on its way out. A later worker of the same name is another one."""

    worker: Name
    incarnation: Count


class PoolTarget(Struct, frozen=True, omit_defaults=True):
    """What one pool should be."""

    pool: Name
    role: Role
    replicas: Annotated[Count, Meta(description="Workers that there should be, not counting the victims.")]
    previous: Annotated[Count, Meta(description="Workers that there should have been until now.")]
    victims: Annotated[
        tuple[Victim, ...],
        Meta(
            max_length=10_000,
            description="Workers on their way out: delete one once it says `drained`, or at drain_ttl_ms.",
        ),
    ] = ()


class Decision(Struct, frozen=True, omit_defaults=True):
    """A committed scaling decision: all pools of one model at once, absolute counts."""

    decision_id: Annotated[str, Meta(min_length=1, max_length=64, description="Hash of model, epoch and sequence.")]
    model: Name
    epoch: Annotated[Count, Meta(description="The leader's term: the create revision of its key.")]
    sequence: Annotated[Count, Meta(description="Rises with every decision of the model.")]
    issued_at_ms: Annotated[Count, Meta(description="Unix time at which it was decided.")]
    expires_at_ms: Annotated[Count, Meta(description="Unix time after which it must not be applied.")]
    targets: Annotated[tuple[PoolTarget, ...], Meta(max_length=256)]
    reasons: Annotated[tuple[str, ...], Meta(max_length=64, description="Codes, the strongest first.")]
    drain_ttl_ms: Annotated[Count, Meta(description="How long a victim may take to drain.")] = 0


class StoredDecision(Struct, frozen=True):
    """A decision as the store holds it."""

    decision: Decision
    revision: int


class DecisionsRead(Event, frozen=True):
    """All decisions were read back from the store as of ``revision``; a model that is not in it has none."""

    request: int
    decisions: list[StoredDecision]
    revision: int
    unreadable: dict[str, int] = {}
    """Models whose key holds something else, and the revision of that."""


class DecisionsUnread(Event, frozen=True):
    """The decisions could not be read."""

    request: int
    detail: str


class DecisionCommitted(Event, frozen=True):
    """The store took a decision of ours."""

    decision_id: str
    model: str
    revision: int


class CommitRefused(Event, frozen=True):
    """The store did not take it: the epoch or the revision was no longer ours, or it was not reached at all."""

    decision_id: str
    model: str
    fenced: bool
    detail: str = ""


class CommitUnknown(Event, frozen=True):
    """The store may or may not have taken it."""

    decision_id: str
    model: str
    detail: str = ""


ApplyStatus = Literal["accepted", "progress", "done", "refused"]


class DecisionAnswered(Event, frozen=True):
    """A scaler said what it does with a decision."""

    decision_id: str
    model: str
    epoch: int
    sequence: int
    scaler: str
    status: ApplyStatus
    observed: dict[str, int]
    detail: str = ""


class DrainAnswered(Event, frozen=True):
    """A worker answered a drain command; ``accepted`` is None where no answer came in time."""

    model: str
    pool: str
    worker: str
    drain_id: str
    accepted: bool | None
    detail: str = ""


class WorkerDrained(Event, frozen=True):
    """A worker has nothing left to do."""

    model: str
    pool: str
    worker: str
    incarnation: int


class DrainRequested(Event, frozen=True):
    """An operator wants one worker emptied."""

    model: str
    pool: str
    worker: str
    by: str


class PauseRequested(Event, frozen=True):
    """An operator wants a model paused or resumed."""

    model: str
    paused: bool
    by: str


class AnnouncementRequested(Event, frozen=True):
    """A scaler that has just started wants to know what stands."""

    model: str
    by: str


class PausesRead(Event, frozen=True):
    """The whole list of paused models, by name, with who paused them."""

    paused: dict[str, str]


class PauseChanged(Event, frozen=True):
    """A model's pause key was written or removed."""

    model: str
    paused: bool
    by: str = ""


class StoreConnectionChanged(Event, frozen=True):
    """The store can be reached, or not."""

    connected: bool


class BusConnectionChanged(Event, frozen=True):
    """The bus can be reached, or not."""

    connected: bool


class ShutdownRequested(Event, frozen=True):
    """The process was asked to stop: nothing new is begun, leadership is handed over."""


AnyEvent = (
    LoadReported
    | TrafficReported
    | RegistryRead
    | WorkerRegistered
    | WorkerDeregistered
    | LeadershipWon
    | CampaignLost
    | LeaseRenewed
    | LeaseRenewalFailed
    | LeaderChanged
    | DecisionsRead
    | DecisionsUnread
    | DecisionCommitted
    | CommitRefused
    | CommitUnknown
    | DecisionAnswered
    | DrainAnswered
    | WorkerDrained
    | DrainRequested
    | PauseRequested
    | AnnouncementRequested
    | PausesRead
    | PauseChanged
    | StoreConnectionChanged
    | BusConnectionChanged
    | ShutdownRequested
)
