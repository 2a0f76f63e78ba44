"""How many requests a second one engine of several alike serves within its targets, by its role.

Prompts are one queue, whose passes take ``gamma + delta * tokens`` ms. Requests that decode are another, where who
finds the batch full waits. An aggregated engine is both at once, and each bounds its rate. In the second its prompts
hold up the batch: over the life of a request all others in the batch come and go, and each of them takes a pass. In the
original the others' passes are a part of the TTFT instead; of prompts of 1,000 tokens and outputs of 200 it takes four
times as many engines, and the ITL that requests see is higher than it says.
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

_STEP: Final = 0.02
"""Lengths are rounded up to steps of so much of them: a rate takes 0.1 ms, and lengths move a little all the time."""
_CACHED: Final = 4_096
"""Rates that are kept: some for each pool of some hundred models."""
_TOGETHER: Final = 64
"""Engines that are looked at as one queue: of more, hardly any prompt finds all of them busy."""
_PASSES: Final = 1.5
"""Passes that a prompt takes: its own, and on average half of the one that is under way."""
_UNREACHED: Final = 1e-3
"""In the place of a target, in ms, of which nothing is left."""


class QueueEngine(Struct, frozen=True):
    """What an engine takes, and how much together."""

    times: LinearTimes
    batch_requests: int
    """Most requests that decode together."""
    pass_requests: int
    """Most prompts of one pass."""


class RequestLoad(Struct, frozen=True):
    """What the requests of a role ask of its engines: how many a second, and their mean lengths, a token at least."""

    requests_per_s: float
    isl_tokens: float
    """As far as they are left to compute."""
    osl_tokens: float


def round_up_length(value: float) -> float:
    """A number above 0, rounded up to the next step; 0 where it is not."""
    return exp(ceil(log(value) / _STEP - 1e-9) * _STEP) if value > 0.0 else 0.0


def max_engine_rate(role: Role, engine: QueueEngine, work: RequestLoad, targets: Targets, engines_max: int) -> MaxRate:
    """The largest rate of one engine within the targets, where there are almost as many as the work needs.

    A prompt goes to an engine that is free: the more of them there are, the seldomer it waits, and the more each of
    them serves. So it is the rate of the most that are known not to be enough.

    Args:
        role: Of the engine.
        engine: What it takes.
        work: What is asked of all of them.
        targets: Of the requests. To decode, a request waits no longer than the TTFT: to its user that is no different.
        engines_max: There are no more.

    Raises:
        ValueError: A length is out of bounds, or a request would take no time, or for ever.
    """
    isl, osl = max(1.0, round_up_length(work.isl_tokens)), max(1.0, round_up_length(work.osl_tokens))
    if role == "decode":
        return _batch_rate(engine.times, 0.0, osl, engine.batch_requests, targets)
    first_ms, batch = 0.0, None
    if role == "aggregated" and osl > 1.0:
        # No iteration is interrupted: who comes waits for the one under way.
        first_ms, times = engine.times.alpha, _held_up(engine.times, isl, osl - 1.0)
        batch = _batch_rate(times, isl, osl, engine.batch_requests, targets)
        if batch.requests_per_s <= 0.0:
            return batch
    prompt_ms = engine.times.gamma / engine.pass_requests + engine.times.delta * isl
    fewest = work.requests_per_s * max(prompt_ms / 1_000.0, 1.0 / batch.requests_per_s if batch else 0.0)
    most = max(1, min(engines_max, _TOGETHER))
    count = int(max(1.0, min(most, fewest)))
    found = _prompt_rate(engine, isl, targets, first_ms, count)
    while count < most and found.requests_per_s * count < work.requests_per_s:
        count = min(most, count + max(1, count // 8))
        more = _prompt_rate(engine, isl, targets, first_ms, count)
        if more.requests_per_s * count >= work.requests_per_s:
            break
        found = more
    return min(found, batch or found, key=lambda sized: sized.requests_per_s)


@lru_cache(_CACHED)
def _batch_rate(times: LinearTimes, isl: float, osl: float, batch_requests: int, targets: Targets) -> MaxRate:
    return max_rate(_queue(times, isl, osl, batch_requests), targets)


def _held_up(times: LinearTimes, isl: float, steps: float) -> LinearTimes:
    """Times of a batch whose iterations wait for the passes of the others; its own pass takes each as long as alone."""
    pass_ms = times.gamma + times.delta * isl
    each_ms = pass_ms / steps
    return LinearTimes(max(0.0, times.alpha - each_ms), times.beta + each_ms, pass_ms, 0.0)


@lru_cache(_CACHED)
def _prompt_rate(engine: QueueEngine, isl: float, targets: Targets, first_ms: float, engines: int) -> MaxRate:
    """By the better of two views: each engine computes what waits in one pass, or each prompt has an engine for itself.

    The first is true of short prompts, of which many share what a pass costs; who comes waits for the one under way. In
    the second the engines are one queue, whose batch is as large as they are many: of prompts so long that there is no
    time for another one first, who finds one engine busy goes to another.
    """
    times, pass_ms = engine.times, engine.times.gamma + engine.times.delta * isl
    spare_ms = first_ms + (targets.ttft_ms - first_ms) / _PASSES
    shared = _after(first_ms, _queue(times, isl, 1.0, engine.pass_requests), replace(targets, ttft_ms=spare_ms))
    alone = _after(first_ms, _queue(replace(times, gamma=pass_ms, delta=0.0), isl, 1.0, engines), targets)
    alone = replace(alone, requests_per_s=alone.requests_per_s / engines)
    return max(shared, alone, key=lambda sized: sized.requests_per_s)


def _after(first_ms: float, queue: EngineQueue, targets: Targets) -> MaxRate:
    """The largest rate of a queue of prompts that wait so long first, for what is under way and not interrupted."""
    found = max_rate(queue, replace(targets, ttft_ms=max(_UNREACHED, targets.ttft_ms - first_ms), itl_ms=inf))
    return found if found.requests_per_s > 0.0 else replace(found, lowest_ms=found.lowest_ms + first_ms)


def _queue(times: LinearTimes, isl: float, osl: float, batch_requests: int) -> EngineQueue:
    """Nobody is refused, while the original lets ten batches wait: the percentiles of a short queue take 4 ms each."""
    return EngineQueue(times, isl, osl, batch_requests, QUEUE_MAX)
