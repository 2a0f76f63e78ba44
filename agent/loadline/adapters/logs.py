"""Logging: structlog for terminals or machines, and the rate-limited logger that all parts use.

Log lines contain data from outside, so control characters are escaped, long texts are truncated, and values with the
name of a secret are hidden.
"""

import codecs
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from loadline.adapters.hidden_module import hidden

with hidden("rich"):  # for tracebacks that are not written here: 6 MB and 0.2 s of each program
    import structlog
    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

_TEXT_CHARS_MAX = 2_000
_HIDDEN = "<hidden>"
# Python loads the codec at its first use, which fails while the process has no file descriptor left to read it by.
_escape_character = codecs.getencoder("unicode_escape")
# Whole words between underscores, so that ``token`` is hidden and ``isl_tokens`` is not.
_SECRETS = frozenset({"password", "passwd", "secret", "token", "authorization", "credentials", "seed", "jwt", "apikey"})


def configure(log_format: str, log_level: str, stream: TextIO | None = None) -> None:
    """Send all logging, including that of libraries, to one stream.

    Args:
        log_format: ``json``, ``console``, or ``auto``: console on a terminal, else json.
        log_level: ``debug``, ``info``, ``warning`` or ``error``: the lowest level that is written.
        stream: Destination; stderr by default.
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
        logger_factory=lambda *_arguments: _Writer(stream),
    )
    logging.basicConfig(handlers=[_Forward()], level=max(level, logging.WARNING), force=True)


class _Writer:
    """Logger of rendered lines. Those that cannot be written are lost: its disk is full, or its reader has ended.

    An exception would end the program, or the effect that logs, as if that had failed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        """Write a line."""
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._stream.write(f"{message}\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


class _Forward(logging.Handler):
    """Handler that passes lines of libraries to structlog, limited by library and level."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        suppressed = self._limit.admit(record.name, record.levelname, "")
        if suppressed is None:
            return
        error = record.exc_info[1] if record.exc_info else None
        fields = {"suppressed": suppressed} if suppressed else {}
        structlog.get_logger().log(record.levelno, record.getMessage(), component=record.name, exc_info=error, **fields)


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
    return "".join(c if c.isprintable() else _escape_character(c)[0].decode() for c in text)


class LineLimit:
    """Limit on lines per minute, for each event, kind and model, and for each event and kind.

    So a flood about one model hides no other, and one about many models cannot fill the disk. The table of both is
    bounded too: while it is full, new ones share one allowance per event.

    Args:
        lines_max: Lines per minute of one event, kind and model.
        kind_lines_max: Lines per minute of one event and kind.
        windows_max: Size of the table.
        clock: Monotonic time in s.
    """

    def __init__(
        self,
        lines_max: int = 30,
        kind_lines_max: int = 600,
        windows_max: int = 4_096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines_max = lines_max
        self._kind_lines_max = kind_lines_max
        self._windows_max = windows_max
        self._clock = clock
        self._windows: dict[tuple[str, ...], _Window] = {}
        self._swept_at = float("-inf")

    def admit(self, event: str, kind: str, model: str) -> int | None:
        """Count a line; return None if it exceeds a limit, else the number suppressed since the last one admitted."""
        now = self._clock()
        of_kind, window = self._window((event, kind), now), self._window((event, kind, model), now)
        if window.lines >= self._lines_max or of_kind.lines >= self._kind_lines_max:
            window.suppressed += 1
            return None
        for counted in {window, of_kind}:  # one and the same if the table is full
            counted.lines += 1
        suppressed, window.suppressed = window.suppressed, 0
        return suppressed

    def _window(self, key: tuple[str, ...], now: float) -> "_Window":
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= self._windows_max and now - self._swept_at >= _WINDOW_S:
                self._sweep(now)
            full = len(self._windows) >= self._windows_max  # events are few: their names are constants
            window = self._windows.setdefault(key[:1] if full else key, _Window())
        if now - window.began >= _WINDOW_S:
            window.began, window.lines = now, 0
        return window

    def _sweep(self, now: float) -> None:
        """Remove the windows that have ended, with nothing suppressed; O(windows), so once a minute at most."""
        self._swept_at = now
        self._windows = {
            key: window for key, window in self._windows.items() if window.suppressed or now - window.began < _WINDOW_S
        }


_WINDOW_S = 60.0


class _Window:
    __slots__ = ("began", "lines", "suppressed")

    def __init__(self) -> None:
        self.began = float("-inf")
        self.lines = 0
        self.suppressed = 0


class BoundedLogger:
    """Logger whose lines are limited, and give the number suppressed before them. All logging goes through it.

    The kind of a line is its field ``kind`` or ``reason``, its model the field ``model``.

    Args:
        logger: Receives the lines.
        limit: Limit of the lines.
    """

    def __init__(self, logger: FilteringBoundLogger, limit: LineLimit | None = None) -> None:
        self._logger = logger
        self._limit = limit or LineLimit()

    def bind(self, **fields: Any) -> "BoundedLogger":
        """Return a logger with the same limit, whose lines have more fields."""
        return BoundedLogger(self._logger.bind(**fields), self._limit)

    def debug(self, event: str, **fields: Any) -> None:
        """Log at level debug, or count."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log at level info, or count."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log at level warning, or count."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log at level error, or count."""
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log at level error with the traceback of the exception that is being handled, or count."""
        self._log(logging.ERROR, event, {**fields, "exc_info": True})

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        kind = str(fields.get("kind") or fields.get("reason") or "")
        suppressed = self._limit.admit(event, kind, str(fields.get("model") or ""))
        if suppressed is not None:
            # A program that uses the clients has its own structlog, whose stdout may be closed or be ASCII, and whose
            # processors may fail. Without any stdout, structlog raises TypeError.
            with suppress(Exception):
                self._logger.log(level, event, **fields, **({"suppressed": suppressed} if suppressed else {}))


def bounded(component: str) -> BoundedLogger:
    """Return a rate-limited logger whose lines name the component."""
    return BoundedLogger(structlog.get_logger(component=component))
