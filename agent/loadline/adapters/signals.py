"""Signal handlers of a daemon: SIGTERM and SIGINT stop it, SIGHUP reloads its configuration."""

import asyncio
import signal
from collections.abc import Callable

from loadline.adapters import deferred_sighup
from loadline.adapters.logs import bounded

_log = bounded("signals")


def install_handlers(stop: Callable[[], object], reload: Callable[[], object] | None = None) -> None:
    """Call ``stop`` on SIGTERM and SIGINT, and ``reload`` on SIGHUP; without ``reload``, log that SIGHUP has no effect.

    A deferred SIGHUP is handled now.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    on_hangup = reload or _log_not_reloaded
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    if deferred_sighup.pop_deferred():
        on_hangup()


def _log_not_reloaded() -> None:
    _log.warning(
        "not_reloaded", detail="this process reads its configuration at the start only", remedy="Restart to read it."
    )
