"""Times of the tokens of one streamed answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct

from loadline.profiler.problems import EngineProblem, EngineUnavailable

_SHOWN_MAX: Final = 80
_OTHER_FIELDS: Final = (b":", b"event:", b"id:", b"retry:")
"""Beginnings of lines that server-sent events may have besides data."""
_END_S: Final = 0.1
"""Wait for the end of an answer after its last event, so that the next request need not connect again."""


class StreamTiming(Struct, frozen=True):
    """Times of a streamed answer, in seconds of the event loop.

    ``prompt_tokens`` is None if the engine does not report its usage; ``output_tokens`` are then the chunks.
    """

    sent_s: float
    chunks_s: list[float]
    output_tokens: int
    prompt_tokens: int | None = None

    @property
    def ttft_ms(self) -> float:
        """Time to the first token."""
        return (self.chunks_s[0] - self.sent_s) * 1_000.0

    @property
    def tokens_per_gap(self) -> float:
        """Mean tokens of a chunk after the first one: an engine under load puts several into one."""
        return (self.output_tokens - 1) / max(len(self.chunks_s) - 1, 1)


class _StreamDelta(Struct):
    role: str | None = None
    content: str | None = None


class _StreamChoice(Struct):
    text: str | None = None
    delta: _StreamDelta | None = None
    finish_reason: str | None = None

    @property
    def has_token(self) -> bool:
        """True unless the chunk only opens or closes a chat."""
        if self.delta is None:
            return self.text is not None
        return bool(self.delta.content) or (self.delta.role is None and self.finish_reason is None)


class _StreamUsage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _StreamChunk(Struct):
    choices: list[_StreamChoice] | None = None
    usage: _StreamUsage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(_StreamChunk)


async def read_stream(
    response: aiohttp.ClientResponse, name: str, sent_s: float, on_first: Callable[[], None]
) -> StreamTiming:
    """Read a stream to its end; call ``on_first`` at its first token.

    Raises:
        EngineProblem: It is none of an OpenAI-compatible API.
        EngineUnavailable: It breaks off.
    """
    if response.content_type != "text/event-stream":
        problem = f"answers with {response.content_type} instead of a stream"
        raise EngineProblem(
            f"{name}: {problem}. Profile an engine that streams, without a proxy that collects answers."
        )
    clock, chunks_s, usage, done = asyncio.get_running_loop().time, list[float](), None, False
    async for data in _data(response, name):
        if data == b"[DONE]":
            done = True
            break
        chunk = _chunk(name, data)
        if chunk.choices and chunk.choices[0].has_token:
            chunks_s.append(clock())
            if len(chunks_s) == 1:
                on_first()
        usage = chunk.usage or usage
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):  # some engines keep the answer open, or cut it off
        async with asyncio.timeout(_END_S):
            while await response.content.readany():
                pass
    if not done:
        raise EngineUnavailable(f"{name}: a stream broke off after {len(chunks_s)} chunks. See the engine's log.")
    if not chunks_s:
        raise EngineProblem(f"{name}: a stream ended without a token. See the engine's log.")
    if usage is None:
        return StreamTiming(sent_s, chunks_s, len(chunks_s))
    return StreamTiming(sent_s, chunks_s, max(usage.completion_tokens, 1), usage.prompt_tokens)


async def _data(response: aiohttp.ClientResponse, name: str) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events."""
    async for line in response.content:
        if line.startswith(b"data:"):
            yield line[5:].strip()
        elif line.strip() and not line.startswith(_OTHER_FIELDS):
            raise _garbage(name, line)


def _chunk(name: str, data: bytes) -> _StreamChunk:
    try:
        chunk = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _garbage(name, data) from error
    if chunk.error is not None:
        raise EngineUnavailable(f"{name}: the engine ended a stream with an error: {str(chunk.error)[:_SHOWN_MAX]}.")
    if chunk.choices is None:
        raise _garbage(name, data)
    return chunk


def _garbage(name: str, data: bytes) -> EngineProblem:
    shown = data[:_SHOWN_MAX].decode(errors="replace").strip()
    return EngineProblem(f"{name}: streams what is no completion: {shown!r}. Give the URL of an OpenAI-compatible API.")
