"""Exit codes of commands."""

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
INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM

EXIT_CODES: Final = {
    0: "success; of `replay`: every effect is identical",
    FAILED: (
        "failure: no server or agent answers, a check of `doctor` or `validate` failed, a replay differs, "
        "replicas are not ready in time"
    ),
    INVALID_INPUT: "invalid options, configuration or input file",
    INTERRUPTED: "interrupted (SIGINT)",
    TERMINATED: "terminated (SIGTERM); programs that run until then, such as `run`, end with 0",
}
"""Meaning of every exit code."""


def reports_input_errors(command: Command) -> Command:
    """Wrap a command to print invalid options and files as one line and return exit code 2."""

    @functools.wraps(command)
    def wrapped(options: argparse.Namespace) -> int:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # ends child processes too
        try:
            return command(options)
        except (ConfigError, DataError) as error:
            print(f"loadline: {printable(str(error))}", file=sys.stderr)
            return INVALID_INPUT

    return wrapped
