"""Streamed answers: relayed as they come, and continued by another engine if one fails."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import aiohttp
from aiohttp import web

from loadline.adapters.logs import bounded
from loadline.client.streams import StopReply, StreamProgress
from loadline.gateway import headers
from loadline.gateway.api_request import ApiRequest
from loadline.gateway.attempts import FIRST_ERROR, Attempts
from loadline.gateway.backends import Backend
from loadline.gateway.engine_client import EngineBroken, EngineClient, Unreachable, read_whole
from loadline.gateway.engine_wait import CLIENT_S, EngineWait
from loadline.gateway.errors import ApiError, ClientLeft
from loadline.gateway.first_byte import too_late
from loadline.gateway.model import ServedModel
from loadline.gateway.sse import EventReader, EventTooLarge, write_event
from loadline.gateway.stream_reply import EngineFailed, RefusedByEngine, StreamReply
from loadline.gateway.traffic import Measured

_OK: Final = 200
_STREAM: Final = "text/event-stream"
_BEGINNING_BYTES_MAX: Final = 1_024
"""Bytes within which an answer begins: before them there may be blank lines."""
_EVENT_LINES: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Beginnings of streams of events, whatever content type they have."""
_REFUSES_FIELD: Final = frozenset({400, 422})
# A handover takes at most 3 s, and the source claims a stream whose destination does not answer within 1 s more.
_CLAIM_S: Final = 5.0

_log = bounded("gateway")


class StreamSession:
    """One streamed request, from its first engine to its last.

    Args:
        request: The request of the client.
        asked: Parsed body of the request.
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
        self._attempts = Attempts(model, measured.arrived_s, len(asked.raw))
        self._reply = StreamReply(asked, measured)
        self._response: web.StreamResponse | None = None
        self.failure_status: int | None = None
        """Status of the error with which an answer ended that had begun; None: there was none."""
        self._sent = headers.to_engine(request.headers, engines.via)
        login = request.headers.get("authorization")
        self._asking = {"authorization": login} if login else {}
        self._moves = 0
        self._answer: aiohttp.ClientResponse | None = None
        """Answer that is relayed now."""
        self.backend: Backend | None = None
        """Worker that was asked."""
        self._first_byte: asyncio.Timeout | None = None
        """Limit of the time until the first output of an answer, until there is some."""
        self._next: asyncio.Future[Backend] | None = None
        """Worker that continues the stream, once it is stopped."""

    @property
    def is_stopped(self) -> bool:
        """True from a stop until a claim is granted, or none came in time."""
        return self._next is not None and not self._next.done()

    def progress(self, request_id: str, hop: int) -> StreamProgress:
        """Return the stream's progress, for the worker that serves it."""
        prompt_tokens, output_tokens = self._reply.tokens
        return StreamProgress(
            request_id,
            hop,
            prompt_tokens,
            output_tokens,
            movable=self._answer is not None and self._can_move,
            hops=self._moves,
            remaining_tokens=self._reply.tokens_left,
        )

    def stop(self) -> StopReply:
        """Close the connection to the engine, if the last chunk that the client has can be the last from there."""
        if self._reply.ended:
            return StopReply("ended")
        if self._answer is None or self._next is not None:
            return StopReply("later", "its engine has not answered yet")
        if not self._can_move:
            return StopReply("unmovable", f"`{self._reply.obstacle}` keeps it there")
        if not self._reply.is_between_characters:
            return StopReply("later", "the next chunk may begin within a character")
        self._next = asyncio.get_running_loop().create_future()
        self._answer.close()
        return StopReply("stopped")

    def continue_at(self, backend: Backend) -> None:
        """Continue the stopped stream at a worker."""
        if self._next is not None:
            self._moves += 1
            self._next.set_result(backend)

    @property
    def _can_move(self) -> bool:
        """True if another engine can continue the stream, or start it over."""
        return self._reply.can_continue or self._response is None

    async def run(self) -> web.StreamResponse:
        """Serve the request.

        Raises:
            ApiError: No worker answered, or not in time, and the client got nothing yet.
            ClientLeft: The client closed its connection, or reads nothing.
        """
        moves = self._model.moves
        request_id = moves.begin(self)
        try:
            backend = await self._attempts.next_backend()
            moves.assign(request_id, backend)
            while True:
                with self._model.backends.using(backend):
                    answer = await self._run_at(backend)
                if answer is not None:
                    return answer
                claimed = await self._await_claim()
                backend = claimed or await self._attempts.next_backend()
                if claimed is None:
                    moves.assign(request_id, backend)
        except ApiError as error:
            if self._response is None:
                raise
            return await self._end_with(error)
        finally:
            moves.end(request_id)

    async def _await_claim(self) -> Backend | None:
        """Return the worker that a stopped stream continues at; None: it was not stopped, or none is there for it."""
        if self._next is None:
            return None
        # `asyncio.timeout` would lose a claim that is granted in the turn of the loop in which the time ends.
        granted, _ = await asyncio.wait([self._next], timeout=_CLAIM_S)
        claimed = self._next.result() if granted else None
        self._next = None
        if claimed is not None and claimed.is_registered:
            return claimed
        # One that has left since the claim may be dead: nobody would miss its first token.
        event = "not_claimed" if claimed is None else "claimed_and_left"
        _log.warning(event, model=self._model.name, remedy="It continues at another worker.")
        return None

    async def _run_at(self, backend: Backend) -> web.StreamResponse | None:
        """Relay the answer of a worker; return None if another attempt follows."""
        broken = "the stream ended early"
        self.backend = backend
        try:
            sent = await self._next_request(backend)
            if sent is None:
                return await self._end()
            async with (
                asyncio.timeout(self._model.first_byte_s) as self._first_byte,
                EngineWait(backend, self._model.stall_s, self._model.backends.has_other) as wait,
                self._engines.post(backend, *sent, self._sent) as answer,
            ):
                first = await _beginning(answer) if _may_be_whole(answer) else b""
                if answer.status != _OK or (_may_be_whole(answer) and not first.lstrip().startswith(_EVENT_LINES)):
                    return await self._refused(backend, answer, first)
                self._answer = answer
                await self._relay(answer, wait, first)
        except TimeoutError:
            if self._response is None and self._next is None:
                raise too_late(self._model, backend) from None
            broken = f"it sent nothing for {self._model.first_byte_s:g} s"
        except Unreachable as error:
            self._attempts.unreachable(backend, error)
            return None
        except RefusedByEngine as error:
            return self._refused_within(backend, error)
        except (EngineBroken, EngineFailed, EventTooLarge) as error:
            broken = str(error) or type(error).__name__
        finally:
            self._answer = self.backend = self._first_byte = None
        if self._next is None:
            if self._reply.ended:
                return await self._end()
            self._break_off(backend, broken)
        return None

    async def _next_request(self, backend: Backend) -> tuple[str, bytes] | None:
        if self._response is None:  # the client has nothing of earlier answers, and they say nothing about the next one
            self._measured.forget_output()
            self._reply = StreamReply(self._asked, self._measured)
            return self._reply.first_body(with_ids=self._asked.endpoint not in backend.refuses_ids)
        if not self._reply.is_between_characters:
            uncertain = self._reply.uncertain_ids
            self._reply.resolve_uncertain(await self._engines.complete_tokens(backend, uncertain, self._asking))
        context_tokens = None
        if self._reply.tokens_left is None:
            context_tokens = await self._engines.context_tokens(backend, self._asking)
        return self._reply.next_body(context_tokens)

    async def _relay(self, answer: aiohttp.ClientResponse, wait: EngineWait, first: bytes) -> None:
        reader = EventReader()
        piece = first or await answer.content.readany()
        while piece:
            if self._next is not None:
                return
            if received := reader.feed(piece):
                wait.end()
                await self._pass_on(received, answer)
                if self._reply.done:
                    return
                has_output = self._first_byte is None or self._reply.has_aside
                wait.begin(has_output=has_output, can_move=self._reply.can_continue or self._reply.ended)
            else:
                wait.record_comment()
            piece = await answer.content.readany()

    async def _pass_on(self, received: Iterable[bytes], answer: aiohttp.ClientResponse) -> None:
        """Send the client what it gets for events of the engine."""
        events: list[bytes] = []
        try:
            for data in received:
                events += self._reply.accept(data)
                if self._reply.done:  # whatever follows is not part of the answer
                    break
        finally:
            if events:
                if self._first_byte is not None:  # the time that a slow client takes is not the engine's
                    self._first_byte.reschedule(None)
                    self._first_byte = None
                await self._write(events, answer)

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

    async def _refused(
        self, backend: Backend, answer: aiohttp.ClientResponse, first: bytes
    ) -> web.StreamResponse | None:
        """Handle an answer that is no stream; return the client's answer, or None if another attempt follows."""
        body = first + await read_whole(answer)
        status = self._attempts.client_status(backend, answer.status, body)
        return None if status is None else self._answered(backend, status, body, headers.to_client(answer.headers))

    def _refused_within(self, backend: Backend, error: RefusedByEngine) -> web.StreamResponse | None:
        """Handle an error at the beginning of a stream; return it, or None if another attempt follows."""
        if not self._attempts.is_confirmed(backend, error.status):
            return None
        return self._answered(backend, error.status, error.body, {"content-type": "application/json"})

    def _answered(
        self, backend: Backend, status: int, body: bytes, fields: Mapping[str, str]
    ) -> web.StreamResponse | None:
        """Return a whole answer for the client, or None if another attempt follows."""
        if self._response is not None:
            shown = body[:200].decode(errors="replace")
            self._break_off(backend, f"it answered {status} instead of continuing: {shown}")
            return None
        if self._reply.asks_ids and status in _REFUSES_FIELD and b"return_token_ids" in body:
            backend.refuses_ids.add(self._asked.endpoint)
            return None
        if status < FIRST_ERROR and not self._attempts.finished(backend, body, self._measured):
            return None
        return web.Response(status=status, body=body, headers=fields)

    def _break_off(self, backend: Backend, reason: str) -> None:
        """Prepare the next attempt after an answer that ended early.

        Raises:
            ApiError: No other engine can continue the stream.
        """
        self._attempts.failed(backend, reason)
        if self._response is not None and not self._reply.can_continue:
            cause = f"`{self._reply.obstacle}` keeps it there" if self._reply.obstacle else "it cannot be continued"
            raise ApiError(502, f"{backend.record.worker} failed, and {cause}: {reason}")

    async def _end(self) -> web.StreamResponse:
        if self._reply.failed or self._reply.aborted:
            self.failure_status = web.HTTPBadGateway.status_code
        else:
            self._model.traffic.finish(self._measured)
        return await self._close(self._reply.end())

    async def _end_with(self, error: ApiError) -> web.StreamResponse:
        """End a stream that has begun with an error, as engines do."""
        self.failure_status = error.status
        return await self._close([error.body()])

    async def _close(self, events: list[bytes]) -> web.StreamResponse:
        try:
            async with asyncio.timeout(CLIENT_S):
                if events:
                    await self._write(events)
                if self._response is None:
                    raise AssertionError("the end of a stream was written")
                with suppress(ConnectionError):  # the client has all of it
                    await self._response.write_eof()
        except TimeoutError:
            raise ClientLeft from None
        return self._response


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    """Read until the first bytes tell whether events follow."""
    read = b""
    while len(read) < _BEGINNING_BYTES_MAX and (piece := await answer.content.readany()):
        read += piece
        begun = read.lstrip()
        if begun and not any(line != begun and line.startswith(begun) for line in _EVENT_LINES):
            break
    return read


def _may_be_whole(answer: aiohttp.ClientResponse) -> bool:
    """Return True if an answer may be that of an engine which ignores `stream`; not all name the type of their streams.

    Its first bytes tell.
    """
    kind = answer.content_type
    return answer.status == _OK and (kind == "application/json" or (kind != _STREAM and kind.startswith("text/")))
