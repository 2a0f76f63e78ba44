"""What a daemon does on a signal: SIGTERM and SIGINT stop it, SIGHUP does not end it."""

import asyncio
import signal
from collections.abc import Callable

import structlog

_log = structlog.get_logger(component="signals")


def obey(stop: Callable[[], object]) -> None:
    """Call ``stop`` on SIGTERM and SIGINT from now on, in the running loop; on SIGHUP say why nothing is reloaded."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, _hung_up)


def _hung_up() -> None:
    _log.warning("not_reloaded", detail="the configuration is read at the start only", remedy="Restart to read it.")
