"""TLS contexts that read the system's certificates at their first connection.

aiohttp makes two when it is imported, which costs 36 ms. Most agents use neither: their servers are without TLS, or
have contexts of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from ssl import MemoryBIO, SSLContext, SSLObject
from typing import Any


class _Unread(SSLContext):
    """Context whose certificates have not been read."""

    def wrap_bio(self, incoming: MemoryBIO, outgoing: MemoryBIO, *arguments: Any, **options: Any) -> SSLObject:
        """Read the certificates, and begin a connection of asyncio."""
        self.set_default_verify_paths()
        self.__class__ = SSLContext  # type: ignore[assignment]  # not before: another thread may connect meanwhile
        return self.wrap_bio(incoming, outgoing, *arguments, **options)


@contextmanager
def deferred() -> Iterator[None]:
    """Let contexts that the body makes read the system's certificates at their first connection."""

    def defer(context: SSLContext) -> None:
        context.__class__ = _Unread

    SSLContext.set_default_verify_paths = defer  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del SSLContext.set_default_verify_paths  # the one of the base class is visible again
