"""Deferral of SIGHUP during start-up. It imports almost nothing, as SIGHUP ends the process until ``defer`` runs."""

import signal

_received: list[int] = []


def defer() -> None:
    """Record SIGHUP from now on instead of ending the process."""
    signal.signal(signal.SIGHUP, lambda number, _frame: _received.append(number))


def pop_deferred() -> bool:
    """Return True once if a SIGHUP was deferred."""
    received = bool(_received)
    _received.clear()
    return received
