"""Streamed answers: relayed as they come, and continued by another engine if one fails."""

from contextlib import suppress
from typing import Final

import aiohttp
from aiohttp import web

from loadline.gateway import headers
from loadline.gateway.api_request import ApiRequest
from loadline.gateway.attempts import Attempts
from loadline.gateway.backends import Backend
from loadline.gateway.engine_client import EngineBroken, EngineClient, Unreachable
from loadline.gateway.errors import ApiError
from loadline.gateway.model import ServedModel
from loadline.gateway.sse import EventReader, EventTooLarge, write_event
from loadline.gateway.stream_reply import EngineFailed, StreamReply
from loadline.gateway.traffic import Measured

_OK: Final = 200
_REFUSES_FIELD: Final = frozenset({400, 422})


class ClientLeft(Exception):
    """The client closed its connection."""


class StreamSession:
    """One streamed request, from its first engine to its last.

    Args:
        request: The request of the client.
        asked: What it asks for.
        model: Its model.
        measured: Its counts and times.
        engines: Connections to engines.
    """

    def __init__(
        self, request: web.Request, asked: ApiRequest, model: ServedModel, measured: Measured, engines: EngineClient
    ) -> None:
        self._request = request
        self._asked = asked
        self._model = model
        self._measured = measured
        self._engines = engines
        self._attempts = Attempts(model, measured.arrived_s)
        self._reply = StreamReply(asked, measured)
        self._response: web.StreamResponse | None = None
        self._sent = headers.to_engine(request.headers)

    async def run(self) -> web.StreamResponse:
        """Serve the request.

        Raises:
            ApiError: No worker answered, and the client got nothing yet.
            ClientLeft: The client closed its connection.
        """
        try:
            while True:
                backend = await self._attempts.next_backend()
                with self._model.backends.using(backend):
                    answer = await self._run_at(backend)
                if answer is not None:
                    return answer
        except ApiError as error:
            if self._response is None:
                raise
            return await self._end_with(error)

    async def _run_at(self, backend: Backend) -> web.StreamResponse | None:
        """Relay the answer of a worker; return None if another attempt follows."""
        sent = await self._next_request(backend)
        if sent is None:
            return await self._end(self._reply.end())
        broken = "the stream ended early"
        try:
            async with self._engines.post(backend, *sent, self._sent) as answer:
                if answer.status != _OK:
                    return await self._refused(backend, answer)
                await self._relay(answer)
        except Unreachable as error:
            self._attempts.unreachable(backend, error)
            return None
        except (EngineBroken, EngineFailed, EventTooLarge) as error:
            broken = str(error) or type(error).__name__
        if self._reply.finished or self._reply.done:
            return await self._end([] if self._reply.done else self._reply.end())
        self._break_off(backend, broken)
        return None

    async def _next_request(self, backend: Backend) -> tuple[str, bytes] | None:
        if self._response is None:
            return self._reply.first_body(with_ids=self._asked.endpoint not in backend.refuses_ids)
        context_tokens = None
        if self._reply.tokens_left is None:
            context_tokens = await self._engines.context_tokens(backend, self._sent)
        return self._reply.next_body(context_tokens)

    async def _relay(self, answer: aiohttp.ClientResponse) -> None:
        reader = EventReader()
        async for piece in answer.content.iter_any():
            events: list[bytes] = []
            try:
                for data in reader.feed(piece):
                    events += self._reply.accept(data)
            finally:
                if events:
                    await self._write(events, answer)
            if self._reply.done:
                return

    async def _write(self, events: list[bytes], answer: aiohttp.ClientResponse | None = None) -> None:
        try:
            if self._response is None:
                self._response = web.StreamResponse(headers=headers.to_client(answer.headers) if answer else None)
                await self._response.prepare(self._request)
                seconds = (self._measured.first_s or 0.0) - self._measured.arrived_s
                if self._measured.first_s is not None:
                    self._model.metrics.first_token(self._model.name, seconds)
            await self._response.write(b"".join(map(write_event, events)))
        except ConnectionError as error:
            raise ClientLeft from error
        self._attempts.progressed()

    async def _refused(self, backend: Backend, answer: aiohttp.ClientResponse) -> web.StreamResponse | None:
        """Handle an answer with an error status; return the client's answer, or None if another attempt follows."""
        body = await answer.read()
        if self._attempts.may_retry(backend, answer.status):
            return None
        if self._response is None:
            if self._reply.asks_ids and answer.status in _REFUSES_FIELD and b"return_token_ids" in body:
                backend.refuses_ids.add(self._asked.endpoint)
                return None
            return web.Response(status=answer.status, body=body, headers=headers.to_client(answer.headers))
        shown = body[:200].decode(errors="replace")
        raise ApiError(502, f"{backend.record.worker} refused to continue with {answer.status}: {shown}")

    def _break_off(self, backend: Backend, reason: str) -> None:
        """Prepare the next attempt after an answer that ended early.

        Raises:
            ApiError: No other engine can continue the stream.
        """
        self._attempts.failed(backend, reason)
        if self._response is None:
            self._measured.osl_tokens, self._measured.first_s = 0, None
            self._reply = StreamReply(self._asked, self._measured)
        elif not self._reply.can_continue:
            cause = f"`{self._reply.obstacle}` keeps it there" if self._reply.obstacle else "it cannot be continued"
            raise ApiError(502, f"{backend.record.worker} failed, and {cause}: {reason}")

    async def _end(self, events: list[bytes]) -> web.StreamResponse:
        self._model.traffic.finish(self._measured)
        return await self._close(events)

    async def _end_with(self, error: ApiError) -> web.StreamResponse:
        """End a stream that has begun with an error, as engines do."""
        return await self._close([error.body()])

    async def _close(self, events: list[bytes]) -> web.StreamResponse:
        if events:
            await self._write(events)
        if self._response is None:
            raise AssertionError("the end of a stream was written")
        with suppress(ConnectionError):  # the client has all of it
            await self._response.write_eof()
        return self._response
