"""Mean latencies that the queueing model predicts for the engines of a pool under a load.

The queues are those of ``queue_rates``, which computes the inverse: the load that the engines serve within targets.
"""

from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.engines.queue_rates import (
    PASSES,
    QueueEngine,
    RequestLoad,
    engine_queue,
    round_up_length,
    stalled_times,
)
from loadline.core.engines.queueing import EngineQueue
from loadline.core.vocabulary.scalars import Role

_CACHE_MAX: Final = 4_096
"""Cached predictions: between two sizings the load of a pool is the same."""


class QueuePrediction(Struct, frozen=True):
    """Predicted means; a latency is None if the role does not determine it, or if it grows without end."""

    ttft_ms: float | None
    itl_ms: float | None
    utilisation: float
    """Load divided by the highest load that the engines serve; above 1, requests accumulate."""


@lru_cache(_CACHE_MAX)
def predict(role: Role, engine: QueueEngine, load: RequestLoad, engines: int) -> QueuePrediction:
    """Return the prediction for ``engines`` engines that share a load.

    Raises:
        ValueError: A length is out of bounds, or the time of a request is 0 or too long.
    """
    isl, osl = (max(1.0, round_up_length(tokens)) for tokens in (load.isl_tokens, load.osl_tokens))
    rate = load.requests_per_s / engines
    if role == "decode":
        itl_ms, utilisation = _batch(engine_queue(engine.times, 0.0, osl, engine.batch_requests), rate)
        return QueuePrediction(None, itl_ms, utilisation)
    wait_ms, itl, decode_utilisation = 0.0, None, 0.0
    if role == "aggregated" and osl > 1.0:
        wait_ms, times = engine.times.alpha, stalled_times(engine.times, isl, osl - 1.0)
        itl, decode_utilisation = _batch(engine_queue(times, isl, osl, engine.batch_requests), rate)
    ttft_ms, utilisation = _prompt(engine, isl, rate, engines)
    highest = max(utilisation, decode_utilisation)
    return QueuePrediction(None if highest >= 1.0 else wait_ms + ttft_ms, itl, highest)


def _prompt(engine: QueueEngine, isl: float, rate: float, engines: int) -> tuple[float, float]:
    """Return the mean TTFT in ms and the utilisation, each by the model that serves more; see ``queue_rates``."""
    times, pass_ms = engine.times, engine.times.gamma + engine.times.delta * isl
    shared = engine_queue(times, isl, 1.0, engine.pass_requests)
    alone = engine_queue(replace(times, gamma=pass_ms, delta=0.0), isl, 1.0, engines)
    together = rate * engines
    ttft_ms = min(PASSES * _time_ms(shared, rate), _time_ms(alone, together))
    return ttft_ms, min(_utilisation(shared, rate), _utilisation(alone, together))


def _batch(queue: EngineQueue, rate: float) -> tuple[float, float]:
    """Return the mean ITL in ms and the utilisation of a batch."""
    batch = queue.steady_state(max(rate, queue.rate_range_per_s[0])).batch_requests
    return queue.times.alpha + queue.times.beta * batch, _utilisation(queue, rate)


def _time_ms(queue: EngineQueue, rate: float) -> float:
    """Return the mean time of a prompt, its wait included."""
    state = queue.steady_state(max(rate, queue.rate_range_per_s[0]))
    return queue.prefill_fixed_ms + queue.prefill_each_ms * state.batch_requests + state.waiting_ms


def _utilisation(queue: EngineQueue, rate: float) -> float:
    return rate / (1_000.0 * queue.rate_max)
