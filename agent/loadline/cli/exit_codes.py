"""Exit codes of commands: 0 success, 1 failure, 2 invalid options or input."""

import argparse
import functools
import signal
import sys
from collections.abc import Callable
from typing import Final

from loadline.cli.output import printable
from loadline.errors import ConfigError, DataError

Command = Callable[[argparse.Namespace], int]

FAILED: Final = 1
INVALID_INPUT: Final = 2


def reports_input_errors(command: Command) -> Command:
    """Wrap a command to print invalid options and files as one line and return exit code 2."""

    @functools.wraps(command)
    def wrapped(options: argparse.Namespace) -> int:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends child processes too
        try:
            return command(options)
        except (ConfigError, DataError) as error:
            print(f"loadline: {printable(str(error))}", file=sys.stderr)
            return INVALID_INPUT

    return wrapped
