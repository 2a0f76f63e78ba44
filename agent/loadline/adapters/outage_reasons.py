"""Reasons of one outage, each of which is logged once: an attempt a second would otherwise write a line a second."""

from typing import Final

_REASONS_MAX: Final = 8
"""A server may give any text."""


class OutageReasons:
    """Reasons why calls have failed since the last one that succeeded."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def is_new(self, reason: str) -> bool:
        """Record a reason; return True if it is to be logged."""
        if reason in self._known or len(self._known) >= _REASONS_MAX:
            return False
        self._known.add(reason)
        return True

    def end(self) -> bool:
        """Record that a call has succeeded; return True if any had failed before."""
        had_any = bool(self._known)
        self._known.clear()
        return had_any
