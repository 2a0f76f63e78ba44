"""What prefill engines can take, and how many of them keep the time to first token.

An engine computes all prompts that wait in one pass. It takes what every pass takes, such as reading the weights, and
what its prompts add. So the busier an engine is, the more prompts wait while it is in a pass, the larger is the next
one, and the less each of them costs: until two passes, the one under way and its own, take a prompt too long.
"""

from math import ceil, fsum, inf
from typing import Final

from msgspec import Struct

from loadline.core.engines.regression import Line
from loadline.core.planning.sizing.erlang import workers_within
from loadline.core.planning.sizing.replicas import REPLICAS_MAX

TOKENS_MAX: Final = 8_192
"""Largest batch of an engine that does not say, in tokens."""
REQUESTS_MAX: Final = 512
"""Largest batch of an engine that does not say, in requests."""
_STEP: Final = 1.2
"""Between two mean batches that are tried: steps of 1.1 save at most 2 workers of 100."""


class Capacity(Struct, frozen=True):
    """The batch size that serves most."""

    requests_per_s: float
    ttft_ms: float
    batch_requests: int


def prefill_capacity(
    line: Line, isl_tokens: float, ttft_ms: float, tokens_max: float = TOKENS_MAX, requests_max: float = REQUESTS_MAX
) -> Capacity | None:
    """The batch of highest rate whose iteration takes at most ``ttft_ms``; None: not even one prompt meets it.

    Args:
        line: Iteration time against prompt tokens, in ms.
        isl_tokens: What is left to compute of a prompt after the prefix cache (``lengths.computed_isl``).
        ttft_ms: The objective.
        tokens_max: Largest batch, in tokens; a longer prompt is computed alone.
        requests_max: Largest batch, in requests.
    """
    isl = max(1, ceil(isl_tokens))
    largest = int(max(1, min(requests_max, tokens_max // isl)))
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


class Prompts(Struct, frozen=True):
    """What prompts take of an engine."""

    line: Line
    """Time of a pass against its prompt tokens, in ms."""
    isl_tokens: float
    """Mean, of what is to be computed."""
    spread: float
    """``(1 + cv^2) / 2`` of that length."""
    alone_ms: tuple[tuple[float, float], ...]
    """TTFT of a prompt that does not wait and is alone in its pass, in ms, and the part of the prompts that has it."""
    tokens_max: float = TOKENS_MAX
    requests_max: float = REQUESTS_MAX

    @property
    def ttft_ms(self) -> float:
        """Mean, of prompts that are alone."""
        return fsum(part * ms for ms, part in self.alone_ms)

    @property
    def square_ms2(self) -> float:
        """Mean square of the time of prompts that are alone."""
        return fsum(part * ms * ms for ms, part in self.alone_ms)

    @property
    def prompt_ms(self) -> float:
        """What a prompt adds to a pass, on average."""
        return self.line.slope * self.isl_tokens

    def pass_ms(self, batch: float) -> float:
        """What a pass over so many of them takes."""
        return self.line.intercept_ms + batch * self.prompt_ms


class Engines(Struct, frozen=True):
    """How many a load needs."""

    busy: float
    """On average."""
    workers: int


def prefill_engines(prompts: Prompts, requests_per_s: float, ttft_ms: float, attainment: float) -> Engines:
    """The fewest engines with which a share of the prompts is in time, whatever mean batch comes of it.

    A prompt that misses the objective even alone is not counted: no number of engines helps it. Where all do, they wait
    no longer than the objective.

    Args:
        prompts: What they take.
        requests_per_s: How many arrive.
        ttft_ms: The objective.
        attainment: Share (0..1) of those that can be in time.
    """
    capacity = prefill_capacity(prompts.line, prompts.isl_tokens, ttft_ms, prompts.tokens_max, prompts.requests_max)
    batch_max = 1 if capacity is None else capacity.batch_requests
    slacks = sorted((ttft_ms - ms, part) for ms, part in prompts.alone_ms if ms < ttft_ms) or [(ttft_ms, 1.0)]
    able = fsum(part for _, part in slacks)
    fewest = (
        int(requests_per_s * prompts.pass_ms(batch_max) / batch_max / 1_000.0) + 1
    )  # the largest batch is the fastest
    found, batch = Engines(0.0, REPLICAS_MAX), 1.0
    while batch <= batch_max and found.workers > fewest:
        added_ms = batch * prompts.prompt_ms
        service_ms = prompts.pass_ms(batch)
        busy = requests_per_s * service_ms / batch / 1_000.0
        others_ms = added_ms - prompts.prompt_ms
        waits = [(slack_ms - others_ms, part / able) for slack_ms, part in slacks]
        # Of a pass only what its prompts add varies, and less so the more there are.
        spread = 0.5 + (prompts.spread - 0.5) * (added_ms / service_ms) ** 2 / batch
        full = batch > 1.0
        workers = workers_within(busy, service_ms, waits, attainment, spread, full=full, most=found.workers)
        if workers is None:  # two passes take too long, and larger ones longer
            break
        if workers < found.workers:
            found = Engines(busy, workers)
        batch *= _STEP
    return found
