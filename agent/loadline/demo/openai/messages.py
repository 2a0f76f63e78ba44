"""Requests and answers of the OpenAI API, as far as a simulated engine has them; unknown fields are ignored."""

import time
import uuid
from typing import Annotated, Any

from msgspec import Meta, Struct

from loadline.demo.openai.engine import Generation
from loadline.demo.openai.text import VOCABULARY, text_of, tokens_of

_COMPLETION_TOKENS = 16
"""Maximum output of a completion that names none, as the API defines it."""

Positive = Annotated[int, Meta(ge=1)]
Token = Annotated[int, Meta(ge=0, lt=VOCABULARY)]


class SimulatedStreamOptions(Struct):
    """Options of a stream."""

    include_usage: bool = False


class GenerationBody(Struct, kw_only=True):
    """Fields that completions and chats share."""

    model: str
    stream: bool = False
    stream_options: SimulatedStreamOptions | None = None
    max_tokens: Positive | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False

    @property
    def include_usage(self) -> bool:
        """True if the stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody, kw_only=True):
    """Body of ``/v1/completions``."""

    prompt: Annotated[str, Meta(min_length=1)] | Annotated[list[Token], Meta(min_length=1)]

    def tokens(self) -> list[int]:
        """Return the prompt."""
        return tokens_of(self.prompt) if isinstance(self.prompt, str) else self.prompt

    def tokens_max(self, rest: int) -> int:
        """Return the maximum output, where ``rest`` tokens fit after the prompt."""
        return self.max_tokens or min(_COMPLETION_TOKENS, rest)


class ChatMessage(Struct):
    """Message of a chat."""

    role: str
    content: str = ""


class ChatBody(GenerationBody, kw_only=True):
    """Body of ``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None

    def tokens(self) -> list[int]:
        """Return the prompt: the contents of all messages, one after the other."""
        return tokens_of("".join(message.content for message in self.messages) or " ")

    def tokens_max(self, rest: int) -> int:
        """Return the maximum output, where ``rest`` tokens fit after the prompt."""
        return self.max_completion_tokens or self.max_tokens or max(rest, 1)


class Answer:
    """Answers to one request: the chunks of its stream, or the whole.

    Args:
        body: The request.
        generation: Its generation.
    """

    def __init__(self, body: CompletionBody | ChatBody, generation: Generation) -> None:
        self._body = body
        self._generation = generation
        self._chat = isinstance(body, ChatBody)
        prefix, kind = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": body.model}
        self._kind = kind
        self._begun = False

    def chunks(self, tokens: list[int], *, last: bool) -> list[dict[str, Any]]:
        """Return the chunks of new tokens; the first chunk also has the ids of the prompt, if they are asked for."""
        found = []
        if self._chat and not self._begun:
            found.append(self._chunk({"delta": {"role": "assistant", "content": ""}}, []))
        text = text_of(tokens)
        choice: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        found.append(self._chunk(choice | {"finish_reason": self._generation.reason if last else None}, tokens))
        return found

    def usage_chunk(self) -> dict[str, Any]:
        """Return the chunk with the usage."""
        return self._object(stream=True) | {"choices": [], "usage": self._usage()}

    def whole(self) -> dict[str, Any]:
        """Return the answer to a request without a stream."""
        generation, text = self._generation, text_of(self._generation.output)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": generation.reason}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        answer = self._object(stream=False)
        if self._body.return_token_ids:
            choice["token_ids"] = generation.output
            (answer if self._chat else choice)["prompt_token_ids"] = generation.prompt
        return answer | {"choices": [choice], "usage": self._usage()}

    def _chunk(self, choice: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
        chunk = self._object(stream=True)
        choice = {"index": 0, "logprobs": None, "finish_reason": None, **choice}
        if self._body.return_token_ids:
            choice["token_ids"] = tokens
            if not self._begun:
                (chunk if self._chat else choice)["prompt_token_ids"] = self._generation.prompt
        self._begun = True
        return chunk | {"choices": [choice]}

    def _object(self, *, stream: bool) -> dict[str, Any]:
        return {**self._head, "object": f"{self._kind}.chunk" if stream and self._chat else self._kind}

    def _usage(self) -> dict[str, int]:
        prompt, output = len(self._generation.prompt), self._generation.emitted
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
