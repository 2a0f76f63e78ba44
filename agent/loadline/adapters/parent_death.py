"""Child processes that never outlive their parent, even where that is killed."""

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


def die_with_parent() -> Callable[[], None]:
    """A ``preexec_fn``: the child is killed when the thread that started it ends. Linux only.

    It is a system call and a comparison, so it is safe even where the parent has threads.
    """
    parent = os.getpid()

    def arrange() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return arrange
