"""Logging: structlog for terminals or machines, and a rate-limited logger.

Log lines contain data from outside, so control characters are escaped, long texts are truncated, and values with the
name of a secret are hidden.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

_TEXT_CHARS_MAX = 2_000
_HIDDEN = "<hidden>"
# Whole words between underscores, so that ``token`` is hidden and ``isl_tokens`` is not.
_SECRETS = frozenset({"password", "passwd", "secret", "token", "authorization", "credentials", "seed", "jwt", "apikey"})


def configure(log_format: str, log_level: str, stream: TextIO | None = None) -> None:
    """Send all logging, that of the libraries too, to one stream.

    Args:
        log_format: ``json``, ``console``, or ``auto``: console on a terminal, else json.
        log_level: ``debug``, ``info``, ``warning`` or ``error``: the least that is written.
        stream: Where to; stderr by default.
    """
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[log_level.upper()]
    console = log_format == "console" or (log_format == "auto" and stream.isatty())
    renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty()) if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            clean,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
    )
    logging.basicConfig(handlers=[_Forward()], level=max(level, logging.WARNING), force=True)


class _Forward(logging.Handler):
    """Hands what libraries log through the standard library over to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        structlog.get_logger().log(record.levelno, record.getMessage(), component=record.name, exc_info=error)


def clean(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: hides secrets by their key, escapes control characters, cuts what is very long."""
    return {key: _clean(key, value) for key, value in event.items()}


def _clean(key: str, value: Any) -> Any:
    if not key.endswith("_file") and not _SECRETS.isdisjoint(key.lower().split("_")):
        return _HIDDEN
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return {_escape(str(inner)): _clean(str(inner), held) for inner, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean("", held) for held in value]
    text = str(value)
    if key == "exception":  # a traceback keeps its lines
        return "\n".join(_escape(line) for line in text.splitlines())
    return _escape(text)


def _escape(text: str) -> str:
    if len(text) > _TEXT_CHARS_MAX:
        text = text[:_TEXT_CHARS_MAX] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class BoundedLogger:
    """A logger that writes at most ``lines_max`` lines per minute of each event, and counts the suppressed ones.

    The table of events is bounded too: when it is full, events that are new share one allowance.

    Args:
        logger: Where the lines go.
        lines_max: Lines of one event in a minute.
        events_max: Events that have an allowance of their own.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        logger: FilteringBoundLogger,
        lines_max: int = 5,
        events_max: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._lines_max = lines_max
        self._events_max = events_max
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def info(self, event: str, **fields: Any) -> None:
        """Log at level info, or count."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log at level warning, or count."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log at level error, or count."""
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        window = self._window(event)
        now = self._clock()
        if now - window.began >= _WINDOW_S:
            window.began, window.lines = now, 0
        if window.lines >= self._lines_max:
            window.suppressed += 1
            return
        window.lines += 1
        if window.suppressed:
            fields["suppressed"] = window.suppressed
            window.suppressed = 0
        self._logger.log(level, event, **fields)

    def _window(self, event: str) -> "_Window":
        window = self._windows.get(event)
        if window is None:
            key = event if len(self._windows) < self._events_max else ""
            window = self._windows.setdefault(key, _Window())
        return window


_WINDOW_S = 60.0


class _Window:
    __slots__ = ("began", "lines", "suppressed")

    def __init__(self) -> None:
        self.began = float("-inf")
        self.lines = 0
        self.suppressed = 0


def bounded(name: str) -> BoundedLogger:
    """Return a rate-limited logger whose lines carry ``component=name``."""
    return BoundedLogger(structlog.get_logger(component=name))
