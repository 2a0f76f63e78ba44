"""Requests a second that one prefill engine can take, from the line of its iterations: time against prompt tokens."""

from math import ceil, inf
from typing import Final

from msgspec import Struct

from loadline.core.models.regression import Line

TOKENS_MAX: Final = 8_192
"""Largest batch of an engine that does not say, in tokens."""
REQUESTS_MAX: Final = 512
"""Largest batch of an engine that does not say, in requests."""


class Capacity(Struct, frozen=True):
    """The batch size that serves most."""

    requests_per_s: float
    ttft_ms: float
    batch_requests: int


def prefill_capacity(
    line: Line, isl_tokens: float, ttft_ms: float, tokens_max: int = TOKENS_MAX, requests_max: int = REQUESTS_MAX
) -> Capacity | None:
    """The batch of highest rate whose iteration takes at most ``ttft_ms``; None: not even one prompt meets it.

    Args:
        line: Iteration time against prompt tokens, in ms.
        isl_tokens: What is left to compute of a prompt after the prefix cache (``replicas.computed_isl``).
        ttft_ms: The objective.
        tokens_max: Largest batch, in tokens; a longer prompt is computed alone.
        requests_max: Largest batch, in requests.
    """
    isl = max(1, ceil(isl_tokens))
    largest = max(1, min(requests_max, tokens_max // isl))
    if line.slope > 0.0:
        # Only what every iteration costs, whatever is in it, is shared: the rate rises with the batch.
        fits = (ttft_ms - line.intercept_ms) / (line.slope * isl) + 1e-9
    else:
        fits = inf if line.at(isl) <= ttft_ms else 0.0
    batch = largest if fits >= largest else int(max(0.0, fits))
    took = line.at(batch * isl)
    if batch == 0 or took == 0.0:
        return None
    return Capacity(batch / took * 1_000.0, took, batch)
