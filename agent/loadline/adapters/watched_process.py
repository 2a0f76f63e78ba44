"""Process whose end is noticed, and whose id is never mistaken for that of another one."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from loadline.adapters.process_identity import ProcessIdentity, kill_tree, open_pidfd


class WatchedProcess:
    """A running process that leads a session, whoever has started it. Create it in the event loop.

    Args:
        identity: The process.
        on_end: Called once, after it has ended and what it left behind was killed.

    Raises:
        ProcessLookupError: It has ended; what it left in its session was killed.
    """

    def __init__(self, identity: ProcessIdentity, on_end: Callable[[], None]) -> None:
        self.identity = identity
        self._on_end = on_end
        try:
            self._pidfd: int | None = open_pidfd(identity)
        except ProcessLookupError:
            kill_tree(identity)
            raise
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended)

    def send(self, kind: Literal["terminate", "kill"]) -> None:
        """Send SIGTERM to the process, or SIGKILL to it, its descendants and its session; nothing once it has ended.

        SIGTERM is for the process alone: an engine ends its own processes after their requests.
        """
        if self._pidfd is None:
            return
        if kind == "kill":
            kill_tree(self.identity)
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def forget(self) -> None:
        """Watch the process no longer, and leave it running."""
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _ended(self) -> None:
        self.forget()
        try:
            # Kill its own children too, before its parent waits for it: until then its id is its own.
            kill_tree(self.identity)
        finally:
            self._on_end()
