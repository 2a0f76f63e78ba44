"""HTTP client of engines."""

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec

from loadline.gateway.backends import Backend

_CONNECT_S: Final = 3.0
# Engines' servers (uvicorn) close idle connections after 5 s; one that closes while a request is sent fails it.
_IDLE_S: Final = 2.0
# A dead host answers nothing: probes after 10 s, every 5 s, three times.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Unreachable(Exception):
    """Failure to connect to the address of a worker: the request was not sent."""


class EngineBroken(Exception):
    """End of a connection to an engine before the end of its answer."""


class EngineClient:
    """Connections to engines; ``close`` ends them."""

    def __init__(self) -> None:
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
            EngineBroken: The answer is incomplete.
        """
        url = backend.record.base_url + path
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise Unreachable(str(error)) from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineBroken(str(error) or type(error).__name__) from error

    async def context_tokens(self, backend: Backend, headers: Mapping[str, str]) -> int | None:
        """Return the longest context of an engine, asking it once; None: it does not say."""
        if backend.context_tokens is None:
            try:
                async with self._session.get(backend.record.base_url + "/v1/models", headers=headers) as answer:
                    listed = msgspec.convert(msgspec.json.decode(await answer.read()), _Models)
            except (aiohttp.ClientError, ConnectionError, TimeoutError, msgspec.MsgspecError, UnicodeDecodeError):
                return None
            found = (one.max_model_len for one in listed.data if one.id == backend.record.model)
            backend.context_tokens = next(found, None)
        return backend.context_tokens


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
