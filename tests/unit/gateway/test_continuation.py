from typing import Any

import msgspec
import pytest

from loadline.gateway.api_request import CHAT, COMPLETIONS, Endpoint, read_request
from loadline.gateway.continuation import continuation, obstacle, output_limit

IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def request(endpoint: Endpoint, **body: Any) -> Any:
    return read_request(endpoint, msgspec.json.encode({"model": "m", **body}), ("m",))


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (COMPLETIONS, {"prompt": "a"}, ""),
        (COMPLETIONS, {"prompt": [1, 2]}, ""),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "seed": 1}, "seed"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 5.5}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "seed": 1, "temperature": 0}, ""),
        (CHAT, {"messages": [{"role": "user", "content": "a"}]}, ""),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, ""),
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages"),
        (CHAT, {"messages": "a"}, "messages"),
    ],
)
def test_what_keeps_a_request_is_named(endpoint: Endpoint, body: dict[str, Any], expected: str) -> None:
    assert obstacle(request(endpoint, **body)) == expected


def test_a_continuation_has_the_tokens_so_far_as_prompt_and_the_rest_as_limit() -> None:
    asked = request(CHAT, messages=[], max_completion_tokens=10, temperature=0.5, top_p=None, user="u", stream=True)
    body = continuation(asked, [1, 2], [3, 4, 5], 100)
    assert body == {
        "model": "m",
        "prompt": [1, 2, 3, 4, 5],
        "max_tokens": 7,
        "temperature": 0.5,
        "user": "u",
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


@pytest.mark.parametrize(
    ("endpoint", "body", "limit", "left"),
    [
        (COMPLETIONS, {"prompt": "a"}, 16, 13),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 5}, 5, 2),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 5.0}, 5, 2),
        (CHAT, {"messages": []}, None, 95),
        (CHAT, {"messages": [], "max_tokens": 8}, 8, 5),
        (CHAT, {"messages": [], "max_tokens": 8, "max_completion_tokens": 6}, 6, 3),
    ],
)
def test_the_rest_is_what_the_limit_or_the_context_leaves(
    endpoint: Endpoint, body: dict[str, Any], limit: int | None, left: int
) -> None:
    asked = request(endpoint, **body)
    assert output_limit(asked) == limit
    assert continuation(asked, [1, 2], [3, 4, 5], 100)["max_tokens"] == left
