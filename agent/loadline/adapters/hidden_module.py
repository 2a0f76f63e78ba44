"""Imports without a package, or without it until it is used."""

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports tempfile and 30 other modules
    from importlib.abc import Loader


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


class _Unloaded(ModuleType):
    """Package that is loaded when an attribute is missed.

    Unlike a module of importlib's ``LazyLoader``, a second ``import`` does not load it. Other threads wait while it is
    loaded. If that fails, so does the next use, with the same cause.
    """

    def __init__(self, spec: ModuleSpec, loader: "Loader") -> None:
        super().__init__(spec.name)
        self.__spec__, self.__loader__ = spec, loader
        vars(self)["_load"] = _LoadOnce(self, spec, loader)

    def __getattr__(self, name: str) -> object:
        vars(self)["_load"]()
        return ModuleType.__getattribute__(self, name)


class _LoadOnce:
    def __init__(self, module: ModuleType, spec: ModuleSpec, loader: "Loader") -> None:
        self._module, self._spec, self._loader = module, spec, loader
        self._lock = threading.RLock()
        self._begun = False

    def __call__(self) -> None:
        with self._lock:
            if not self._begun:  # while it loads, it misses attributes of its own
                self._begun = True
                self._module.__path__ = self._spec.submodule_search_locations or []
                self._module.__file__ = self._spec.origin
                try:
                    self._loader.exec_module(self._module)
                except BaseException:
                    self._begun = False
                    raise
                self._module.__class__ = ModuleType


def import_at_first_use(name: str) -> None:
    """Let ``import`` of a package load it only when one of its attributes is used, unless it is imported already."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is not None and spec.loader is not None:
        sys.modules[name] = _Unloaded(spec, spec.loader)
