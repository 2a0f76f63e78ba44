"""Maximum request rate of an engine within its targets, by role.

Prompts form one queue, with passes of ``gamma + delta * tokens`` ms. Decoding requests form another, with a full batch
as its servers. An aggregated engine has both, and either bounds its rate: prefill passes interrupt the batch, and
during a request every other request of the batch is replaced once, with a pass each. Upstream adds these passes to the
TTFT instead. With prompts of 1,000 and outputs of 200 tokens it needs four times as many engines, and underestimates
the ITL.
"""

from functools import lru_cache
from math import ceil, exp, inf, log
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.queue_sizing import MaxRate, Targets, max_rate
from loadline.core.engines.queueing import QUEUE_MAX, EngineQueue
from loadline.core.vocabulary.scalars import Role

_LENGTH_STEP: Final = 0.02
"""Relative step to which lengths are rounded up, so that small changes hit the cache; a rate takes 0.1 ms."""
_CACHE_MAX: Final = 4_096
"""Cached rates: several for each pool of a few hundred models."""
_ENGINES_MAX: Final = 64
"""Engines considered as one queue; with more, hardly any prompt finds all of them busy."""
PASSES: Final = 1.5
"""Passes that a prompt takes: its own and, on average, half of the current one."""
_TARGET_MIN_MS: Final = 1e-3
"""Target in ms if nothing is left of it."""


class QueueEngine(Struct, frozen=True):
    """Latency parameters of an engine, and its largest batches."""

    times: LinearTimes
    batch_requests: int
    """Largest decode batch, in requests."""
    pass_requests: int
    """Largest number of prompts in a pass."""


class RequestLoad(Struct, frozen=True):
    """Load of a role: request rate and mean lengths."""

    requests_per_s: float
    isl_tokens: float
    """Prompt tokens to compute, without those found in prefix caches."""
    osl_tokens: float


def round_up_length(value: float) -> float:
    """Round a length up to the next step; 0 if it is not above 0."""
    return exp(ceil(log(value) / _LENGTH_STEP - 1e-9) * _LENGTH_STEP) if value > 0.0 else 0.0


def max_engine_rate(role: Role, engine: QueueEngine, work: RequestLoad, targets: Targets, engines_max: int) -> MaxRate:
    """Return the maximum rate of one engine within the targets, among about as many engines as the load needs.

    A prompt goes to a free engine. The more engines there are, the less it waits, and the more each one serves. The
    result is the rate with the largest number of engines that is known to be insufficient.

    Args:
        role: Role of the engine.
        engine: Latency parameters and batches of the engine.
        work: Load of all engines together.
        targets: Targets of the requests. The TTFT also bounds the wait of a request for decode.
        engines_max: Largest number of engines.

    Raises:
        ValueError: A length is out of bounds, or the time of a request is 0 or too long.
    """
    isl, osl = max(1.0, round_up_length(work.isl_tokens)), max(1.0, round_up_length(work.osl_tokens))
    if role == "decode":
        return _batch_rate(engine.times, 0.0, osl, engine.batch_requests, targets)
    initial_wait_ms, batch = 0.0, None
    if role == "aggregated" and osl > 1.0:
        # Iterations are not interrupted, so a prompt waits for the current one.
        initial_wait_ms, times = engine.times.alpha, stalled_times(engine.times, isl, osl - 1.0)
        batch = _batch_rate(times, isl, osl, engine.batch_requests, targets)
        if batch.requests_per_s <= 0.0:
            return batch
    prompt_ms = engine.times.gamma / engine.pass_requests + engine.times.delta * isl
    count_min = work.requests_per_s * max(prompt_ms / 1_000.0, 1.0 / batch.requests_per_s if batch else 0.0)
    count_max = max(1, min(engines_max, _ENGINES_MAX))
    count = int(max(1.0, min(count_max, count_min)))
    found = _prompt_rate(engine, isl, targets, initial_wait_ms, count)
    while count < count_max and found.requests_per_s * count < work.requests_per_s:
        count = min(count_max, count + max(1, count // 8))
        of_more_engines = _prompt_rate(engine, isl, targets, initial_wait_ms, count)
        if of_more_engines.requests_per_s * count >= work.requests_per_s:
            break
        found = of_more_engines
    return min(found, batch or found, key=lambda sized: sized.requests_per_s)


@lru_cache(_CACHE_MAX)
def _batch_rate(times: LinearTimes, isl: float, osl: float, batch_requests: int, targets: Targets) -> MaxRate:
    return max_rate(engine_queue(times, isl, osl, batch_requests), targets)


def stalled_times(times: LinearTimes, isl: float, steps: float) -> LinearTimes:
    """Return the latency parameters of a batch whose iterations are delayed by the prefill passes of other requests."""
    pass_ms = times.gamma + times.delta * isl
    each_ms = pass_ms / steps
    return LinearTimes(max(0.0, times.alpha - each_ms), times.beta + each_ms, pass_ms, 0.0)


@lru_cache(_CACHE_MAX)
def _prompt_rate(engine: QueueEngine, isl: float, targets: Targets, initial_wait_ms: float, engines: int) -> MaxRate:
    """Return the higher rate of two models: prompts share passes, or each prompt has an engine for itself.

    The first model fits short prompts, many of which share the fixed cost of a pass; a prompt waits for the current
    pass. In the second model, all engines form one queue with a batch of their number; it fits prompts so long that
    one that finds an engine busy must go to another.
    """
    times, pass_ms = engine.times, engine.times.gamma + engine.times.delta * isl
    shared_ttft_ms = initial_wait_ms + (targets.ttft_ms - initial_wait_ms) / PASSES
    shared = _rate_after_wait(
        initial_wait_ms, engine_queue(times, isl, 1.0, engine.pass_requests), replace(targets, ttft_ms=shared_ttft_ms)
    )
    alone = _rate_after_wait(
        initial_wait_ms, engine_queue(replace(times, gamma=pass_ms, delta=0.0), isl, 1.0, engines), targets
    )
    alone = replace(alone, requests_per_s=alone.requests_per_s / engines)
    return max(shared, alone, key=lambda sized: sized.requests_per_s)


def _rate_after_wait(initial_wait_ms: float, queue: EngineQueue, targets: Targets) -> MaxRate:
    """Return the maximum rate of a queue of prompts that first wait ``initial_wait_ms`` for the current iteration."""
    found = max_rate(
        queue, replace(targets, ttft_ms=max(_TARGET_MIN_MS, targets.ttft_ms - initial_wait_ms), itl_ms=inf)
    )
    return found if found.requests_per_s > 0.0 else replace(found, lowest_ms=found.lowest_ms + initial_wait_ms)


def engine_queue(times: LinearTimes, isl: float, osl: float, batch_requests: int) -> EngineQueue:
    """Return a queue that refuses no request. Upstream limits it to ten batches; percentiles then take 4 ms each."""
    return EngineQueue(times, isl, osl, batch_requests, QUEUE_MAX)
