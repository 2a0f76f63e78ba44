"""Figures that engines may not export, estimated from those that all of them do; a reported figure is never replaced.

Plain engines export KV usage as a ratio, running and waiting requests, and means of latencies and prompt lengths. Their
waiting requests need the mean prompt each, and decode iterations take as long as the mean inter-token latency.
"""

from collections.abc import Iterator
from typing import Final

from loadline.core.fleet.pool import Pool
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample

NOMINAL_BLOCKS: Final = 10_000
"""KV cache blocks of an engine that exports only its usage; a unit of load, since the engine's own size is unknown."""
_COMPUTED: Final = 0.5
"""Part of a prompt in progress that is still to be computed, on average."""


def blocks_total(sample: WorkerSample, record: WorkerRecord) -> int:
    """Return the KV cache blocks that ``blocks_used`` is a part of; 0 if unknown."""
    total = _reported_blocks(sample, record)
    return NOMINAL_BLOCKS if not total and sample.kv_blocks_used is None else total


def blocks_used(sample: WorkerSample, record: WorkerRecord) -> float | None:
    """Return the KV cache blocks in use; None without KV usage."""
    if sample.kv_blocks_used is not None:
        return sample.kv_blocks_used
    return None if sample.kv_usage_ratio is None else sample.kv_usage_ratio * blocks_total(sample, record)


def kv_usage_ratio(sample: WorkerSample, record: WorkerRecord) -> float | None:
    """Return the KV usage of a rank, 0..1; None if unknown."""
    used, total = blocks_used(sample, record), blocks_total(sample, record)
    return None if used is None or not total else used / total


def _reported_blocks(sample: WorkerSample, record: WorkerRecord) -> int:
    return sample.kv_blocks_total or record.kv_blocks_total or 0


def kv_tokens_total(sample: WorkerSample, record: WorkerRecord) -> int:
    """Return the KV cache of a rank in tokens; 0 if unknown."""
    return _reported_blocks(sample, record) * (record.block_size_tokens or 0)


def kv_tokens_used(sample: WorkerSample, record: WorkerRecord) -> float | None:
    """Return the tokens in the KV cache; None if they do not follow from the report."""
    if sample.kv_blocks_used is not None and record.block_size_tokens:
        return float(sample.kv_blocks_used * record.block_size_tokens)
    total, ratio = kv_tokens_total(sample, record), sample.kv_usage_ratio
    return ratio * total if total and ratio is not None else None


def estimates_prompts(pool: Pool) -> bool:
    """Return True if prompt tokens of a pool are estimates: the first worker that reports stands for all of them."""
    samples = _first_report(pool)
    return bool(samples) and not any(_reports_prompts(sample) for sample in samples)


def estimates_iterations(pool: Pool) -> bool:
    """Return True if iterations of a pool are estimates: the first worker that reports stands for all of them."""
    samples = _first_report(pool)
    return any(sample.iteration_ms is None and sample.running_requests for sample in samples)


def _first_report(pool: Pool) -> list[WorkerSample]:
    worker = next((one for one in pool.workers.values() if one.counted), None)
    return [] if worker is None else [sample for sample in worker.latest if sample is not None]


def _reports_prompts(sample: WorkerSample) -> bool:
    return sample.queued_prefill_tokens is not None or sample.active_prefill_tokens is not None


def prompt_tokens(sample: WorkerSample, record: WorkerRecord, isl_tokens: float = 0.0) -> tuple[float, float] | None:
    """Return the queued and the active prompt tokens; None if unknown.

    Args:
        sample: Report of a rank.
        record: Record of its worker. Only prefill workers spend all their time on prompts: the running requests of
            others are taken for decoding ones.
        isl_tokens: Mean prompt length where the rank reports none; 0: unknown.
    """
    if _reports_prompts(sample):
        return sample.queued_prefill_tokens or 0, sample.active_prefill_tokens or 0
    waiting = 0 if record.role == "decode" else sample.waiting_requests
    active = sample.running_requests if record.role == "prefill" else 0
    if waiting is None or active is None:
        return None
    isl = sample.isl_tokens or isl_tokens
    return (waiting * isl, _COMPUTED * active * isl) if isl or not (waiting or active) else None


def tokens_to_decode(sample: WorkerSample, record: WorkerRecord) -> float:
    """Return the prefilled tokens that wait for decode; those of waiting requests at a decode worker; 0 if unknown."""
    if sample.waiting_to_decode_tokens is not None:
        return sample.waiting_to_decode_tokens
    plain = record.role == "decode" and sample.decode_tokens is None
    return (sample.waiting_requests or 0) * (sample.isl_tokens or 0.0) if plain else 0.0


def decoding_requests(sample: WorkerSample) -> int:
    """Return the requests in the decode batch: the running ones, if these are not told apart."""
    if sample.decode_batch_requests is not None:
        return sample.decode_batch_requests
    return sample.running_requests or 0


def decode_iterations(sample: WorkerSample) -> Iterator[tuple[float, float]]:
    """Yield the batch and the time in ms of a decode iteration, if the rank had one."""
    if sample.iteration_ms is None:
        if sample.itl_ms and sample.running_requests:
            yield sample.running_requests, sample.itl_ms
    elif sample.decode_batch_requests and not sample.active_prefill_tokens:
        yield sample.decode_batch_requests, sample.iteration_ms


def prefill_passes(sample: WorkerSample, record: WorkerRecord) -> Iterator[tuple[float, float]]:
    """Yield tokens and times in ms of passes with prompts, which take most of their time.

    Without iterations, the TTFT is the time of the prompts ahead and the request's own; at workers that also decode, of
    its own while none wait. Mean lengths hardly vary, so that time is taken to be proportional to the tokens.
    """
    if sample.iteration_ms is not None:
        if tokens := sample.active_prefill_tokens:
            yield min(tokens, record.max_batched_tokens or tokens), sample.iteration_ms
        return
    ahead, isl = prompt_tokens(sample, record), sample.isl_tokens
    if ahead is not None and isl and sample.ttft_ms and (record.role == "prefill" or not sample.waiting_requests):
        total = sum(ahead) + isl
        yield total, sample.ttft_ms
        yield 1.0, sample.ttft_ms / total
