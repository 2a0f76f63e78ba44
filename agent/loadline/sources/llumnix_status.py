"""Engines of Llumnix as workers: from their metadata and status to records and samples. Pure."""

from typing import Annotated

from msgspec import Meta, Struct

from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import (
    BATCH_MAX,
    BLOCKS_MAX,
    QUEUE_MAX,
    BatchCount,
    Count,
    Name,
    QueueCount,
    Text,
    TokenCount,
)
from loadline.sources.config import WorkerKnobs

Port = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e11)]


class LlumnixInstance(Struct, frozen=True):
    """Description of one engine; with data parallelism, of one rank."""

    instance_id: Name
    instance_type: Text
    ip: Text
    ip_kvs: Text
    llumlet_port: Port
    kvt_port: Port
    node_id: Text
    unit_id: Text
    tensor_parallel_size: Annotated[int, Meta(ge=0, le=4_096)]
    utc_create: Seconds
    block_size: BatchCount
    max_num_batched_tokens: TokenCount

    def record(self, pool: WorkerKnobs) -> WorkerRecord:
        """Return its record as a worker of the pool.

        Ranks are workers of their own: each has its agent, and migrates by itself.
        """
        return WorkerRecord(
            pool.model,
            pool.name,
            self.instance_id,
            pool.role,
            round(self.utc_create * 1_000),
            accelerator=pool.accelerator,
            gpus=self.tensor_parallel_size or pool.gpus,
            node=self.node_id,
            unit=self.unit_id,
            kv_blocks_total=pool.kv_blocks_total,
            block_size_tokens=self.block_size or pool.block_size_tokens,
            max_batch_requests=pool.max_batch_requests,
            max_batched_tokens=self.max_num_batched_tokens or None,
        )


class LlumnixStatus(Struct, frozen=True):
    """Load of one engine, by its own clock."""

    schedulable: bool
    timestamp_ms: Count
    hybrid_scheduler_waiting_to_decode_requests_num: QueueCount
    scheduler_waiting_to_decode_requests_num: QueueCount
    num_waiting_requests: QueueCount
    scheduler_running_to_decode_requests_num: BatchCount
    num_running_requests: BatchCount
    num_loading_requests: BatchCount
    num_total_gpu_tokens: TokenCount
    num_used_gpu_tokens: TokenCount
    num_unallocated_tokens_hybrid_scheduler_waiting_decodes: TokenCount
    hybrid_scheduler_waiting_to_decode_tokens_num: TokenCount
    scheduler_waiting_to_decode_tokens_num: TokenCount
    num_uncomputed_tokens_scheduler_running_prefills: TokenCount
    num_unallocated_tokens_scheduler_running_prefills: TokenCount
    scheduler_running_to_decode_tokens_num: TokenCount
    num_tokens_loading_requests: TokenCount
    num_uncomputed_tokens_all_waiting_prefills: TokenCount
    num_migrate_out_reqs: QueueCount
    num_available_migrate_in_slots: int
    num_available_migrate_out_slots: int

    def sample(self, block_size: int) -> WorkerSample:
        """Return the sample, with which the agent's load metrics equal those of Llumnix for this status.

        Args:
            block_size: Tokens in one KV block; 0: unknown.
        """
        size = block_size or 1
        total = min(self.num_total_gpu_tokens // size, BLOCKS_MAX)
        unallocated = self.num_unallocated_tokens_hybrid_scheduler_waiting_decodes
        all_decode_tokens = (
            self.hybrid_scheduler_waiting_to_decode_tokens_num
            + self.num_tokens_loading_requests
            + self.scheduler_waiting_to_decode_tokens_num
            + self.scheduler_running_to_decode_tokens_num
        )
        return WorkerSample(
            0,
            self.timestamp_ms,
            kv_blocks_used=min(-(-self.num_used_gpu_tokens // size), total),
            kv_blocks_total=total,
            waiting_requests=self.num_waiting_requests,
            # Agents refuse a report with a number above these bounds, whatever else it has.
            running_requests=min(self.num_running_requests + self.num_loading_requests, BATCH_MAX),
            queued_prefill_tokens=self.num_uncomputed_tokens_all_waiting_prefills,
            active_prefill_tokens=self.num_uncomputed_tokens_scheduler_running_prefills,
            # Both together are all tokens to decode; those without KV blocks are needed in addition to the used ones.
            decode_tokens=max(all_decode_tokens - unallocated, 0),
            waiting_to_decode_tokens=unallocated,
            decode_batch_requests=self.scheduler_running_to_decode_requests_num,
            waiting_to_decode_requests=min(
                self.hybrid_scheduler_waiting_to_decode_requests_num
                + self.scheduler_waiting_to_decode_requests_num
                + self.num_loading_requests,
                QUEUE_MAX,
            ),
            unallocated_prefill_tokens=self.num_unallocated_tokens_scheduler_running_prefills,
            migration_slots_in=min(max(self.num_available_migrate_in_slots, 0), BATCH_MAX),
            migration_slots_out=min(max(self.num_available_migrate_out_slots, 0), BATCH_MAX),
            schedulable=self.schedulable,
        )
