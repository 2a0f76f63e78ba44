"""SIGHUP while a daemon starts. It imports next to nothing: until it is called, the signal ends the process."""

import signal

_early: list[int] = []


def defer() -> None:
    """Keep SIGHUP from now on, until somebody can obey it."""
    signal.signal(signal.SIGHUP, lambda number, _frame: _early.append(number))


def pop_deferred() -> bool:
    """Whether one came meanwhile; says so once."""
    came = bool(_early)
    _early.clear()
    return came
