"""Scalar types of knobs, events and messages, with the bounds that decoders enforce."""

import re
from typing import Annotated, Final, Literal

from msgspec import Meta

Role = Literal["prefill", "decode", "aggregated", "encode"]
WorkerPhase = Literal["starting", "ready", "draining"]

COUNT_MAX: Final = 2**53
"""Largest integer that every JSON reader keeps exact."""
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
WORKERS_MAX: Final = 1_000_000
"""Upper bound of workers per pool; larger counts are configuration errors."""
Workers = Annotated[int, Meta(ge=0, le=WORKERS_MAX)]
# The bounds also reject NaN, which MessagePack allows.
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
YEAR_MS: Final = 31_536_000_000
"""Longest lifetime that is configured: times beyond 2^53 cannot be stored."""
Milliseconds = Annotated[float, Meta(ge=0.0, le=1e12)]
# Tokens of one request: ten times the longest contexts, so that one wrong report does not outweigh all others.
TOKENS_MAX: Final = 1e7
Tokens = Annotated[float, Meta(ge=0.0, le=TOKENS_MAX)]
LENGTH_MIN: Final = 1e-3
"""Smallest length (tokens) and latency (ms) above 0: a quotient by a smaller one may be infinite."""
# What an engine can be: bounds for its claims, since arrays and sums grow with them. The largest batches have some
# thousand requests, the largest KV caches some ten million tokens, and a queue may be long.
BATCH_MAX: Final = 65_536
QUEUE_MAX: Final = 10_000_000
TOKEN_COUNT_MAX: Final = 10**12
BLOCKS_MAX: Final = 10**9
BatchCount = Annotated[int, Meta(ge=0, le=BATCH_MAX)]
QueueCount = Annotated[int, Meta(ge=0, le=QUEUE_MAX)]
TokenCount = Annotated[int, Meta(ge=0, le=TOKEN_COUNT_MAX)]
BlockCount = Annotated[int, Meta(ge=0, le=BLOCKS_MAX)]
# A million requests per second over the longest interval of a report.
ArrivalCount = Annotated[int, Meta(ge=0, le=3_600_000_000)]
# Without control characters: names appear in log lines, subjects and keys.
# A character takes up to 12 bytes in a subject, and a load subject holds three names: 100 characters each stay below
# the 4096 bytes of a protocol line, beyond which NATS closes the connection.
# \Z, since $ would allow a newline at the end.
_NAME: Final = re.compile(r"^[^\x00-\x1f\x7f]+\Z")
_NAME_CHARS_MAX: Final = 100
Name = Annotated[str, Meta(min_length=1, max_length=_NAME_CHARS_MAX, pattern=_NAME.pattern)]
Text = Annotated[str, Meta(max_length=256)]


def is_name(text: str) -> bool:
    """Return True if a text can be a name; ``msgspec.convert`` takes four times as long."""
    return len(text) <= _NAME_CHARS_MAX and _NAME.match(text) is not None
