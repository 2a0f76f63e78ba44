"""What a worker's samples say of its load, in the words of the metrics that moves are planned by: sums over ranks."""

import math
from operator import add
from typing import Final

from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample

(
    NEED,
    TOTAL,
    BATCH,
    DECODE_TOKENS,
    PREFILL_TOKENS,
    WAITING,
    REQUESTS,
    UNMOVABLE,
    SLOTS_IN,
    SLOTS_OUT,
    DECODING,
    DECODING_TOKENS,
) = range(12)
MEASURES: Final = 12
"""Rows of a table of measures, one column a worker."""
UNKNOWN: Final = -1.0
"""No JSON can hold what is no number."""
_NO_NUMBER: Final = math.nan

Measures = tuple[float, ...]


def measure(worker: WorkerState) -> Measures | None:
    """The measures of a worker in their order; None until it has reported, or where it takes part in no move.

    ``NEED``: tokens that its KV cache has to hold: those that it holds, and those of requests that were not given room
    yet. ``TOTAL``: tokens that fit. Both are ``UNKNOWN`` where its samples do not tell. ``DECODING``: requests that
    decode, and ``DECODING_TOKENS`` what they hold, without those that wait to.
    """
    latest = worker.latest
    first = latest[0] if latest else None
    if first is None or (first.migration_slots_in is None and first.migration_slots_out is None):
        return None
    found = _of_rank(first, worker.record)
    for sample in latest[1:]:
        if sample is None:
            return None
        found = tuple(map(add, found, _of_rank(sample, worker.record)))
    if math.isnan(found[NEED]) or math.isnan(found[TOTAL]):
        return tuple(UNKNOWN if math.isnan(value) else value for value in found)
    return found


def _of_rank(sample: WorkerSample, record: WorkerRecord) -> Measures:
    queued, active = sample.queued_prefill_tokens or 0, sample.active_prefill_tokens or 0
    to_decode, waiting = sample.waiting_to_decode_tokens or 0, sample.waiting_requests or 0
    running = sample.running_requests or 0
    total = _total(sample, record)
    used = _used(sample, record, total)
    decoding = running if sample.decode_batch_requests is None else sample.decode_batch_requests
    will_decode = waiting if sample.waiting_to_decode_requests is None else sample.waiting_to_decode_requests
    held = used if sample.decode_tokens is None else float(sample.decode_tokens)
    return (
        used + queued + (sample.unallocated_prefill_tokens or 0) + to_decode,
        total,
        float(decoding + will_decode),
        held + to_decode,
        float(queued + active),
        float(waiting),
        float(waiting + running),
        float(sample.unmovable_requests or 0),
        float(sample.migration_slots_in or 0),
        float(sample.migration_slots_out or 0),
        float(decoding),
        held,
    )


def _total(sample: WorkerSample, record: WorkerRecord) -> float:
    blocks, size = sample.kv_blocks_total or record.kv_blocks_total, record.block_size_tokens
    return float(blocks * size) if blocks and size else _NO_NUMBER


def _used(sample: WorkerSample, record: WorkerRecord, total: float) -> float:
    if sample.kv_blocks_used is not None and record.block_size_tokens:
        return float(sample.kv_blocks_used * record.block_size_tokens)
    return _NO_NUMBER if sample.kv_usage_ratio is None else sample.kv_usage_ratio * total
