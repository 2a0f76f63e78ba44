"""A program of loadline as a process, for as long as a context lasts."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def running_loadline(log: Path, *arguments: str) -> Iterator[None]:
    """Run ``loadline`` with arguments, its output in a file; SIGTERM ends it, with exit code 0."""
    command = [sys.executable, "-m", "loadline", *arguments]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(60) == 0
