"""Notifications to systemd (``sd_notify``); without a notify socket they do nothing."""

import contextlib
import os
import socket
from collections.abc import Mapping

_US_PER_S = 1_000_000


class Notifier:
    """The service manager's notify socket. Sending never blocks and never fails.

    Args:
        environment: Variables with NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of the abstract name space.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        timeout_us = environment.get("WATCHDOG_USEC", "")
        is_addressed = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_interval_s = int(timeout_us) / _US_PER_S / 2 if timeout_us.isdecimal() and is_addressed else 0.0
        """Interval in s at which ``alive`` should be called, half of the timeout; 0: no watchdog."""

    def ready(self) -> None:
        """Report that the service has started."""
        self._send("READY=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.settimeout(0)
            out.sendto(message.encode(), self._address)
