"""Identity of a process beyond its id, which the kernel reuses, and signals that reach no other process."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from msgspec import Struct

from loadline.adapters import logs

_log = logs.bounded("process_identity")


class ProcessIdentity(Struct, frozen=True):
    """A process of one boot of this host."""

    pid: int
    start_ticks: int
    """Start in clock ticks since the boot, from ``/proc/<pid>/stat``."""
    boot_id: str


class _Stat(Struct, frozen=True):
    """Fields of ``/proc/<pid>/stat``."""

    parent: int
    session: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity:
    """Return the identity of a running process.

    Raises:
        ProcessLookupError: There is none with this id.
    """
    stat = _read_stat(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    return ProcessIdentity(pid, stat.start_ticks, _boot_id())


def open_pidfd(identity: ProcessIdentity) -> int:
    """Open a descriptor that refers to this process for ever; it is readable once the process has ended.

    Raises:
        ProcessLookupError: The process has ended.
    """
    if identity.boot_id != _boot_id():
        raise ProcessLookupError(identity.pid)
    return _open_pidfd(identity.pid, identity.start_ticks)


def kill_tree(root: ProcessIdentity) -> None:
    """Send SIGKILL to a process, its descendants and its session, of which the process may have ended.

    Engine cores of vLLM survive their server otherwise and hold its GPUs. One that cannot be killed is logged and does
    not save the others.
    """
    with ExitStack() as stack:
        pidfds = []
        for pid, stat in _members(root).items():
            with _logged_failure(pid):
                pidfds.append((pid, _open_pidfd(pid, stat.start_ticks)))
                stack.callback(os.close, pidfds[-1][1])
        # The kernel reuses no id that is still that of a session: if another process has it, all of these are its own.
        holder = _read_stat(root.pid)
        if root.boot_id != _boot_id() or (holder is not None and holder.start_ticks != root.start_ticks):
            return
        for pid, pidfd in pidfds:
            with _logged_failure(pid):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)


@contextmanager
def _logged_failure(pid: int) -> Iterator[None]:
    """Log that a process cannot be killed; one that has ended needs no line."""
    try:
        yield
    except ProcessLookupError:
        pass
    except OSError as error:
        _log.error("process_not_killed", pid=pid, detail=str(error))


def _open_pidfd(pid: int, start_ticks: int) -> int:
    pidfd = os.pidfd_open(pid)
    # Read after the descriptor was opened, so that it cannot belong to a later process.
    stat = _read_stat(pid)
    if stat is None or stat.start_ticks != start_ticks:
        os.close(pidfd)
        raise ProcessLookupError(pid)
    return pidfd


def _members(root: ProcessIdentity) -> dict[int, _Stat]:
    """Return a process, its descendants, and the processes of its session."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    stats = {pid: stat for pid in pids if (stat := _read_stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found: dict[int, _Stat] = {}
    waiting = [pid for pid, stat in stats.items() if root.pid in {pid, stat.session}]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = stats[pid]
            waiting += children.get(pid, ())
    return found


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program, in parentheses, may contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return _Stat(parent=int(fields[1]), session=int(fields[3]), start_ticks=int(fields[19]))


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
