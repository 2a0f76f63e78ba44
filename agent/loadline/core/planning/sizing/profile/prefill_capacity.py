"""Capacity of prefill engines, and the number of engines that keeps the time to first token within an objective.

An engine computes all waiting prompts in one pass. A pass has a fixed cost, such as reading the weights, and a cost per
token. The busier an engine is, the more prompts wait during a pass, the larger the next pass is, and the less each
prompt costs. This ends where two passes, the current one and its own, take too long for a prompt.
"""

from math import ceil, fsum, inf
from typing import Final

from msgspec import Struct

from loadline.core.engines.regression import Line
from loadline.core.planning.sizing.erlang import ServiceWaits
from loadline.core.planning.sizing.replicas import REPLICAS_MAX

TOKENS_MAX: Final = 8_192
"""Largest batch in tokens of an engine that does not report it."""
REQUESTS_MAX: Final = 512
"""Largest batch in requests of an engine that does not report it."""
_BATCH_STEP: Final = 1.2
"""Ratio of successive mean batches that are tried: a ratio of 1.1 saves at most 2 workers of 100."""
_WAITING_SHARE: Final = 1.0 / 3.0
"""Least part of the permitted misses that are left to waiting, however many prompts miss the objective even alone. With
a fifth, traces with many such prompts have 0.04 points more within SLO for 1.1 % more GPU-hours."""


class Capacity(Struct, frozen=True):
    """Batch with the highest rate, its rate and its time to first token."""

    requests_per_s: float
    ttft_ms: float
    batch_requests: int


def prefill_capacity(
    line: Line, isl_tokens: float, ttft_ms: float, tokens_max: float = TOKENS_MAX, requests_max: float = REQUESTS_MAX
) -> Capacity | None:
    """Return the batch with the highest rate whose pass takes at most ``ttft_ms``; None if one prompt takes longer.

    Args:
        line: Time of a pass in ms against prompt tokens.
        isl_tokens: Prompt tokens to compute (``lengths.computed_isl``).
        ttft_ms: The objective.
        tokens_max: Largest batch in tokens; a longer prompt is computed alone.
        requests_max: Largest batch in requests.
    """
    isl = max(1, ceil(isl_tokens))
    largest = int(max(1, min(requests_max, tokens_max // isl)))
    if line.slope > 0.0:
        # Prompts share only the fixed cost of a pass, so the rate rises with the batch.
        fits = (ttft_ms - line.intercept_ms) / (line.slope * isl) + 1e-9
    else:
        fits = inf if line.at(isl) <= ttft_ms else 0.0
    batch = largest if fits >= largest else int(max(0.0, fits))
    pass_ms = line.at(batch * isl)
    if batch == 0 or pass_ms == 0.0:
        return None
    return Capacity(batch / pass_ms * 1_000.0, pass_ms, batch)


class Prompts(Struct, frozen=True):
    """Time that prompts take on an engine."""

    line: Line
    """Time of a pass in ms against its prompt tokens."""
    isl_tokens: float
    """Mean number of tokens to compute."""
    variability: float
    """``(1 + cv^2) / 2`` of that number."""
    alone_ms: tuple[tuple[float, float], ...]
    """TTFT in ms of a prompt that does not wait and is alone in its pass, and the fraction of prompts with it."""
    tokens_max: float = TOKENS_MAX
    requests_max: float = REQUESTS_MAX

    @property
    def ttft_ms(self) -> float:
        """Mean TTFT of prompts that are alone."""
        return fsum(part * ms for ms, part in self.alone_ms)

    @property
    def square_ms2(self) -> float:
        """Mean squared TTFT of prompts that are alone."""
        return fsum(part * ms * ms for ms, part in self.alone_ms)

    @property
    def prompt_ms(self) -> float:
        """Mean time that a prompt adds to a pass."""
        return self.line.slope * self.isl_tokens

    def pass_ms(self, batch: float) -> float:
        """Return the time of a pass over ``batch`` prompts."""
        return self.line.intercept_ms + batch * self.prompt_ms


class EngineCount(Struct, frozen=True):
    """Number of engines for a load: those that are busy on average, and all of them."""

    busy: float
    workers: int


class _MeanBatch(Struct, frozen=True):
    """Passes with a mean batch: their time, and the waits that it leaves."""

    service_ms: float
    waits: ServiceWaits


class PrefillSizing:
    """Smallest number of engines with which a fraction of the prompts is within SLO, at any mean batch.

    Prompts that miss the objective even alone use up permitted misses, so that fewer others may wait for too long. If
    all prompts do, they wait no longer than the objective.

    Args:
        prompts: Time that prompts take.
        ttft_ms: The objective.
        attainment: Fraction (0..1) of all prompts that is to meet the objective.
    """

    def __init__(self, prompts: Prompts, ttft_ms: float, attainment: float) -> None:
        capacity = prefill_capacity(prompts.line, prompts.isl_tokens, ttft_ms, prompts.tokens_max, prompts.requests_max)
        self._prompts = prompts
        self._batch_max = 1 if capacity is None else capacity.batch_requests
        self._slacks = sorted((ttft_ms - ms, part) for ms, part in prompts.alone_ms if ms < ttft_ms) or [(ttft_ms, 1.0)]
        self._feasible = fsum(part for _, part in self._slacks)
        self._attainment = min(attainment / self._feasible, 1.0 - _WAITING_SHARE * (1.0 - attainment))
        self._batches: list[_MeanBatch] = []  # no rate of arrivals changes them

    def engines(self, requests_per_s: float) -> EngineCount:
        """Return the engines for so many arrivals."""
        # The largest batch has the highest rate.
        fewest = int(requests_per_s * self._prompts.pass_ms(self._batch_max) / self._batch_max / 1_000.0) + 1
        best, requests, place = EngineCount(0.0, REPLICAS_MAX), 1.0, 0
        while requests <= self._batch_max and best.workers > fewest:
            if place == len(self._batches):
                self._batches.append(self._batch(requests))
            batch = self._batches[place]
            busy = requests_per_s * batch.service_ms / requests / 1_000.0
            workers = batch.waits.workers(busy, best.workers)
            if workers is None:  # two passes take too long, and larger ones take longer
                break
            if workers < best.workers:
                best = EngineCount(busy, workers)
            requests, place = requests * _BATCH_STEP, place + 1
        return best

    def _batch(self, requests: float) -> _MeanBatch:
        prompts = self._prompts
        batch_ms, service_ms = requests * prompts.prompt_ms, prompts.pass_ms(requests)
        others_ms = batch_ms - prompts.prompt_ms
        waits = [(slack_ms - others_ms, part / self._feasible) for slack_ms, part in self._slacks]
        # Only the time of its prompts varies between passes, and the less the more prompts there are.
        variability = 0.5 + (prompts.variability - 0.5) * (batch_ms / service_ms) ** 2 / requests
        always_busy = requests > 1.0
        return _MeanBatch(
            service_ms, ServiceWaits(service_ms, waits, self._attainment, variability, always_busy=always_busy)
        )
