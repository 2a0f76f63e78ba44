"""What a request takes of an engine at the least, whatever it is batched with.

A price is put on each request so that the prices of all requests in any pass, or in any decode iteration, add up to no
more than its time. So the prices of all requests of a trace are no more than the time that engines are busy with them.

Prefill: a prompt pays its own work, and of what every pass costs a share of what a pass has room for: tokens, requests,
or ms within the objective. Each of the three is a bound of its own; the one that comes to most counts.

Decode: a batch of mean context ``c`` takes at least ``f(c)`` ms a token, at its best size. A straight line below ``f``
that prices each token by its own context holds for every mixture of contexts, and the line counts that comes to most.
That the *mean* of the iterations that a request sees is within the objective lifts ``f`` by ``weight * (itl - itl_ms)``
for any weight from 0 on: what is added over all iterations is then at most 0.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadline.sim.engine import EngineKnobs, EngineTiming

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# f is read at contexts this far apart; between them it differs from a straight line by some 0.01 %.
_CONTEXT_STEP: Final = 1.02
# ms a token that one ms of ITL more may save: 1,000 where a second request in the batch costs almost nothing.
_WEIGHT_LEAST: Final = 1e-6
_WEIGHT_MOST: Final = 1e3
_TRIES: Final = 50


def prefill_ms(
    timing: EngineTiming, knobs: EngineKnobs, isl: IntArray, computed: IntArray, ttft_ms: float
) -> FloatArray:
    """The least time of each prompt, in ms.

    Args:
        timing: The engine's times.
        knobs: Its limits.
        isl: Tokens of each prompt.
        computed: The last so many of them have to be computed; the others are in a prefix cache.
        ttft_ms: The objective. Prompts that cannot meet it even alone have none.
    """
    pass_ms = timing.prefill_ms(0)
    work_ms = _each(timing, isl) - _each(timing, isl - computed)
    if knobs.chunked_prefill and knobs.role != "prefill":
        return work_ms  # an iteration's fixed cost is counted with the batch beside it
    tokens = computed / knobs.max_batched_tokens
    if not knobs.chunked_prefill:
        tokens = np.minimum(tokens, 1.0)  # a prompt above the limit has a pass of its own
    rooms = [tokens, np.full(len(isl), 1.0 / knobs.max_batch_requests)]
    in_time = pass_ms + work_ms <= ttft_ms
    share = np.empty(len(isl))
    share[~in_time] = _most([room[~in_time] for room in rooms])
    rooms.append(work_ms / max(ttft_ms - pass_ms, math.ulp(0.0)) if in_time.any() else np.zeros(len(isl)))
    share[in_time] = _most([room[in_time] for room in rooms])
    return work_ms + pass_ms * share


def decode_ms(timing: EngineTiming, knobs: EngineKnobs, isl: IntArray, osl: IntArray, itl_ms: float) -> FloatArray:
    """The least time of the tokens of each request after its first one, in ms.

    Args:
        timing: The engine's times.
        knobs: Its limits; every request must fit into the cache.
        isl: Tokens of each prompt.
        osl: Tokens that each request generates.
        itl_ms: The objective. Requests that cannot meet it even alone have none.
    """
    context = isl + np.maximum(osl - 2, 0) / 2.0  # the newest token is not in the cache
    alone = {value: timing.itl_ms(1, value) for value in np.unique(context).tolist()}
    in_time = np.array([alone[value] for value in context.tolist()]) <= itl_ms
    cost = np.zeros(len(isl))
    for group, objective_ms in ((in_time, itl_ms), (~in_time, math.inf)):
        tokens = osl[group] - 1
        if tokens.sum() > 0:
            contexts, itl = _iterations(timing, knobs, int(isl[group].min()), int((isl + osl)[group].max()))
            slope, level = _dearest_line(contexts, itl, np.average(context[group], weights=tokens), objective_ms)
            cost[group] = tokens * (level + slope * context[group])
    return cost


def _each(timing: EngineTiming, tokens: IntArray) -> FloatArray:
    """The time of a pass over each, computed once for those that are equal."""
    different, places = np.unique(tokens, return_inverse=True)
    took: FloatArray = np.array([timing.prefill_ms(value) for value in different.tolist()])[places]
    return took


def _most(shares: list[FloatArray]) -> FloatArray:
    return max(shares, key=lambda share: float(share.sum()))


def _iterations(timing: EngineTiming, knobs: EngineKnobs, least: int, most: int) -> tuple[FloatArray, FloatArray]:
    """Mean contexts, and for each the times of iterations by batch size; infinite where the cache does not hold it."""
    steps = math.ceil(math.log((most + 1) / least) / math.log(_CONTEXT_STEP))
    contexts = np.geomspace(least, most + 1, steps + 1)
    kv_tokens = knobs.kv_blocks_total * knobs.block_size_tokens
    below = np.concatenate((contexts[:1], contexts[:-1]))  # what fits a little below counts as fitting here
    fits = np.clip(kv_tokens // below, 1, knobs.max_batch_requests).astype(int)
    itl = np.full((len(contexts), fits.max()), math.inf)
    for row, context, fit in zip(itl, contexts.tolist(), fits.tolist(), strict=True):
        row[:fit] = [timing.itl_ms(batch, batch * context) for batch in range(1, fit + 1)]
    return contexts, itl


def _dearest_line(contexts: FloatArray, itl: FloatArray, mean: float, objective_ms: float) -> tuple[float, float]:
    """Slope and level of the line below f that is highest at the mean context, of all weights of the objective."""
    each = itl / np.arange(1, itl.shape[1] + 1)

    def line(weight: float) -> tuple[float, float]:
        return _line_below(contexts, (each + weight * (itl - objective_ms) if weight else each).min(axis=1), mean)

    def height(weight: float) -> float:
        slope, level = line(weight)
        return level + slope * mean

    weights = [0.0]
    if math.isfinite(objective_ms):
        low, high = math.log(_WEIGHT_LEAST), math.log(_WEIGHT_MOST)
        for _ in range(_TRIES):  # the height is concave in the weight
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (left, high) if height(math.exp(left)) < height(math.exp(right)) else (low, right)
        weights.append(math.exp(low))
    return line(max(weights, key=height))


def _line_below(contexts: FloatArray, costs: FloatArray, mean: float) -> tuple[float, float]:
    """Slope and level of the line that is below all costs and highest at the mean: it goes through two of them."""
    split = min(int(np.searchsorted(contexts, mean, side="right")), len(contexts) - 1)
    left, right = contexts[:split, None], contexts[None, split:]
    share = (mean - left) / (right - left)
    heights = costs[:split, None] * (1.0 - share) + costs[None, split:] * share
    low, high = np.unravel_index(int(heights.argmin()), heights.shape)
    slope = float((costs[split + high] - costs[low]) / (contexts[split + high] - contexts[low]))
    return slope, float(costs[low] - slope * contexts[low])
