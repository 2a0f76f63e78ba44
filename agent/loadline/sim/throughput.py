"""The most that one engine can do within an objective: what no autoscaler and no router can beat.

No waiting, no gap between two pieces of work, and every request as large as the one asked for. For prefill that is a
strict bound. For decode it is one at the mean context; equal requests that grow in step were seen 5% above it. Callers
that ask for many requests should round the sizes and remember the answers: one takes up to 0.3 ms.
"""

import math
from bisect import bisect_right

from loadline.sim.engine import EngineKnobs, Timing


def decode_tokens_per_s_max(timing: Timing, context_tokens: float, itl_ms: float, knobs: EngineKnobs) -> float:
    """Tokens a second at the best batch whose iterations take at most ``itl_ms`` and whose cache fits.

    Args:
        timing: The engine's times.
        context_tokens: Mean tokens that a request has in the cache; over its life that is ISL + OSL / 2.
        itl_ms: The objective.
        knobs: The engine's limits.

    Returns:
        0.0 where even one request alone does not meet the objective, or does not fit.
    """
    fit = min(knobs.max_batch_requests, knobs.kv_blocks_total // max(knobs.blocks(math.ceil(context_tokens)), 1))
    took_ms = ((batch, timing.itl_ms(batch, batch * context_tokens)) for batch in range(1, fit + 1))
    return max((batch * 1_000.0 / took for batch, took in took_ms if took <= itl_ms), default=0.0)


def prefill_tokens_per_s_max(timing: Timing, isl_tokens: int, ttft_ms: float, knobs: EngineKnobs) -> float:
    """Prompt tokens a second of prompts of one length, each computed within ``ttft_ms``.

    Without chunks that is the largest pass of whole prompts that takes so long. With chunks it is the fullest
    iteration: a prompt needs at least ``ISL / max_batched_tokens`` of them, rounded up, and all of them must lie within
    the objective. Where chunks ride along with a decode batch, an iteration's fixed cost is counted with the batch.

    Returns:
        0.0 where even one prompt alone does not meet the objective, or does not fit.
    """
    fit = min(knobs.max_batch_requests, knobs.kv_blocks_total // knobs.blocks(isl_tokens))
    pass_ms = timing.prefill_ms(0)
    prompt_ms = timing.prefill_ms(isl_tokens) - pass_ms
    passes = -(-isl_tokens // knobs.max_batched_tokens) if knobs.chunked_prefill else 1
    if fit == 0 or passes * pass_ms + prompt_ms > ttft_ms:
        return 0.0
    if knobs.chunked_prefill:
        spare_ms = ttft_ms / passes - pass_ms
        prompts = min(fit, knobs.max_batched_tokens / isl_tokens, spare_ms / prompt_ms if prompt_ms else math.inf)
        prompts = max(prompts, 1 / passes)  # what rounding takes away where one prompt just meets the objective
    else:
        fit = max(min(fit, knobs.max_batched_tokens // isl_tokens), 1)
        prompts = bisect_right(range(1, fit + 1), ttft_ms, key=lambda count: pass_ms + count * prompt_ms)
    shared_ms = pass_ms if knobs.role == "prefill" or not knobs.chunked_prefill else 0.0
    took_ms = shared_ms + prompts * prompt_ms
    return prompts * isl_tokens * 1_000.0 / took_ms if took_ms else math.inf
