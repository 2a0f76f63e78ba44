"""An engine with vLLM's API whose "greedy" next token is a hash of all tokens so far: a wrong seam changes the rest.

A token is a byte of UTF-8, so most characters have several. Text is sent as soon as a character is complete. Like
SGLang, it loses the text of a character whose first bytes are in the prompt.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Self

from aiohttp import web

from tests.support.engine_pages import page, vllm

EOS = 256
CONTEXT_TOKENS = 600
_ALPHABET = "abcdefgh éßñ中文字😀🚀"


def next_token(tokens: list[int], *, ignore_eos: bool) -> int:
    """Return the only likely token after others."""
    start = len(tokens)
    while start and start > len(tokens) - 4 and 0x80 <= tokens[start - 1] < 0xC0:
        start -= 1
    if start and tokens[start - 1] >= 0xC0:
        start -= 1
    have = bytes(tokens[start:])
    for end in (start, len(tokens)):  # within a character first, else behind it
        digest = hashlib.blake2b(repr(tokens[:end]).encode(), digest_size=8).digest()
        character = _ALPHABET[digest[0] % len(_ALPHABET)].encode()
        if end == len(tokens) and digest[1] == 0 and not ignore_eos:
            return EOS
        have = bytes(tokens[end:])
        if character.startswith(have) and len(character) > len(have):
            return character[len(have)]
    raise AssertionError("an empty rest begins every character")


def greedy(prompt: str, tokens: int, *, ignore_eos: bool = False) -> tuple[str, list[int]]:
    """Return text and tokens of an unbroken answer."""
    made: list[int] = []
    while len(made) < tokens and (not made or made[-1] != EOS):
        made.append(next_token([*prompt.encode(), *made], ignore_eos=ignore_eos))
    return text_of(made), made


def text_of(tokens: list[int]) -> str:
    """Return the text of complete characters."""
    return bytes(one for one in tokens if one != EOS).decode(errors="ignore")


class Detokenizer:
    """Text of tokens as they come."""

    def __init__(self) -> None:
        self._held = b""

    def add(self, tokens: list[int]) -> str:
        self._held += bytes(one for one in tokens if one != EOS)
        for cut in range(len(self._held), max(-1, len(self._held) - 4), -1):
            try:
                text = self._held[:cut].decode()
            except UnicodeDecodeError:
                continue
            self._held = self._held[cut:]
            return text
        text, self._held = self._held.decode(errors="ignore"), b""  # the rest of a character in the prompt
        return text


async def at_once(_sent: int) -> None:
    """Pace of an engine that never waits."""


class Gate:
    """Pace of an engine that stops at a number of tokens until it may go on."""

    def __init__(self, at: float) -> None:
        self.at = at
        self._moved = asyncio.Event()
        self.reached = asyncio.Event()

    async def __call__(self, sent: int) -> None:
        while sent >= self.at:
            self.reached.set()
            await self._moved.wait()

    def advance(self, at: float = float("inf")) -> None:
        self.at = at
        self.reached.clear()
        self._moved.set()
        self._moved = asyncio.Event()


class FakeEngine:
    """One engine on a port of its own, as an async context manager.

    Args:
        chunk_tokens: Tokens in a chunk.
        pace: Awaited before each chunk, with the number of tokens sent so far.
    """

    def __init__(self, *, chunk_tokens: int = 1, pace: Callable[[int], Awaitable[None]] = at_once) -> None:
        self.chunk_tokens = chunk_tokens
        self.pace = pace
        self.die_after: int | None = None
        """Tokens after which the connection breaks."""
        self.fail_after: int | None = None
        """Tokens after which the stream ends with an error, as of a vLLM whose core died."""
        self.piece_bytes = 0
        """Size of the pieces in which events are written; 0: whole events."""
        self.statuses: list[int] = []
        """Statuses of the next answers, in order; 200 answers."""
        self.refuses_chat_ids = False
        self.knows_ids = True
        self.context_tokens: int | None = CONTEXT_TOKENS
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0
        """Answers that are being generated."""
        self.address = ""
        self._stack = AsyncExitStack()
        self._transports: set[asyncio.Transport] = set()

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=2**26)
        application.add_routes(
            [
                web.post("/v1/completions", self._answer),
                web.post("/v1/chat/completions", self._answer),
                web.get("/v1/models", self._models),
                web.post("/detokenize", self._detokenize),
                web.get("/metrics", self._metrics),
            ]
        )
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        self._site = web.TCPSite(runner, "127.0.0.1", 0)
        await self._site.start()
        self.address = "http://{}:{}".format(*runner.addresses[0])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def kill(self) -> None:
        """Break all connections and listen no more, as a process that is killed."""
        await self._site.stop()
        for transport in list(self._transports):
            transport.abort()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "max_model_len": self.context_tokens}]})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = (await request.json())["tokens"]
        return web.json_response({"prompt": bytes(one for one in tokens if one != EOS).decode(errors="replace")})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=page(vllm(running=self.open)))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        status = self.statuses.pop(0) if self.statuses else 200
        chat = request.path.endswith("chat/completions")
        if self.refuses_chat_ids and chat and body.get("stream") and body.get("return_token_ids"):
            return web.json_response({"message": "return_token_ids is not supported with stream"}, status=400)
        if status != 200:
            return web.json_response({"error": {"message": f"status {status}"}}, status=status)
        prompt = _tokens(body)
        assert request.transport is not None
        transport = request.transport
        self._transports.add(transport)
        self.open += 1
        try:
            if not body.get("stream"):
                return await self._whole(body, prompt, chat=chat)
            return await self._stream(request, body, prompt, chat=chat)
        finally:
            self.open -= 1
            self._transports.discard(transport)

    async def _whole(self, body: dict[str, Any], prompt: list[int], *, chat: bool) -> web.Response:
        made: list[int] = []
        limit = _limit(body, prompt, chat=chat)
        while len(made) < limit and (not made or made[-1] != EOS):
            made.append(next_token([*prompt, *made], ignore_eos=bool(body.get("ignore_eos"))))
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if made[-1] == EOS else "length"}
        choice |= {"message": {"role": "assistant", "content": text_of(made)}} if chat else {"text": text_of(made)}
        await self.pace(len(made))
        return web.json_response({"id": "whole", "choices": [choice], "usage": _usage(prompt, made)})

    async def _stream(
        self, request: web.Request, body: dict[str, Any], prompt: list[int], *, chat: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-engine": self.address})
        await response.prepare(request)
        ids = bool(body.get("return_token_ids")) and self.knows_ids
        base: dict[str, Any] = {
            "id": f"cmpl-{len(self.bodies)}-{id(self)}",
            "created": len(self.bodies),
            "model": "tiny",
        }
        base["object"] = "chat.completion.chunk" if chat else "text_completion"
        if chat:
            role: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            await self._event(
                response,
                {**base, "choices": [role], **({"prompt_token_ids": prompt, "prompt_text": None} if ids else {})},
            )
        made: list[int] = []
        detokenizer, limit = Detokenizer(), _limit(body, prompt, chat=chat)
        while True:
            await self.pace(len(made))
            new: list[int] = []
            while len(new) < self.chunk_tokens and len(made) + len(new) < limit and new[-1:] != [EOS]:
                new.append(next_token([*prompt, *made, *new], ignore_eos=bool(body.get("ignore_eos"))))
            if self.die_after is not None and len(made) + len(new) > self.die_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if self.fail_after is not None and len(made) + len(new) > self.fail_after:
                await self._event(response, {"error": {"message": "EngineDeadError", "code": 500}})
                break
            finish = "stop" if new[-1] == EOS else "length" if len(made) + len(new) >= limit else None
            text = detokenizer.add(new)
            choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            if ids:
                choice["token_ids"] = new
                if not chat and not made:
                    choice["prompt_token_ids"] = prompt
            made += new
            await self._event(response, {**base, "choices": [choice]})
            if finish:
                break
        if (body.get("stream_options") or {}).get("include_usage"):
            await self._event(response, {**base, "choices": [], "usage": _usage(prompt, made)})
        await self._write(response, b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, chunk: dict[str, Any]) -> None:
        await self._write(response, b"data: " + json.dumps(chunk).encode() + b"\n\n")

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        size = self.piece_bytes or len(data)
        for start in range(0, len(data), size):
            await response.write(data[start : start + size])
            await asyncio.sleep(0)


def _tokens(body: dict[str, Any]) -> list[int]:
    if "messages" in body:
        return list("".join(one["content"] for one in body["messages"]).encode())
    prompt = body["prompt"]
    return prompt if isinstance(prompt, list) else list(prompt.encode())


def _limit(body: dict[str, Any], prompt: list[int], *, chat: bool) -> int:
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    left = CONTEXT_TOKENS - len(prompt)
    return min(left, limit or (left if chat else 16))


def _usage(prompt: list[int], made: list[int]) -> dict[str, int]:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(made),
        "total_tokens": len(prompt) + len(made),
    }
