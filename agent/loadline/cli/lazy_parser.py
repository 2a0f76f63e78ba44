"""Parser that imports the module of a command when the command is called.

Importing all modules takes 0.8 s, mostly NATS, HTTP and numpy. `step` starts in a third of that.
"""

import argparse
from importlib import import_module
from typing import Any


class LazyParser(argparse.ArgumentParser):
    """Parser of one command.

    Args:
        runs: ``module.function`` in this package. If the module has a function ``arguments``, it adds the options.
        options: Arguments of ``ArgumentParser``.
    """

    def __init__(self, *, runs: str, **options: Any) -> None:
        super().__init__(**options)
        self._runs = runs

    def load(self) -> None:
        """Import the module of the command and add its options."""
        if self._runs:
            name, _, function = self._runs.partition(".")
            self._runs = ""
            module = import_module(f"loadline.cli.{name}")
            self.set_defaults(command=getattr(module, function))
            if hasattr(module, "arguments"):
                module.arguments(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Import the module, then parse."""
        self.load()
        return super().parse_known_args(args, namespace)
