"""Commands whose modules are imported when they are called.

All modules together take 0.8 s to import, most of it for NATS, HTTP and numpy. `step` starts in a third of that.
"""

import argparse
from importlib import import_module
from typing import Any


class LazyParser(argparse.ArgumentParser):
    """The parser of one command.

    Args:
        runs: ``module.function`` in this package. A function ``arguments`` of the module adds to the parser.
        described: What every parser takes.
    """

    def __init__(self, *, runs: str, **described: Any) -> None:
        super().__init__(**described)
        self._runs = runs

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Import the module, then parse."""
        if self._runs:
            name, _, function = self._runs.partition(".")
            self._runs = ""
            module = import_module(f"loadline.cli.{name}")
            self.set_defaults(command=getattr(module, function))
            if hasattr(module, "arguments"):
                module.arguments(self)
        return super().parse_known_args(args, namespace)
