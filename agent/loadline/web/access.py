"""Access to the live page: to whom it is shown, and who may pause a model."""

import hmac
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from loadline.errors import ConfigError
from loadline.servers import is_loopback_host
from loadline.toml.secret_file import read_secret

TOKEN_CHARS_MIN: Final = 16
"""Shortest token; 16 hexadecimal digits are 64 bits."""


class Access:
    """Rules of access.

    Whoever presents the token may read and order. Without it, a request may read if the server listens on loopback and
    the request names a loopback host: a page of another site that lets its name point to 127.0.0.1 names its own.

    Args:
        host: Address that the server listens on.
        token_file: File with the token, read again for each request, since tokens are rotated; empty: none.
    """

    def __init__(self, host: str, token_file: str) -> None:
        self._on_loopback = is_loopback_host(host)
        self._token_file = Path(token_file) if token_file else None

    @property
    def has_token(self) -> bool:
        """True if a token is configured, so that models can be paused."""
        return self._token_file is not None

    @property
    def is_open(self) -> bool:
        """True if somebody may read the page."""
        return self._on_loopback or self.has_token

    def check(self) -> None:
        """Check that the token can be read.

        Raises:
            ConfigError: It cannot, or it is too short.
        """
        if self._token_file is None:
            return
        try:
            token = read_secret(self._token_file)
        except (OSError, ValueError) as error:
            raise ConfigError("http.token_file", f"cannot be read: {error}", "Name a readable file.") from error
        if len(token) < TOKEN_CHARS_MIN:
            problem = f"has a token of fewer than {TOKEN_CHARS_MIN} characters"
            raise ConfigError("http.token_file", problem, "Write a random one: openssl rand -hex 32")

    def may_read(self, request: web.Request, presented: str = "") -> bool:
        """Return True if a request may read; ``presented`` is a token from a form."""
        if self.is_token(presented or _bearer(request)):
            return True
        return self._on_loopback and is_loopback_host(_hostname(request))

    def may_order(self, request: web.Request) -> bool:
        """Return True if a request may pause a model: it presents the token, and no other site has caused it."""
        origin = request.headers.get("origin", "")
        own = not origin or origin.partition("://")[2] == request.host  # an origin has no path
        return own and self.is_token(_bearer(request))

    def is_token(self, presented: str) -> bool:
        """Return True if this is the token."""
        if self._token_file is None or not presented:
            return False
        try:
            token = read_secret(self._token_file)
        except (OSError, ValueError):
            return False
        sent = presented.encode(errors="surrogateescape")  # headers may have bytes that are not UTF-8
        return len(token) >= TOKEN_CHARS_MIN and hmac.compare_digest(sent, token.encode())


def _bearer(request: web.Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _hostname(request: web.Request) -> str:
    try:
        return urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        return ""
