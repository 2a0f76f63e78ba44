"""HTTP client of an engine's page of metrics."""

from typing import Final, Self

import aiohttp

from loadline.adapters.http_body import BodyTooLarge, read_body
from loadline.errors import LoadlineError

PAGE_BYTES_MAX: Final = 16_777_216
"""Largest page; one of 1,024 ranks has 10 MB."""
TIMEOUT_S: Final = 5.0
_SERVER_ERRORS: Final = 500


class NoAnswer(LoadlineError):
    """Failure to get a page.

    Args:
        text: The reason.
        refused: True if no server listens.
        heard: True if the server has answered, with an error or a page that is too large.
    """

    def __init__(self, text: str, *, refused: bool = False, heard: bool = False) -> None:
        super().__init__(text)
        self.refused = refused
        self.heard = heard


class EnginePages:
    """Pages of metrics of one engine, as an async context manager.

    Args:
        url: URL of the metrics.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        """Open the session."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        # An engine that was started again has closed the connection, so a failed attempt says nothing: use a new one.
        connector = aiohttp.TCPConnector(limit=1, force_close=True)
        headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the session."""
        await self._session.close()

    async def fetch(self) -> bytes:
        """Return the body of the page.

        An answer that says that there is no such page is an answer: the engine lives, and its body is not a page of
        metrics.

        Raises:
            NoAnswer: No answer within 5 s, an error of the server, or a page of more than 16 MiB.
        """
        try:
            async with self._session.get(self._url, allow_redirects=False) as answer:
                if answer.status >= _SERVER_ERRORS:
                    raise NoAnswer(f"HTTP {answer.status}", heard=True)
                return await read_body(answer, PAGE_BYTES_MAX)
        except BodyTooLarge as error:
            raise NoAnswer(f"a page of {error}", heard=True) from error
        except aiohttp.ClientConnectorError as error:
            raise NoAnswer(str(error), refused=isinstance(error.os_error, ConnectionRefusedError)) from error
        except (TimeoutError, aiohttp.ClientError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}" if str(error) else "no answer within 5 s") from error
