"""What a daemon does on a signal: SIGTERM and SIGINT stop it, SIGHUP has it read its configuration."""

import asyncio
import signal
from collections.abc import Callable

import structlog

from loadline.adapters import deferred_sighup

_log = structlog.get_logger(component="signals")


def install_handlers(stop: Callable[[], object], reload: Callable[[], object] | None = None) -> None:
    """Call ``stop`` on SIGTERM and SIGINT from now on, in the running loop; on SIGHUP ``reload``, or say why not.

    A SIGHUP that was held is obeyed now.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    hung_up = reload or _hung_up
    loop.add_signal_handler(signal.SIGHUP, hung_up)
    if deferred_sighup.pop_deferred():
        hung_up()


def _hung_up() -> None:
    _log.warning("not_reloaded", detail="the configuration is read at the start only", remedy="Restart to read it.")
