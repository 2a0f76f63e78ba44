"""Measures of a worker's load, from which load metrics are computed: sums over its data-parallel ranks."""

import math
from operator import add
from typing import Final

from loadline.core.fleet.estimates import (
    decoding_requests,
    kv_tokens_total,
    kv_tokens_used,
    prompt_tokens,
    tokens_to_decode,
)
from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample

(
    KV_NEEDED,
    KV_TOTAL,
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
"""Number of measures of a worker."""
UNKNOWN: Final = -1.0
"""Unknown measure, since JSON has no NaN."""
_NAN: Final = math.nan

Measures = tuple[float, ...]


def measures_of(worker: WorkerState) -> Measures | None:
    """Return the measures of a worker in their order; None if a rank has not reported or migrations are not supported.

    ``KV_NEEDED`` is the number of tokens in its KV cache and of those that queued requests will need; ``KV_TOTAL`` is
    the capacity in tokens. Both are ``UNKNOWN`` if its samples lack them. ``DECODING`` and ``DECODING_TOKENS`` are
    decoding requests and their tokens, without requests that wait to decode.
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
    if math.isnan(found[KV_NEEDED]) or math.isnan(found[KV_TOTAL]):
        return tuple(UNKNOWN if math.isnan(value) else value for value in found)
    return found


def _of_rank(sample: WorkerSample, record: WorkerRecord) -> Measures:
    queued, active = prompt_tokens(sample, record) or (0.0, 0.0)
    to_decode, waiting = tokens_to_decode(sample, record), sample.waiting_requests or 0
    running = sample.running_requests or 0
    used, decoding = kv_tokens_used(sample, record), decoding_requests(sample)
    if used is None:
        used = _NAN
    will_decode = waiting if sample.waiting_to_decode_requests is None else sample.waiting_to_decode_requests
    decoding_tokens = used if sample.decode_tokens is None else float(sample.decode_tokens)
    return (
        used + queued + (sample.unallocated_prefill_tokens or 0) + to_decode,
        float(kv_tokens_total(sample, record) or _NAN),
        float(decoding + will_decode),
        decoding_tokens + to_decode,
        float(queued + active),
        float(waiting),
        float(waiting + running),
        float(sample.unmovable_requests or 0),
        float(sample.migration_slots_in or 0),
        float(sample.migration_slots_out or 0),
        float(decoding),
        decoding_tokens,
    )
