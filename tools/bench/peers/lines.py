"""Child processes that answer lines."""

import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from loadline.errors import LoadlineError


class LineProcess:
    """Child process whose stdin takes lines and whose stdout answers each with one.

    Args:
        name: Name for error messages.
        command: Program and arguments.
        environment: Environment of the process; None: that of this one.
        quiet: Discard its stderr.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, environment: dict[str, str] | None = None, quiet: bool = False
    ) -> None:
        self._name = name
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()  # it may be in the middle of a long answer
        self._process.communicate()

    def ask(self, line: bytes) -> bytes:
        """Send a line and return the next line of the process.

        Raises:
            LoadlineError: The process has ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process has no pipes")
        try:
            stdin.write(line + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer is reported
        answer = stdout.readline()
        if not answer:
            raise LoadlineError(f"{self._name} ended with exit code {self._process.wait()}")
        return answer
