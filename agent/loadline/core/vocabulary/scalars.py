"""The words, numbers and texts that knobs, events and messages are made of, with the bounds that decoders enforce."""

from typing import Annotated, Final, Literal

from msgspec import Meta

Role = Literal["prefill", "decode", "aggregated"]
WorkerPhase = Literal["starting", "ready", "draining"]

# 2**53: the largest integer that every JSON reader keeps exact.
Count = Annotated[int, Meta(ge=0, le=2**53)]
WORKERS_MAX: Final = 1_000_000
"""Of one pool: what no fleet has. A count above it is a slip."""
Workers = Annotated[int, Meta(ge=0, le=WORKERS_MAX)]
# The bounds also refuse NaN, which MessagePack would let through.
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Milliseconds = Annotated[float, Meta(ge=0.0, le=1e12)]
# Of one request: ten times the longest contexts there are. One slip of a frontend is not to outweigh all the others.
TOKENS_MAX: Final = 1e7
Tokens = Annotated[float, Meta(ge=0.0, le=TOKENS_MAX)]
# Printable, no control characters: names end up in log lines, subjects and keys.
# A character takes up to twelve bytes in a subject and a load subject holds three names: 100 each stay below the 4096
# bytes of a line of NATS' protocol, which cuts off whoever sends more.
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Text = Annotated[str, Meta(max_length=256)]
