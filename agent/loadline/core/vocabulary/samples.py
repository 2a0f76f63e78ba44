"""What workers and frontends say of themselves: what a worker is, its samples, and a frontend's traffic.

Each is a part of an event, of a message or of a key in the store.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Count, Milliseconds, Name, Ratio, Role, Text, Tokens, WorkerPhase


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
    unallocated_prefill_tokens: Annotated[
        Count | None, Meta(description="Of active_prefill_tokens, those that have no KV block yet.")
    ] = None
    waiting_to_decode_requests: Annotated[
        Count | None, Meta(description="Requests that wait and will decode; unsaid: all that wait.")
    ] = None
    unmovable_requests: Annotated[
        Count | None, Meta(description="Requests that must stay, such as those with guided decoding.")
    ] = None


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
    reserved: Annotated[
        Literal["", "prefill", "decode"], Meta(description="A role that it is kept for, where all can do both.")
    ] = ""
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024, description="Ranks that report samples.")] = 1
    kv_blocks_total: Annotated[Count | None, Meta(description="KV cache blocks of one rank.")] = None
    block_size_tokens: Annotated[Count | None, Meta(description="Tokens in one KV block.")] = None
    max_batch_requests: Annotated[Count | None, Meta(description="Largest batch, in requests.")] = None
    max_batched_tokens: Annotated[Count | None, Meta(description="Largest batch, in tokens.")] = None


class RegisteredWorker(Struct, frozen=True):
    """A worker's record with the lease that it lives by."""

    record: WorkerRecord
    lease_id: int


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
    kv_hit_rate: Annotated[
        Ratio | None, Meta(description="Share of the prompt tokens that a prefix cache had; unsaid: none of them.")
    ] = None
    osl_tokens: Annotated[Tokens | None, Meta(description="Mean output length of the completed.")] = None
    ttft_ms: Annotated[Milliseconds | None, Meta(description="Mean time to first token.")] = None
    itl_ms: Annotated[Milliseconds | None, Meta(description="Mean inter-token latency.")] = None
    ttft_met: Annotated[Count | None, Meta(description="Completed requests within the TTFT objective.")] = None
    itl_met: Annotated[Count | None, Meta(description="Completed requests within the ITL objective.")] = None
    isl_histogram: Histogram | None = None
    osl_histogram: Histogram | None = None
