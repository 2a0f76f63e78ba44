"""A stream as its client receives it, whichever engines its parts come from. Pure.

The gateway asks engines for token IDs and keeps those of prompt and output. It removes them from what the client gets,
unless the client asked for them too. After a move the next engine continues after the last token whose text the client
has: tokens whose text was held back, because they are part of a character, are generated again. So no text is lost or
repeated, and characters are never split.
"""

from sys import getsizeof
from typing import Any, Final

import msgspec

from loadline.core.vocabulary.scalars import TOKENS_MAX
from loadline.gateway.api_request import CHAT, COMPLETIONS, ApiRequest, Endpoint
from loadline.gateway.continuation import continuation, obstacle, output_limit
from loadline.gateway.engine_errors import refused_status
from loadline.gateway.sse import DONE
from loadline.gateway.traffic import Measured

_SHARED: Final = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""Fields that all chunks of a stream have in common."""
_NO_REASON: Final = (None, "")
"""Finish reasons of an output that goes on; some engines send an empty one."""
_KEPT_TOKENS_MAX: Final = 2**20
"""Output tokens above which a stream cannot move: their IDs take 40 MB, and few contexts are longer."""
_HEAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Memory of events without output that wait for the first one; with more, the stream begins. One event may have the IDs
of a prompt, of which a million take 8 MB."""


class EngineFailed(Exception):
    """Early end of a stream by its engine, with an error or an abort, after which another one can continue it."""


class RefusedByEngine(Exception):
    """Error with which an engine ends a stream before any output, because the request is at fault.

    Args:
        status: Its HTTP status.
        body: The error, as JSON.
    """

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class StreamReply:
    """Answer to one streamed request.

    Args:
        request: The request.
        measured: Counts of its tokens, and their times.
    """

    def __init__(self, request: ApiRequest, measured: Measured) -> None:
        self._request = request
        self._measured = measured
        self._chat = request.endpoint == CHAT
        self._one_output = request.has_one_output
        self._wants_ids = bool(request.body.get("return_token_ids"))
        self.obstacle = obstacle(request)
        """Parameter or field that keeps the stream where it is; empty: it can move."""
        self._hides_ids = self.asks_ids
        """True if the client gets no token IDs, even if the stream cannot move from some output on."""
        self._prompt_ids: list[int] | None = None
        self._tokens: list[int] = []
        self._sent_tokens = 0
        self._certain_tokens = 0
        self.is_between_characters = True
        """False if the text of the last tokens that were sent may lack a part of a character."""
        self._ids_sent = 0
        self._shared: dict[str, Any] = {}
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._hops = 0
        self.started = False
        """True once the client was sent something: from then on the answer cannot begin anew."""
        self.finished = False
        """True once the engine has given the reason for which the only output ends; others may follow the first."""
        self.done = False
        """True once the stream is complete."""
        self.failed = False
        """True once the client was sent an error of the engine, with which it ends the stream."""
        self.aborted = False
        """True once the client was sent an output that the engine aborted; others may go on."""
        self.has_aside = False
        """True once the present engine has sent what is no part of an output: then that must come in time."""
        self._has_usage = False
        """True once the client was sent the usage, if it wants it, with the finish reason or after it."""
        self._is_answered = False
        """True once an engine has sent a part of an output, such as its role, or the usage of one without tokens."""

    @property
    def ended(self) -> bool:
        """True once no engine can add to the output."""
        return self.finished or self.done or self.failed

    @property
    def can_continue(self) -> bool:
        """True if another engine can continue the stream now."""
        return not self.obstacle and self._prompt_ids is not None and not self.ended

    @property
    def uncertain_ids(self) -> list[int]:
        """Tokens of which the last ones may lack text, because they are part of a character."""
        return self._tokens[self._certain_tokens : self._sent_tokens]

    def resolve_uncertain(self, complete: int) -> None:
        """Count the text of so many of the uncertain tokens as sent, and that of the others as held back."""
        self._sent_tokens = self._certain_tokens = self._certain_tokens + complete
        self.is_between_characters = True

    @property
    def asks_ids(self) -> bool:
        """True if the gateway, and not the client, asks the engine for token IDs."""
        return not self.obstacle and not self._wants_ids

    @property
    def tokens(self) -> tuple[int, int]:
        """Number of prompt and output tokens; 0 while unknown."""
        return len(self._prompt_ids or ()), len(self._tokens)

    @property
    def tokens_left(self) -> int | None:
        """Maximum output tokens that follow; None: unknown."""
        limit = output_limit(self._request)
        return None if limit is None else min(max(limit - len(self._tokens), 0), int(TOKENS_MAX))

    def first_body(self, *, with_ids: bool) -> tuple[Endpoint, bytes]:
        """Return endpoint and body of the request to the first engine.

        Args:
            with_ids: False if the engine refuses to stream token IDs: the stream then stays there.

        Raises:
            ApiError: The request is nested too deeply.
        """
        if not with_ids:
            self.obstacle = self.obstacle or "return_token_ids"
        options = {**(self._request.body.get("stream_options") or {}), "include_usage": True}
        asked_ids = {} if self.obstacle else {"return_token_ids": True}
        return self._request.endpoint, self._request.encode(stream_options=options, **asked_ids)

    def next_body(self, context_tokens: int | None) -> tuple[Endpoint, bytes] | None:
        """Return endpoint and body of the request that continues the stream; None: only its end is missing.

        Tokens without text are dropped here, and generated again.

        Args:
            context_tokens: Maximum tokens of prompt and output together; None: unknown.
        """
        dropped = len(self._tokens) - self._sent_tokens
        del self._tokens[self._sent_tokens :]
        self._measured.osl_tokens -= dropped
        self._hops += 1
        self.has_aside = False
        body = continuation(self._request, self._prompt_ids or (), self._tokens, context_tokens)
        if body["max_tokens"] is not None and body["max_tokens"] <= 0:
            return None
        return COMPLETIONS, msgspec.json.encode(body)

    def accept(self, data: bytes) -> list[bytes]:
        """Return the events to send to the client for one event of the engine.

        Raises:
            EngineFailed: The event ends the stream early, and another engine can continue it.
            RefusedByEngine: The engine answers that the request is at fault, and the client has nothing yet.
        """
        if data == DONE:
            if not self._is_answered:
                raise EngineFailed("it ended without output")
            self.done = True
            return self._start([data])
        try:
            chunk = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._pass_aside(data)
        if not isinstance(chunk, dict):
            return self._pass_aside(data)
        if chunk.get("error") is not None:  # some engines write all fields
            return self._fail(data, chunk["error"])
        found = chunk.get("choices")
        choices = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        usage = chunk.get("usage") if self._request.wants_usage else chunk.pop("usage", None)
        if choices and not self._shared:
            self._shared = {name: chunk[name] for name in _SHARED if name in chunk}
        self._is_answered = self._is_answered or bool(choices) or isinstance(usage, dict)
        events = self._advance(chunk, choices) if choices else self._close(chunk, usage)
        if usage is not None:  # it counts the tokens of its own chunk, too
            self._has_usage = self._has_usage or self.finished
            self._measured.read_usage(self._usage() if self._hops else usage)
        return events

    def end(self) -> list[bytes]:
        """Return the events that end a stream: none follow an end or an error that the engine has sent."""
        if self.done or self.failed:
            return []
        events: list[bytes] = []
        if not self.finished:
            last: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            choice = {"index": 0, **last, "logprobs": None, "finish_reason": "length"}
            events.append(msgspec.json.encode({**self._shared, "choices": [choice]}))
        if self._request.wants_usage and self._prompt_ids is not None and not self._has_usage:
            events.append(msgspec.json.encode({**self._shared, "choices": [], "usage": self._usage()}))
        self.finished = self.done = True
        return self._start([*events, DONE])

    def _advance(self, chunk: dict[str, Any], choices: list[dict[str, Any]]) -> list[bytes]:
        """Return the events for a chunk with output."""
        new_ids = self._take_ids(chunk, choices[0])
        parts = [self._text(one) for one in choices]
        finishes = [reason for one in choices if (reason := one.get("finish_reason")) not in _NO_REASON]
        self._count(choices, parts, len(new_ids))
        if "abort" in finishes:
            if self.can_continue or not self.started:
                raise EngineFailed("the engine aborted the request")
            self.aborted = True
        self.obstacle = self.obstacle or next((others for _, others in parts if others), "")
        if finishes and self._one_output:
            self.finished = True
        if finishes or any(map(any, parts)):
            self._sent_tokens = len(self._tokens)
            self.is_between_characters = len(new_ids) <= 1
            if self.is_between_characters:
                self._certain_tokens = self._sent_tokens
        elif self.started and (self._hops or (self._wants_ids and not self.obstacle)):
            # Token IDs follow with the text. Without text there is no progress, of which a later hop must tell.
            return []
        else:
            return self._pass(self._shape(chunk, choices[0]))
        return self._start([self._shape(chunk, choices[0])])

    def _count(self, choices: list[dict[str, Any]], parts: list[tuple[str, str]], new_ids: int) -> None:
        """Count the tokens of a chunk: those of the first choice by their IDs, and one where only text came."""
        for place, (choice, part) in enumerate(zip(choices, parts, strict=True)):
            index = choice.get("index")
            output = index if isinstance(index, int) else place
            tokens = new_ids if new_ids and place == 0 else int(any(part))
            if tokens:
                self._measured.count_tokens(tokens, output)
            if choice.get("finish_reason") not in (*_NO_REASON, "abort"):  # another engine may continue after an abort
                self._measured.end_output(output)

    def _take_ids(self, chunk: dict[str, Any], choice: dict[str, Any]) -> list[int]:
        """Keep the token IDs of a chunk, and remove them from it unless the client wants them.

        None are kept of a stream that cannot move, but its engine may have been asked for them before.
        """
        if self.obstacle and not self._hides_ids:
            return []
        for place in (chunk, choice):  # vLLM's chat chunks have them beside the choices, all others within
            ids = place.get("prompt_token_ids")
            if self._prompt_ids is None and _are_ids(ids):
                self._prompt_ids = ids
            if self._hides_ids:
                place.pop("prompt_token_ids", None)
                place.pop("prompt_text", None)  # empty, and only there with token IDs
        found = choice.pop("token_ids", None)
        if self.obstacle:
            return []
        new_ids: list[int] = found if _are_ids(found) else []
        if (not new_ids and self._text(choice)[0]) or len(self._tokens) + len(new_ids) > _KEPT_TOKENS_MAX:
            self.obstacle = "token_ids"  # text without any is that of an engine that does not know the parameter
        self._tokens += new_ids
        return new_ids

    def _text(self, choice: dict[str, Any]) -> tuple[str, str]:
        """Return the text of a choice, and the name of other output that it has, such as a tool call."""
        if not self._chat or self._hops:
            return choice.get("text") or "", ""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return "", ""
        others = (name for name, value in delta.items() if value and name not in ("role", "content"))
        return delta.get("content") or "", next(others, "")

    def _shape(self, chunk: dict[str, Any], choice: dict[str, Any]) -> bytes:
        """Return a chunk as one of the client's stream."""
        if self._hops:
            if self._chat:
                text, reasons = choice.get("text") or "", ("finish_reason", "stop_reason")
                kept: dict[str, Any] = {name: choice[name] for name in reasons if name in choice}
                choice = {"index": 0, "delta": {"content": text}, "logprobs": None, **kept}
            else:
                choice.pop("prompt_token_ids", None)
            usage = {"usage": self._usage()} if chunk.get("usage") is not None else {}
            chunk = {**self._shared, "choices": [choice], **usage}
        if self._wants_ids and self._ids_sent < len(self._tokens):  # of later ones none are kept if it cannot move
            choice["token_ids"] = self._tokens[self._ids_sent :] + (choice.get("token_ids") or [])
            self._ids_sent = len(self._tokens)
        return msgspec.json.encode(chunk)

    def _start(self, events: list[bytes]) -> list[bytes]:
        self.started = True
        events, self._head = self._head + events, []
        return events

    def _pass(self, event: bytes) -> list[bytes]:
        """Return an event without output, such as that with the role, once the client has some.

        It waits until then, as the answer can begin anew at another engine.
        """
        if self.started:
            return [event]
        self._head.append(event)
        self._head_bytes += getsizeof(event)  # tiny events take 34 bytes
        return self._start([]) if self._head_bytes > _HEAD_BYTES_MAX else []

    def _pass_aside(self, event: bytes) -> list[bytes]:
        """Return an event that is no part of an output, as ``_pass`` does."""
        self.has_aside = True
        return self._pass(event)

    def _close(self, chunk: dict[str, Any], usage: Any) -> list[bytes]:
        """Return the events for a chunk without output, such as that with the usage."""
        if usage is None:
            return self._pass_aside(msgspec.json.encode({**chunk, **self._shared}))
        if not self._request.wants_usage:
            return []
        counted = self._usage() if self._hops else usage
        return self._pass_aside(msgspec.json.encode({**chunk, **self._shared, "usage": counted}))

    def _usage(self) -> dict[str, int]:
        prompt, output = self.tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _fail(self, data: bytes, error: Any) -> list[bytes]:
        if not self.started and (status := refused_status(error)) is not None:
            raise RefusedByEngine(status, data)
        if self.can_continue or not self.started:
            raise EngineFailed(data[:200].decode(errors="replace"))
        self.failed = True
        return self._start([data])


def _are_ids(ids: Any) -> bool:
    return isinstance(ids, list) and all(type(one) is int for one in ids)
