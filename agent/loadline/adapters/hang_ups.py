"""SIGHUP while a daemon starts. It imports next to nothing: until it is called, the signal ends the process."""

import signal

_early: list[int] = []


def hold() -> None:
    """Keep SIGHUP from now on, until somebody can obey it."""
    signal.signal(signal.SIGHUP, lambda number, _frame: _early.append(number))


def held() -> bool:
    """Whether one came meanwhile; says so once."""
    came = bool(_early)
    _early.clear()
    return came
