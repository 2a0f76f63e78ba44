"""HTTP client of engines."""

import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec

from loadline.gateway.backends import Backend

_CONNECT_S: Final = 3.0
# A stopped stream waits for the list of models, which engines have at hand.
_MODELS_S: Final = 3.0
# Engines' servers (uvicorn) close idle connections after 5 s; one that closes while a request is sent fails it.
_IDLE_S: Final = 2.0
# A dead host answers nothing: probes after 10 s, every 5 s, three times.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest answer that is read whole; 128 outputs of 4,096 tokens with log probabilities have 50 MB."""
_STATUS_CLASSES: Final = frozenset({2, 4, 5})


class Unreachable(Exception):
    """Failure to connect to the address of a worker: the request was not sent."""


class EngineBroken(Exception):
    """End of a connection to an engine before the end of its answer, or an answer that no engine gives."""


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
            auto_decompress=False,
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
        url = backend.record.base_url + path
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                if answer.status // 100 not in _STATUS_CLASSES:
                    raise EngineBroken(f"it answered {answer.status}")
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise Unreachable(str(error)) from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineBroken(str(error) or type(error).__name__) from error

    async def context_tokens(self, backend: Backend, headers: Mapping[str, str]) -> int | None:
        """Return the longest context of an engine, asking it once; None: it does not say."""
        if backend.context_tokens is None:
            url, limit = backend.record.base_url + "/v1/models", aiohttp.ClientTimeout(total=_MODELS_S)
            try:
                async with self._session.get(url, headers=headers, timeout=limit, allow_redirects=False) as answer:
                    listed = msgspec.json.decode(await read_whole(answer), type=_Models)
            except (aiohttp.ClientError, ConnectionError, TimeoutError, EngineBroken):
                return None
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return None
            found = (one.max_model_len for one in listed.data if one.id == backend.record.model)
            backend.context_tokens = next(found, None)
        return backend.context_tokens


async def read_whole(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer.

    Raises:
        EngineBroken: It has more than 64 MiB.
    """
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > _ANSWER_BYTES_MAX:
            raise EngineBroken(f"its answer has more than {_ANSWER_BYTES_MAX:,} bytes")
    return bytes(body)


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def _socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)  # noqa: FBT003 - its only argument
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
