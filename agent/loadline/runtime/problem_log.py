"""Log of problems that last: calls that fail are repeated twice a second, and logged when their problem changes."""

from typing import Any, Protocol


class Log(Protocol):
    """The methods of a structlog logger that are used here."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log a normal event."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Log a condition that operators should know."""

    def error(self, event: str, **fields: Any) -> Any:
        """Log a problem that operators must fix."""

    def exception(self, event: str, **fields: Any) -> Any:
        """Log a bug, with the traceback of the exception that is being handled."""


class ProblemLog:
    """Last problem of each kind of call."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._problems: dict[str, str] = {}

    def report(self, event: str, problem: str) -> None:
        """Log a problem when it appears or changes; empty: the call succeeded."""
        if problem and self._problems.get(event) != problem:
            self._log.warning(event, detail=problem)
        self._problems[event] = problem
