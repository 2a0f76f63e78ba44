"""Exit codes of commands."""

import argparse
import signal
from collections.abc import Callable
from typing import Final

Command = Callable[[argparse.Namespace], int]

FAILED: Final = 1
INVALID_INPUT: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM

EXIT_CODES: Final = {
    0: "success; of `replay`: every effect is identical",
    FAILED: (
        "failure: no server or agent answers, a check of `doctor`, `validate` or `check --connect` failed, a replay "
        "differs, replicas are not ready in time"
    ),
    INVALID_INPUT: "invalid options, configuration or input file",
    INTERRUPTED: "interrupted (SIGINT)",
    TERMINATED: "terminated (SIGTERM); programs that run until then, such as `run`, end with 0",
}
"""Meaning of every exit code."""
