"""Reads from Redis, on redis-py: keys under a prefix, and values. Every call ends within its time limit."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import redis.asyncio
import redis.exceptions

from loadline.errors import ConfigError, StoreUnavailable
from loadline.toml.secret_file import read_secret

_SCAN_COUNT: Final = 1_000
# An engine has one key of each kind, so this is far above any fleet.
_KEYS_MAX: Final = 20_000


class RedisReader:
    """A connection to one Redis server.

    Args:
        url: Its address.
        user: Name of the user; empty: the default one.
        password_file: File with the password; empty: none.
        ca_file: CA bundle for TLS.
        timeout_s: Time limit of a call.

    Raises:
        ConfigError: The password file cannot be read.
    """

    def __init__(
        self, url: str, *, user: str = "", password_file: str = "", ca_file: str = "", timeout_s: float
    ) -> None:
        try:
            password = read_secret(password_file) if password_file else None
        except (OSError, ValueError) as error:
            raise ConfigError("redis.password_file", f"cannot be read: {error}", "Name a readable file.") from error
        self._timeout_s = timeout_s
        tls: dict[str, Any] = {"ssl_ca_certs": ca_file} if ca_file else {}
        self._client = redis.asyncio.Redis.from_url(
            url,
            username=user or None,
            password=password,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            max_connections=1,
            **tls,
        )

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    async def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that begin with a prefix, sorted.

        Raises:
            StoreUnavailable: Redis does not answer, or refuses the call.
        """
        async with self._mapped():
            found: set[bytes] = set()
            async for key in self._client.scan_iter(f"{prefix}*", count=_SCAN_COUNT):
                found.add(key)
                if len(found) >= _KEYS_MAX:
                    break
            return sorted(key.decode("utf-8", "replace") for key in found)

    async def values(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Return the values of keys; None: there is no such key.

        Raises:
            StoreUnavailable: Redis does not answer, or refuses the call.
        """
        if not keys:
            return []
        async with self._mapped():
            found: Any = await self._client.mget(keys)
            return list(found)

    @asynccontextmanager
    async def _mapped(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"Redis: {str(error) or type(error).__name__}") from error
