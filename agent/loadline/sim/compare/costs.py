"""Minimum engine time of a request in any batch.

Each request gets a cost such that the costs of all requests in any prefill pass, or in any decode iteration, add up to
at most its duration. The costs of all requests of a trace are therefore at most the busy time of the engines.

Prefill: a prompt costs its own work plus a fraction of the fixed cost of a pass. The fraction is the prompt's part of
the pass's capacity in tokens, in requests, or in ms within the objective. Each of the three gives a lower bound, and
the highest one counts.

Decode: a batch of mean context ``c`` takes at least ``f(c)`` ms per token, at its best size. A straight line below
``f`` bounds the cost of each token by its own context for every mixture of contexts; the line with the highest total
counts. The *mean* iteration of a request that meets the objective takes at most ``itl_ms``, so the sum of
``weight * (itl - itl_ms)`` over its iterations is at most 0. This term may therefore be added to ``f``, for any weight
of at least 0.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadline.sim.engine import EngineKnobs, EngineTiming

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Ratio of the contexts at which f is evaluated; between them f differs from a straight line by about 0.01 %.
_CONTEXT_STEP: Final = 1.02
# ms per token that one more ms of ITL may save: 1,000 if a second request in the batch costs almost nothing.
_WEIGHT_MIN: Final = 1e-6
_WEIGHT_MAX: Final = 1e3
_SEARCH_STEPS: Final = 50


def prefill_ms(
    timing: EngineTiming, knobs: EngineKnobs, isl: IntArray, computed: IntArray, ttft_ms: float
) -> FloatArray:
    """Return the minimum time of each prompt, in ms.

    Args:
        timing: Times of the engine.
        knobs: Limits of the engine.
        isl: Tokens of each prompt.
        computed: Tokens at the end of each prompt that must be computed; the others are in a prefix cache.
        ttft_ms: TTFT objective; it is ignored for prompts that cannot meet it even alone.
    """
    pass_ms = timing.prefill_ms(0)
    work_ms = _pass_times_ms(timing, isl) - _pass_times_ms(timing, isl - computed)
    if knobs.chunked_prefill and knobs.role != "prefill":
        return work_ms  # the decode batch of the same iteration has its fixed cost
    tokens = computed / knobs.max_batched_tokens
    if not knobs.chunked_prefill:
        tokens = np.minimum(tokens, 1.0)  # a prompt above the limit has a pass of its own
    fractions = [tokens, np.full(len(isl), 1.0 / knobs.max_batch_requests)]
    attainable = pass_ms + work_ms <= ttft_ms
    share = np.empty(len(isl))
    share[~attainable] = _highest_total([fraction[~attainable] for fraction in fractions])
    fractions.append(work_ms / max(ttft_ms - pass_ms, math.ulp(0.0)) if attainable.any() else np.zeros(len(isl)))
    share[attainable] = _highest_total([fraction[attainable] for fraction in fractions])
    return work_ms + pass_ms * share


def decode_ms(timing: EngineTiming, knobs: EngineKnobs, isl: IntArray, osl: IntArray, itl_ms: float) -> FloatArray:
    """Return the minimum time of the tokens of each request after its first one, in ms.

    Args:
        timing: Times of the engine.
        knobs: Limits of the engine; every request must fit into the cache.
        isl: Tokens of each prompt.
        osl: Tokens that each request generates.
        itl_ms: ITL objective; it is ignored for requests that cannot meet it even alone.
    """
    context = isl + np.maximum(osl - 2, 0) / 2.0  # the newest token is not in the cache
    alone = {value: timing.itl_ms(1, value) for value in np.unique(context).tolist()}
    attainable = np.array([alone[value] for value in context.tolist()]) <= itl_ms
    cost = np.zeros(len(isl))
    for group, objective_ms in ((attainable, itl_ms), (~attainable, math.inf)):
        tokens = osl[group] - 1
        if tokens.sum() > 0:
            contexts, itl = _iterations(timing, knobs, int(isl[group].min()), int((isl + osl)[group].max()))
            slope, level = _highest_line(contexts, itl, np.average(context[group], weights=tokens), objective_ms)
            cost[group] = tokens * (level + slope * context[group])
    return cost


def _pass_times_ms(timing: EngineTiming, tokens: IntArray) -> FloatArray:
    """Return the time of a pass over each prompt, computed once per distinct length."""
    distinct, places = np.unique(tokens, return_inverse=True)
    times_ms: FloatArray = np.array([timing.prefill_ms(value) for value in distinct.tolist()])[places]
    return times_ms


def _highest_total(shares: list[FloatArray]) -> FloatArray:
    return max(shares, key=lambda share: float(share.sum()))


def _iterations(
    timing: EngineTiming, knobs: EngineKnobs, context_min: int, context_max: int
) -> tuple[FloatArray, FloatArray]:
    """Return mean contexts, and the iteration time by context and batch size; infinite if the batch does not fit."""
    steps = math.ceil(math.log((context_max + 1) / context_min) / math.log(_CONTEXT_STEP))
    contexts = np.geomspace(context_min, context_max + 1, steps + 1)
    kv_tokens = knobs.kv_blocks_total * knobs.block_size_tokens
    below = np.concatenate((contexts[:1], contexts[:-1]))  # a batch that fits just below this context counts as fitting
    fits = np.clip(kv_tokens // below, 1, knobs.max_batch_requests).astype(int)
    itl = np.full((len(contexts), fits.max()), math.inf)
    for row, context, fit in zip(itl, contexts.tolist(), fits.tolist(), strict=True):
        row[:fit] = [timing.itl_ms(batch, batch * context) for batch in range(1, fit + 1)]
    return contexts, itl


def _highest_line(contexts: FloatArray, itl: FloatArray, mean: float, objective_ms: float) -> tuple[float, float]:
    """Return slope and level of the line below f that is highest at the mean context, over all weights."""
    per_request = itl / np.arange(1, itl.shape[1] + 1)

    def line(weight: float) -> tuple[float, float]:
        return _line_below(
            contexts, (per_request + weight * (itl - objective_ms) if weight else per_request).min(axis=1), mean
        )

    def height(weight: float) -> float:
        slope, level = line(weight)
        return level + slope * mean

    weights = [0.0]
    if math.isfinite(objective_ms):
        low, high = math.log(_WEIGHT_MIN), math.log(_WEIGHT_MAX)
        for _ in range(_SEARCH_STEPS):  # the height is concave in the weight
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (left, high) if height(math.exp(left)) < height(math.exp(right)) else (low, right)
        weights.append(math.exp(low))
    return line(max(weights, key=height))


def _line_below(contexts: FloatArray, costs: FloatArray, mean: float) -> tuple[float, float]:
    """Return slope and level of the line below all costs that is highest at the mean; it passes through two of them."""
    split = min(int(np.searchsorted(contexts, mean, side="right")), len(contexts) - 1)
    left, right = contexts[:split, None], contexts[None, split:]
    share = (mean - left) / (right - left)
    heights = costs[:split, None] * (1.0 - share) + costs[None, split:] * share
    low, high = np.unravel_index(int(heights.argmin()), heights.shape)
    slope = float((costs[split + high] - costs[low]) / (contexts[split + high] - contexts[low]))
    return slope, float(costs[low] - slope * contexts[low])
