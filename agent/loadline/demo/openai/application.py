"""HTTP API of a simulated engine."""

import asyncio
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from loadline.adapters.http_runner import http_runner
from loadline.demo.openai.engine import Generation, PacedEngine, StreamCut
from loadline.demo.openai.messages import Answer, ChatBody, CompletionBody

_BODY_BYTES_MAX: Final = 16 * 2**20
_DONE: Final = b"data: [DONE]\n\n"


class EngineApi:
    """Handlers of the paths of one engine.

    Args:
        engine: The engine.
        model: Name of the served model.
        context_max: Largest number of tokens of a prompt and its output.
    """

    def __init__(self, engine: PacedEngine, model: str, context_max: int) -> None:
        self._engine = engine
        self._model = model
        self._context_max = min(context_max, engine.context_max)
        self._refuses = False

    def refuse(self) -> None:
        """Answer new requests with 500, as vLLM does while it shuts down."""
        self._refuses = True

    def runner(self) -> web.AppRunner:
        """Return a server of the paths, which ends a request when its client has gone."""
        application = web.Application(client_max_size=_BODY_BYTES_MAX)
        application.add_routes(
            [
                web.post("/v1/completions", self._complete),
                web.post("/v1/chat/completions", self._chat),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
            ]
        )
        return http_runner(application, handler_cancellation=True, shutdown_timeout=0.1)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._engine.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _models(self, _request: web.Request) -> web.Response:
        card = {"id": self._model, "object": "model", "owned_by": "loadline", "max_model_len": self._context_max}
        return web.json_response({"object": "list", "data": [card]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, CompletionBody)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, ChatBody)

    async def _generate(self, request: web.Request, kind: type[CompletionBody] | type[ChatBody]) -> web.StreamResponse:
        if self._refuses:
            return _error(500, "The engine shuts down.", "InternalServerError")
        try:
            body = msgspec.json.decode(await request.read(), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _error(400, str(error), "BadRequestError")
        if body.model != self._model:
            return _error(404, f"The model `{body.model}` does not exist.", "NotFoundError")
        prompt = body.tokens()
        tokens_max = body.tokens_max(self._context_max - len(prompt))
        if len(prompt) + tokens_max > self._context_max:
            limit = f"This model's maximum context length is {self._context_max} tokens."
            asked = f"You requested {tokens_max} output tokens and your prompt has {len(prompt)} tokens."
            return _error(400, f"{limit} {asked}", "BadRequestError")
        generation = self._engine.submit(prompt, tokens_max, ignore_eos=body.ignore_eos)
        try:
            answer = Answer(body, generation)
            if body.stream:
                return await self._stream(request, body, answer, generation)
            async for _tokens in generation.chunks():
                pass
            return web.json_response(answer.whole())
        except (StreamCut, ConnectionError):
            if request.transport is not None:
                request.transport.close()
            raise asyncio.CancelledError from None
        finally:
            self._engine.abort(generation)

    async def _stream(
        self, request: web.Request, body: CompletionBody | ChatBody, answer: Answer, generation: Generation
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        left = len(generation.output)
        async for tokens in generation.chunks():
            left -= len(tokens)
            await response.write(b"".join(map(_event, answer.chunks(tokens, last=left == 0))))
        if body.include_usage:
            await response.write(_event(answer.usage_chunk()))
        await response.write(_DONE)
        return response


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)
