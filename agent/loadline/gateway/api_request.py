"""Requests of the OpenAI API, as far as a proxy must understand them. Pure."""

from collections.abc import Collection
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from loadline.gateway.errors import ApiError

Endpoint = Literal["/v1/completions", "/v1/chat/completions"]
COMPLETIONS: Final[Endpoint] = "/v1/completions"
CHAT: Final[Endpoint] = "/v1/chat/completions"
_SHOWN_CHARS_MAX: Final = 100


class ApiRequest(Struct, frozen=True):
    """A request for completions."""

    endpoint: Endpoint
    model: str
    body: dict[str, Any]
    stream: bool
    raw: bytes
    """The body as the client sent it."""

    @property
    def wants_usage(self) -> bool:
        """True if the client asked for token counts at the end of its stream."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and bool(options.get("include_usage"))

    @property
    def has_one_output(self) -> bool:
        """True if the answer has one text, so that its end is the end of the answer."""
        if self.endpoint == COMPLETIONS and isinstance(prompt := self.body["prompt"], list):
            return self.body.get("n") in (None, 1) and all(type(one) is int for one in prompt)
        return self.body.get("n") in (None, 1)

    def encode(self, **others: Any) -> bytes:
        """Return the body with other fields, as JSON.

        Raises:
            ApiError: It is nested too deeply, by a level or two: it was read with fewer calls on the stack.
        """
        try:
            return msgspec.json.encode(self.body | others)
        except RecursionError as error:
            raise _nested() from error

    def prompt_size(self) -> tuple[int, int]:
        """Return the size of the prompt: characters of its texts, and tokens where it has token IDs."""
        return _size(self.body.get("messages") if self.endpoint == CHAT else self.body.get("prompt"))


def read_request(endpoint: Endpoint, raw: bytes, models: Collection[str]) -> ApiRequest:
    """Read a request.

    Raises:
        ApiError: The body is no request for one of the models.
    """
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error
    except RecursionError as error:
        raise _nested() from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, "`model` must name a model", param="model")
    if model not in models:
        text = f"the model {model[:_SHOWN_CHARS_MAX]!r} does not exist here; GET /v1/models lists those that do"
        raise ApiError(404, text, param="model", code="model_not_found")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ApiError(400, "`stream` must be true or false", param="stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError(400, "`stream_options` must be an object", param="stream_options")
    required = "messages" if endpoint == CHAT else "prompt"
    if body.get(required) is None:
        raise ApiError(400, f"`{required}` is missing", param=required)
    return ApiRequest(endpoint, model, body, bool(stream), raw)


def _nested() -> ApiError:
    return ApiError(400, "the body is nested too deeply")


def _size(prompt: Any) -> tuple[int, int]:
    """Return characters and tokens of a prompt: texts, token IDs, messages, or a list of them."""
    chars = tokens = 0
    waiting = [prompt]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            chars += len(one)
        elif isinstance(one, list):
            ids = sum(isinstance(item, int) for item in one)
            tokens += ids
            if ids < len(one):
                waiting += one
        elif isinstance(one, dict):
            waiting += [one.get("content"), one.get("text")]
    return chars, tokens
