"""Requests that another engine can continue, and the request that does it. Pure.

A continuation asks `/v1/completions` for the tokens after those that exist: its prompt is the token IDs of the prompt
and of the output so far. The engine treats that output as prompt, so whatever depends on the position in the output is
lost; requests with such parameters stay where they are.
"""

from collections.abc import Sequence
from typing import Any, Final

from loadline.gateway.api_request import CHAT, ApiRequest

# Sampling depends on these only through the next token, so they are copied.
_COPIED: Final = frozenset(
    {
        "allowed_token_ids",
        "cache_salt",
        "ignore_eos",
        "logit_bias",
        "min_p",
        "model",
        "priority",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)
# These shape the prompt or the transport, or bound the output: the continuation has its own.
_REPLACED: Final = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "prompt",
        "return_token_ids",
        "store",
        "stream",
        "stream_options",
    }
)
# Values with which a parameter has no effect. With others, a request stays: penalties count earlier output, a seed
# counts positions, stop strings may span the seam, and several outputs have several seams.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "length_penalty": (1,),
    "logprobs": (False,),
    "min_tokens": (0,),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop": ([], ""),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}
# OpenAI's own limit of /v1/completions, which vLLM and SGLang share.
_COMPLETION_TOKENS_DEFAULT: Final = 16


def obstacle(request: ApiRequest) -> str:
    """Return the parameter that keeps a request where it is; empty: another engine can continue it."""
    body = request.body
    for name, value in body.items():
        if value is None or name in _COPIED or name in _REPLACED or _is_neutral(name, value):
            continue
        if name == "seed" and body.get("temperature") == 0:
            continue
        return name
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("continuous_usage_stats"):
        return "stream_options"
    if not _is_whole(_stated_limit(request)):
        return "max_tokens"
    return "" if _is_single_text(request) else "messages" if request.endpoint == CHAT else "prompt"


def _is_neutral(name: str, value: Any) -> bool:
    # JSON's false and 0 are equal in Python, but `logprobs: 0` asks for the log probabilities of the sampled tokens.
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in _NEUTRAL.get(name, ()))


def output_limit(request: ApiRequest) -> int | None:
    """Return the maximum output tokens of a request; None: only the context of the model limits them."""
    limit = _stated_limit(request)
    if limit is not None and _is_whole(limit):
        return int(limit)
    return None if request.endpoint == CHAT else _COMPLETION_TOKENS_DEFAULT


def _stated_limit(request: ApiRequest) -> Any:
    limit = request.body.get("max_completion_tokens") if request.endpoint == CHAT else None
    return request.body.get("max_tokens") if limit is None else limit


def _is_whole(limit: Any) -> bool:
    """Return False for a limit that engines may take, such as a string, and that cannot be counted down."""
    return limit is None or isinstance(limit, int) or (isinstance(limit, float) and limit.is_integer())


def continuation(
    request: ApiRequest, prompt_ids: Sequence[int], output_ids: Sequence[int], context_tokens: int | None
) -> dict[str, Any]:
    """Return the body of the request to `/v1/completions` that continues another one.

    Args:
        request: The request of the client.
        prompt_ids: Token IDs of its prompt.
        output_ids: Token IDs of its output so far.
        context_tokens: Maximum tokens of prompt and output together; None: unknown.
    """
    seen = len(prompt_ids) + len(output_ids)
    limit = output_limit(request)
    left = None if limit is None else limit - len(output_ids)
    if left is None and context_tokens is not None:
        left = context_tokens - seen
    return {
        **{name: value for name, value in request.body.items() if name in _COPIED and value is not None},
        "prompt": [*prompt_ids, *output_ids],
        "max_tokens": left,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def _is_single_text(request: ApiRequest) -> bool:
    """Return True if the prompt is one text, or one list of token IDs; images have no token IDs."""
    if request.endpoint != CHAT:
        prompt = request.body["prompt"]
        return isinstance(prompt, str) or (isinstance(prompt, list) and all(type(one) is int for one in prompt))
    messages = request.body["messages"]
    return isinstance(messages, list) and all(isinstance(one, dict) and _is_text(one) for one in messages)


def _is_text(message: dict[str, Any]) -> bool:
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)
