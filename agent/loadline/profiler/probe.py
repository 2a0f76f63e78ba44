"""Facts of an engine before its measurement: its dialect, limits and prompts."""

import math
from typing import Final

from loadline.profiler.endpoint import Dialect, EngineEndpoint, ModelCard
from loadline.profiler.plan import Limits
from loadline.profiler.problems import EngineProblem, RequestRefused
from loadline.profiler.prompts import PromptSource, TextPrompts, TokenPrompts
from loadline.profiler.stream import StreamTiming
from loadline.profiler.watch import EngineWatch

_TOKENS: Final = 32
_WORDS: Final = (50, 150)
_STREAMED_MIN: Final = 0.02
"""Fraction of the time of a short answer during which its tokens arrive; below it, something collects them."""
_CONTEXT_MAX: Final = 16_384
_BLOCK_TOKENS: Final = 16
_DIALECTS: Final = (Dialect(), Dialect(ignore_eos=False), Dialect(chat=True), Dialect(chat=True, ignore_eos=False))


async def find_dialect(endpoint: EngineEndpoint, model: str) -> PromptSource:
    """Set the form of requests that an engine accepts; return a source of prompts for it.

    Raises:
        EngineProblem: It accepts none, or does not stream.
    """
    attempts: list[tuple[Dialect, PromptSource]] = [(_DIALECTS[0], TokenPrompts()), (_DIALECTS[1], TokenPrompts())]
    attempts += [(dialect, TextPrompts()) for dialect in _DIALECTS]
    refusals = []
    for dialect, prompts in attempts:
        endpoint.dialect = dialect
        try:
            await endpoint.generate(model, prompts.fresh(_TOKENS), _TOKENS)  # also warms the engine up
        except RequestRefused as error:
            refusals.append(error)
            continue
        _check_streamed(endpoint, await endpoint.generate(model, prompts.fresh(_TOKENS), _TOKENS))
        return prompts if isinstance(prompts, TokenPrompts) else await _calibrated(endpoint, model)
    raise refusals[-1]


async def find_limits(
    endpoint: EngineEndpoint, card: ModelCard, context_max: int | None, kv_tokens: int | None, batch_max: int
) -> Limits:
    """Return the limits of an engine: the given ones, else those that it reports.

    Raises:
        EngineProblem: Its KV cache is neither given nor reported.
    """
    reading = await EngineWatch(endpoint).read()
    block = (reading.block_size_tokens if reading else None) or _BLOCK_TOKENS
    blocks = sum(load.kv_blocks_total or 0 for load in reading.ranks) if reading else 0
    slots = reading.max_batch_requests if reading else None
    kv_tokens = kv_tokens or blocks * block
    if kv_tokens < 1:
        raise EngineProblem(f"{endpoint.name}: reports no size of its KV cache. Give --kv-tokens.")
    return Limits(
        context_max or card.max_model_len or _CONTEXT_MAX, kv_tokens, block, min(batch_max, slots or batch_max)
    )


def _check_streamed(endpoint: EngineEndpoint, timing: StreamTiming) -> None:
    if timing.prompt_tokens is None and timing.output_tokens < _TOKENS:
        raise _no_usage(endpoint)  # several tokens in a chunk would count as one
    first_s, last_s = timing.chunks_s[0], timing.chunks_s[-1]
    if timing.output_tokens > _TOKENS // 2 and last_s - first_s < _STREAMED_MIN * (last_s - timing.sent_s):
        raise EngineProblem(
            f"{endpoint.name}: all tokens of an answer arrive at once. Profile the engine without the proxy before it."
        )


async def _calibrated(endpoint: EngineEndpoint, model: str) -> TextPrompts:
    """Return prompts of text whose lengths are those that the engine counts."""
    source = TextPrompts()
    few, many = [(await endpoint.generate(model, source.fresh(words), 1)).prompt_tokens for words in _WORDS]
    if few is None or many is None or many <= few:
        raise _no_usage(endpoint)
    per_word = (many - few) / (_WORDS[1] - _WORDS[0])
    return TextPrompts(per_word, max(math.floor(few - per_word * _WORDS[0]), 0))


def _no_usage(endpoint: EngineEndpoint) -> EngineProblem:
    return EngineProblem(f"{endpoint.name}: reports no usage of streams, so that lengths are unknown. Enable it.")
