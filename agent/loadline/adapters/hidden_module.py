"""Imports without an optional package that the imported one would use."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let imports in the body fail to find a package, unless it is imported already."""
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]  # None: the package does not exist
    if name in modules:
        yield
        return
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]
