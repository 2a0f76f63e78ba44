"""Signal handlers of a daemon: SIGTERM and SIGINT stop it, SIGHUP reloads its configuration, others have no effect."""

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from typing import Final

from loadline.adapters import deferred_sighup
from loadline.adapters.logs import bounded

_log = bounded("signals")

_WITHOUT_EFFECT: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
"""Signals whose default would end the process at once, with a lease that lasts until its TTL. Handled rather than
ignored, since child processes would inherit that they are ignored."""


def install_handlers(stop: Callable[[], object], reload: Callable[[], object] | None = None) -> None:
    """Call ``stop`` on SIGTERM and SIGINT, and ``reload`` on SIGHUP; without ``reload``, log that SIGHUP has no effect.

    Signals that other programs use, and that would end this one at once, are logged. A deferred SIGHUP is handled now.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    for number in _WITHOUT_EFFECT:
        loop.add_signal_handler(number, partial(_log_without_effect, number))
    on_hangup = reload or _log_not_reloaded
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    if deferred_sighup.pop_deferred():
        on_hangup()


def _log_without_effect(number: signal.Signals) -> None:
    _log.warning("signal_without_effect", signal=number.name, remedy="Send SIGTERM to stop this process")


def _log_not_reloaded() -> None:
    _log.warning(
        "not_reloaded", detail="this process reads its configuration at the start only", remedy="Restart to read it."
    )
