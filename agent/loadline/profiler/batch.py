"""ITL of a batch from the streams of its requests."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from loadline.profiler.stream import StreamTiming
from loadline.profiler.watch import Usages

_TOKENS_MIN: Final = 8
"""Smallest number of gaps per request from which an ITL is computed."""

Slot = Sequence[StreamTiming]
"""Streams of one place of the batch, one after the other; more than one if the model ends its outputs early."""


class BatchTiming(Struct, frozen=True):
    """Result of a batch."""

    requests: float
    """Mean requests in the batch."""
    itl_ms: float
    kv_usage: float | None
    """KV usage that the engine reports, if it does."""


def batch_timing(slots: Sequence[Slot], usages: Usages) -> BatchTiming | None:
    """Return the ITL between the start of the last request and the end of the first one.

    None if they did not all run together, or for too few tokens.
    """
    begin_s = max(slot[0].chunks_s[0] for slot in slots)
    end_s = min(slot[-1].chunks_s[-1] for slot in slots)
    span_s = tokens = 0.0
    for stream in (stream for slot in slots for stream in slot):
        inside = [at_s for at_s in stream.chunks_s if begin_s <= at_s <= end_s]
        if len(inside) > 1:
            span_s += inside[-1] - inside[0]
            tokens += (len(inside) - 1) * stream.tokens_per_gap
    if tokens < _TOKENS_MIN * len(slots) or running_together(slots) < len(slots):
        return None
    unbroken = all(len(slot) == 1 for slot in slots)
    requests = float(len(slots)) if unbroken else span_s / (end_s - begin_s)
    during = [usage for at_s, usage in usages if begin_s <= at_s <= end_s]
    return BatchTiming(requests, span_s / tokens * 1_000.0, sum(during) / len(during) if during else None)


def running_together(slots: Sequence[Slot]) -> int:
    """Return the most streams that were between their first and last token at a time."""
    streams = [stream for slot in slots for stream in slot]
    ends = [(one.chunks_s[0], 1) for one in streams] + [(one.chunks_s[-1], -1) for one in streams]
    ends.sort(key=lambda end: (end[0], -end[1]))  # a stream of one token counts too
    return max(accumulate(change for _, change in ends))
