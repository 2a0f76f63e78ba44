"""Child processes that end with their parent, even if the parent is killed."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


# Python ignores both signals, and a program that it becomes would too.
_SCRIPT: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that is killed when the thread that started it ends. Linux only.

    It needs no ``preexec_fn``, so this process may have threads of C libraries: in a forked child, Python frees what
    these threads hold, at which gRPC crashes. The command starts 15 ms later.
    """
    return [sys.executable, "-I", "-S", "-c", _SCRIPT, str(os.getpid()), *command]


def die_with_parent() -> Callable[[], None]:
    """Return a ``preexec_fn`` that has the child killed when the thread that started it ends. Linux only.

    It makes one system call and one comparison, so it is safe in a parent with threads.
    """
    return partial(set_death_signal, os.getpid())


def set_death_signal(parent: int) -> None:
    """Have this process killed when the thread that started it ends; ``parent`` is the process that did. Linux only."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the line above
        os._exit(1)
