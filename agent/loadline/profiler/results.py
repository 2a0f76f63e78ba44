"""Sweeps of measurements, and the files that planners read."""

import io
from itertools import groupby
from statistics import mean, median
from typing import Final

import numpy as np

from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.errors import DataError
from loadline.profile_files import SELECTED
from loadline.profiler.record import Record

PREFILL_FILE: Final = SELECTED["prefill"][0]
DECODE_FILE: Final = SELECTED["decode"][0]

_USAGES_MIN: Final = 3
"""Batches with a reported KV usage from which a deviation is told; one reading may be late."""


def prefill_sweep(record: Record) -> PrefillSweep:
    """Return the prefill sweep of a record.

    Raises:
        DataError: It has too few points.
    """
    points = sorted((point.isl_tokens, point.ttft_ms) for point in record.prefills.values())
    lengths = [(isl, mean(ttft_ms for _, ttft_ms in group)) for isl, group in groupby(points, lambda one: one[0])]
    rates = [isl / ttft_ms * 1_000.0 / record.setup.gpus for isl, ttft_ms in lengths]
    try:
        return PrefillSweep(tuple(isl for isl, _ in lengths), tuple(ttft_ms for _, ttft_ms in lengths), tuple(rates))
    except ValueError as error:
        raise DataError(f"prefill: {error}") from error


def decode_sweep(record: Record) -> DecodeSweep:
    """Return the decode sweep of a record.

    KV usage is computed from the tokens of the batch, as planners do, and not the one that the engine reports: engines
    count whole blocks. Batches larger than the cache, measured before its size was corrected, are left out.

    Raises:
        DataError: It has too few points.
    """
    kv_tokens = 1 if record.limits is None else record.limits.kv_tokens
    batches = [(task.context_tokens, point.timing) for task, point in record.decodes.items()]
    batches = [(context, timing) for context, timing in batches if timing.requests * context <= kv_tokens]
    batches.sort(key=lambda one: (one[0], one[1].requests))
    usages = [timing.requests * context / kv_tokens for context, timing in batches]
    rates = [timing.requests / timing.itl_ms * 1_000.0 / record.setup.gpus for _, timing in batches]
    itls = [timing.itl_ms for _, timing in batches]
    contexts = [float(context) for context, _ in batches]
    try:
        return DecodeSweep(tuple(usages), tuple(contexts), tuple(itls), tuple(rates), float(kv_tokens))
    except ValueError as error:
        raise DataError(f"decode: {error}") from error


def prefill_file(sweep: PrefillSweep) -> bytes:
    """Return the NPZ file of a prefill sweep."""
    return _npz(
        prefill_isl=sweep.isl_tokens, prefill_ttft=sweep.ttft_ms, prefill_thpt_per_gpu=sweep.tokens_per_s_per_gpu
    )


def decode_file(sweep: DecodeSweep) -> bytes:
    """Return the NPZ file of a decode sweep."""
    return _npz(
        x_kv_usage=sweep.kv_usage,
        y_context_length=sweep.context_tokens,
        z_itl=sweep.itl_ms,
        z_thpt_per_gpu=sweep.tokens_per_s_per_gpu,
        max_kv_tokens=(sweep.max_kv_tokens,),
    )


def usage_factor(record: Record) -> float | None:
    """Return the KV usage that the engine reports relative to that of its tokens in whole blocks; None: unknown."""
    if record.limits is None:
        return None
    block, kv_tokens = record.limits.block_tokens, record.limits.kv_tokens
    factors = [
        point.timing.kv_usage * kv_tokens / (point.timing.requests * -(-task.context_tokens // block) * block)
        for task, point in record.decodes.items()
        if point.timing.kv_usage
    ]
    return median(factors) if len(factors) >= _USAGES_MIN else None


def _npz(**arrays: tuple[float, ...]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(values) for name, values in arrays.items()})
    return buffer.getvalue()
