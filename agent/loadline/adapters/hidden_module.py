"""Imports without a package that the imported one would use for what is not needed here."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


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


@contextmanager
def replaced(name: str, **attributes: object) -> Iterator[None]:
    """Let imports in the body find a module with nothing but these attributes, unless the real one is imported."""
    if name in sys.modules:
        yield
        return
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(attributes)
    try:
        yield
    finally:
        del sys.modules[name]
