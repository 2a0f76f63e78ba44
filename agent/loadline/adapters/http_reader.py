"""HTTP client of many pages, on aiohttp: bounded in time and size, with connections that stay open."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from loadline.adapters.client_tls import ClientTls
from loadline.adapters.http_body import BodyTooLarge, read_body
from loadline.errors import LoadlineError
from loadline.toml.secret_file import read_secret

PAGE_BYTES_MAX: Final = 16_777_216
"""Largest page; a router with a thousand workers has some MB."""
_KEEPALIVE_S: Final = 60.0
_REFUSAL_BYTES_MAX: Final = 4_096
_OK: Final = 200


class PageUnavailable(LoadlineError):
    """A page that could not be read.

    Args:
        reason: One of a short list, such as ``no_answer``.
        detail: A sentence for people.
        status: HTTP status; 0 without an answer.
        body: Beginning of the answer.
    """

    def __init__(self, reason: str, detail: str, status: int = 0, body: bytes = b"") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.status = status
        self.body = body


class HttpReader:
    """Client session, as an async context manager.

    Args:
        timeout_s: Time limit of an answer.
        token_file: File with a bearer token, read again for each request, since tokens are rotated; empty: none.
        ca_file: CA bundle for https, read again for new connections once it was replaced; empty: the system's.

    Raises:
        ConfigError: The CA bundle cannot be used.
    """

    def __init__(self, timeout_s: float, *, token_file: str = "", ca_file: str = "") -> None:
        self._timeout_s = timeout_s
        self._token_file = Path(token_file) if token_file else None
        self._tls = ClientTls("", ca_file) if ca_file else None

    async def __aenter__(self) -> Self:
        """Open the session."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "text/plain;version=0.0.4, application/json", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, url: str, parameters: Mapping[str, str] | None = None) -> bytes:
        """Return a page.

        Raises:
            PageUnavailable: There is no answer in time, it is no success, or it is too large.
        """
        return await self._request("GET", url, params=parameters)

    async def post(self, url: str, document: object) -> bytes:
        """Send a document as JSON and return the answer.

        Raises:
            PageUnavailable: There is no answer in time, it is no success, or it is too large.
        """
        return await self._request("POST", url, json=document)

    async def _request(self, method: str, url: str, **content: Any) -> bytes:
        try:
            content |= {"headers": self._login(), "ssl": True if self._tls is None else self._tls.context()}
            request = self._session.request(method, url, allow_redirects=False, **content)
            async with request as answer:
                if answer.status != _OK:
                    refusal = await answer.content.read(_REFUSAL_BYTES_MAX)
                    raise PageUnavailable("http_status", f"HTTP {answer.status}", answer.status, refusal)
                return await read_body(answer, PAGE_BYTES_MAX)
        except BodyTooLarge as error:
            raise PageUnavailable("oversized", str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise PageUnavailable("no_answer", f"{type(error).__name__}: {error}") from error

    def _login(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {read_secret(self._token_file)}"}
        except (OSError, ValueError) as error:
            raise PageUnavailable("token_file", str(error)) from error
