"""Reports of workers and frontends: registry records, load samples and traffic samples.

The types are parts of events, messages and keys in the store.
"""

import re
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import (
    ArrivalCount,
    BatchCount,
    BlockCount,
    Count,
    Milliseconds,
    Name,
    QueueCount,
    Ratio,
    Role,
    Text,
    TokenCount,
    Tokens,
    WorkerPhase,
)

PORT_MAX: Final = 65_535
_BASE_URL: Final = re.compile(r"(https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+])(?::([0-9]{1,5}))?)/?")
"""Scheme, host name or address, port. No user, path or query: an address selects an engine and nothing else."""


class WorkerSample(Struct, frozen=True, omit_defaults=True, gc=False):
    """Load of one rank of a worker at one time. Absent fields are unknown; an idle worker reports 0."""

    sequence: Annotated[Count, Meta(description="Number of the sample, increasing per rank and incarnation.")]
    timestamp_ms: Annotated[Count, Meta(description="Clock of the worker; not used for freshness.")]
    rank: Annotated[int, Meta(ge=0, lt=1024, description="Data-parallel rank within the worker.")] = 0
    kv_blocks_used: Annotated[BlockCount | None, Meta(description="KV cache blocks in use.")] = None
    kv_blocks_total: Annotated[BlockCount | None, Meta(description="KV cache blocks in total.")] = None
    kv_usage_ratio: Annotated[
        Ratio | None, Meta(description="KV cache usage, 0..1, for engines that do not report blocks.")
    ] = None
    waiting_requests: Annotated[QueueCount | None, Meta(description="Requests queued at the engine.")] = None
    running_requests: Annotated[BatchCount | None, Meta(description="Requests in the running batch.")] = None
    queued_prefill_tokens: Annotated[TokenCount | None, Meta(description="Prompt tokens not yet started.")] = None
    active_prefill_tokens: Annotated[TokenCount | None, Meta(description="Prompt tokens being computed.")] = None
    decode_tokens: Annotated[TokenCount | None, Meta(description="KV tokens held by decoding requests.")] = None
    decode_batch_requests: Annotated[BatchCount | None, Meta(description="Requests in the decode batch.")] = None
    waiting_to_decode_tokens: Annotated[TokenCount | None, Meta(description="Tokens prefilled, not yet decoding.")] = (
        None
    )
    ttft_ms: Annotated[Milliseconds | None, Meta(description="Last time to first token.")] = None
    itl_ms: Annotated[Milliseconds | None, Meta(description="Last inter-token latency.")] = None
    isl_tokens: Annotated[Tokens | None, Meta(description="Last input sequence length.")] = None
    iteration_ms: Annotated[Milliseconds | None, Meta(description="Wall time of the last engine iteration.")] = None
    migration_slots_in: Annotated[BatchCount | None, Meta(description="Requests that it can receive now.")] = None
    migration_slots_out: Annotated[BatchCount | None, Meta(description="Requests that it can send now.")] = None
    schedulable: Annotated[bool, Meta(description="False if the engine must not receive work.")] = True
    unallocated_prefill_tokens: Annotated[
        TokenCount | None, Meta(description="Part of active_prefill_tokens without KV blocks.")
    ] = None
    waiting_to_decode_requests: Annotated[
        QueueCount | None, Meta(description="Waiting requests that will decode; absent: all waiting requests.")
    ] = None
    unmovable_requests: Annotated[
        QueueCount | None, Meta(description="Requests that cannot be migrated, such as those with guided decoding.")
    ] = None


class WorkerRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """Description of a worker, registered under its lease."""

    model: Name
    pool: Name
    worker: Name
    role: Role
    incarnation: Annotated[Count, Meta(description="Increases with every start of the worker: its start time in ms.")]
    state: Annotated[WorkerPhase, Meta(description="starting, ready or draining.")] = "ready"
    accelerator: Annotated[Text, Meta(description="Accelerator type, such as h100.")] = ""
    gpus: Annotated[int, Meta(ge=0, le=4096, description="GPUs that the worker occupies.")] = 1
    node: Annotated[Text, Meta(description="Failure domain: the machine.")] = ""
    unit: Annotated[Text, Meta(description="Failure domain: the group that fails together.")] = ""
    reserved: Annotated[
        Literal["", "prefill", "decode"],
        Meta(description="Role reserved for this worker if all workers can serve both."),
    ] = ""
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024, description="Ranks that report samples.")] = 1
    kv_blocks_total: Annotated[BlockCount | None, Meta(description="KV cache blocks of one rank.")] = None
    block_size_tokens: Annotated[BatchCount | None, Meta(description="Tokens in one KV block.")] = None
    max_batch_requests: Annotated[BatchCount | None, Meta(description="Largest batch, in requests.")] = None
    max_batched_tokens: Annotated[TokenCount | None, Meta(description="Largest batch, in tokens.")] = None
    address: Annotated[
        Text, Meta(description="Base URL of the engine's HTTP API, such as http://10.0.0.7:8000; unusable: ignored.")
    ] = ""
    home_pool: Annotated[
        Text, Meta(description="Pool whose scaler started the worker, if it serves in another one; empty: its pool.")
    ] = ""

    @property
    def home(self) -> str:
        """Pool whose scaler started the worker."""
        return self.home_pool or self.pool

    @property
    def names(self) -> tuple[str, str, str]:
        """Model, pool and worker."""
        return self.model, self.pool, self.worker

    @property
    def base_url(self) -> str:
        """Address without a trailing slash; empty if there is none, or if it is not ``http(s)://host[:port]``."""
        found = _BASE_URL.fullmatch(self.address)
        return found[1] if found and int(found[2] or 0) <= PORT_MAX else ""


class RegisteredWorker(Struct, frozen=True):
    """A worker's record and its lease."""

    record: WorkerRecord
    lease_id: int
    create_revision: int = 0
    """Revision of the store in which its key was created: the order in which workers have registered."""


class Bins(Struct, frozen=True):
    """Sums of histograms with the same bounds: their counts grow for as long as an agent runs."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


class Histogram(Struct, frozen=True):
    """Counts per bin: ``counts[i]`` values are at most ``bounds[i]``; the last bin has no upper bound."""

    bounds: Annotated[tuple[Tokens, ...], Meta(max_length=64)]
    counts: Annotated[tuple[ArrivalCount, ...], Meta(max_length=65)]


class TrafficSample(Struct, frozen=True, omit_defaults=True):
    """Traffic of a frontend in one interval. ``arrivals: 0`` means idle; without a report, traffic is unknown."""

    sequence: Annotated[Count, Meta(description="Number of the report, increasing per incarnation.")]
    interval_ms: Annotated[int, Meta(ge=1, le=3_600_000, description="Length of the interval.")]
    arrivals: Annotated[ArrivalCount, Meta(description="Requests that arrived.")]
    completed: Annotated[ArrivalCount, Meta(description="Requests that finished.")] = 0
    queued: Annotated[QueueCount, Meta(description="Requests held because no worker can take them.")] = 0
    in_flight: Annotated[QueueCount, Meta(description="Requests dispatched to workers and not completed.")] = 0
    isl_tokens: Annotated[Tokens | None, Meta(description="Mean input length of the arrivals.")] = None
    kv_hit_rate: Annotated[
        Ratio | None, Meta(description="Fraction of prompt tokens found in prefix caches; absent: 0.")
    ] = None
    osl_tokens: Annotated[Tokens | None, Meta(description="Mean output length of the completed requests.")] = None
    ttft_ms: Annotated[Milliseconds | None, Meta(description="Mean time to first token.")] = None
    itl_ms: Annotated[Milliseconds | None, Meta(description="Mean inter-token latency.")] = None
    ttft_met: Annotated[ArrivalCount | None, Meta(description="Completed requests within the TTFT objective.")] = None
    itl_met: Annotated[ArrivalCount | None, Meta(description="Completed requests within the ITL objective.")] = None
    both_met: Annotated[ArrivalCount | None, Meta(description="Completed requests within both objectives.")] = None
    isl_histogram: Histogram | None = None
    osl_histogram: Histogram | None = None
