"""HTTP client of engines."""

import io
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from loadline.adapters.http_body import BodyTooLarge, read_body
from loadline.gateway.backends import Backend
from loadline.gateway.engine_errors import is_of_other_model

_CONNECT_S: Final = 3.0
# A stopped stream waits for answers that engines have at hand: their models, and the text of a few tokens. The server
# of a busy engine takes seconds.
_QUESTION: Final = aiohttp.ClientTimeout(total=10.0, sock_connect=_CONNECT_S)
# Engines' servers (uvicorn) close idle connections after 5 s; one that closes while a request is sent fails it.
_IDLE_S: Final = 2.0
# A dead host answers nothing: probes after 10 s, every 5 s, three times. Linux sends none while a request is not
# acknowledged, and gives up after a quarter of an hour, or after the last of these times. A blocked engine that does
# not read a long request for so long counts as dead, too.
_DEAD_HOST: Final = (
    (socket.TCP_KEEPIDLE, 10),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 90_000),
)

_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest answer that is read whole; 128 outputs of 4,096 tokens with log probabilities have 50 MB."""
_STATUS_CLASSES: Final = frozenset({2, 4, 5})
_MISSING: Final = frozenset({404, 405, 501})
# A character has at most four bytes; longer runs are no text.
_HELD_TOKENS_MAX: Final = 64

_A = TypeVar("_A", bound=msgspec.Struct)


class Unreachable(Exception):
    """Failure to connect to the address of a worker: the request was not sent."""


class EngineBroken(Exception):
    """End of a connection to an engine before the end of its answer, or an answer that no engine gives."""


class EndpointMissing(EngineBroken):
    """Answer of an engine, or of a proxy before it, that has no such endpoint."""


class EngineClient:
    """Connections to engines; ``close`` ends them."""

    def __init__(self) -> None:
        self.via = f"1.1 loadline-{secrets.token_hex(8)}"
        """Value of the header ``Via`` of all requests, which no other gateway sends."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, socket_factory=_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    @asynccontextmanager
    async def post(
        self, backend: Backend, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the answer once its status is known.

        Raises:
            Unreachable: The request was not sent.
            EngineBroken: The answer is incomplete, or neither success nor error, such as a redirection.
        """
        url, data = backend.record.base_url + path, io.BytesIO(body)  # bytes above 1 MiB are written at once
        try:
            async with self._session.post(url, data=data, headers=headers, allow_redirects=False) as answer:
                if answer.status // 100 not in _STATUS_CLASSES:
                    raise EngineBroken(f"it answered {answer.status}")
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise Unreachable(str(error)) from error
        except aiohttp.ClientResponseError as error:  # its text has the address, which clients must not get
            raise EngineBroken(f"its answer is no HTTP: {error.message}") from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineBroken(str(error) or type(error).__name__) from error

    async def context_tokens(self, backend: Backend, headers: Mapping[str, str]) -> int:
        """Return the longest context of an engine, asking it once.

        Raises:
            Unreachable: The engine was not asked.
            EngineBroken: It does not say.
        """
        if backend.context_tokens is None:
            listed = await self._ask(backend, "/v1/models", None, headers, _Models)
            found = (one.max_model_len for one in listed.data if one.id == backend.record.model)
            backend.context_tokens = next(found, None)
        if backend.context_tokens is None:
            raise EngineBroken("it does not tell `max_model_len` in /v1/models")
        return backend.context_tokens

    async def complete_tokens(self, backend: Backend, ids: Sequence[int], headers: Mapping[str, str]) -> int:
        """Return the number of tokens, from the first on, that end with a complete character.

        Engines send the text of tokens up to there: more would end with a replacement character.

        Raises:
            Unreachable: The engine was not asked.
            EngineBroken: It does not say.
        """
        for count in range(len(ids), max(len(ids) - _HELD_TOKENS_MAX, 0), -1):
            body = {"model": backend.record.model, "tokens": ids[:count]}
            try:
                answer = await self._ask(backend, "/detokenize", body, headers, _Text)
            except EndpointMissing:
                return len(ids)  # nobody can tell; to fail would lose the stream at each engine of this kind
            text = answer.text if answer.prompt is None else answer.prompt
            if text is None:
                raise EngineBroken("/detokenize: it tells no text")
            if not text.endswith("\ufffd"):
                return count
        if len(ids) > _HELD_TOKENS_MAX:
            raise EngineBroken("its tokens end within a character")
        return 0

    async def _ask(self, backend: Backend, path: str, body: object, headers: Mapping[str, str], kind: type[_A]) -> _A:
        """Return the answer to a question, which is a POST if it has a body."""
        url, method = backend.record.base_url + path, "GET" if body is None else "POST"
        try:
            async with self._session.request(
                method, url, json=body, headers=headers, allow_redirects=False, timeout=_QUESTION
            ) as answer:
                found = await read_whole(answer)
                if answer.status in _MISSING and not is_of_other_model(answer.status, found):
                    raise EndpointMissing(f"{path}: it answered {answer.status}")
                if not answer.ok:
                    raise EngineBroken(f"{path}: it answered {answer.status}")
                return msgspec.json.decode(found, type=kind)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(str(error)) from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineBroken(f"{path}: {error!r}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineBroken(f"{path}: {error!r}") from error


async def read_whole(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer.

    Raises:
        EngineBroken: It has more than 64 MiB.
    """
    try:
        return await read_body(answer, _ANSWER_BYTES_MAX)
    except BodyTooLarge as error:
        raise EngineBroken(f"its answer has {error}") from error


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Text(msgspec.Struct):
    """Answer of vLLM (``prompt``) or SGLang (``text``)."""

    prompt: str | None = None
    text: str | None = None


def _socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)  # noqa: FBT003 - its only argument
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _DEAD_HOST:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
