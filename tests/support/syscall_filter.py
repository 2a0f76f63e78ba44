"""System-call filter of a systemd unit, as systemd builds it, for a process that this module starts.

``python syscall_filter.py UNIT COMMAND...`` replaces itself by the command, which runs under the ``SystemCallFilter``
of the unit. It ends with ``REFUSED`` where the filter cannot be installed.
"""

import ctypes
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REFUSED: Final = 77
"""Exit code if there is no libseccomp, or the kernel refuses the filter."""
_GROUPS: Final = Path(__file__).parents[1] / "data" / "systemd_syscall_groups.txt"
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_UNKNOWN: Final = -1  # __NR_SCMP_ERROR


def setting(unit: Path, key: str) -> list[str]:
    """Return the values of a setting of the unit, in order."""
    return re.findall(rf"^{key}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


def allowed(unit: Path) -> list[str]:
    """Return the system calls that the unit allows: each line adds to the set, or with a ``~`` takes from it."""
    lines = _GROUPS.read_text("utf-8").replace("\n    ", " ").splitlines()
    groups = {name: names.split() for name, _, names in (line.partition(": ") for line in lines if line[0] == "@")}

    def calls(name: str) -> Iterator[str]:
        if not name.startswith("@"):
            yield name
        for member in groups[name] if name.startswith("@") else ():
            yield from calls(member)

    found: set[str] = set()
    for line in setting(unit, "SystemCallFilter"):
        named = {call for name in line.removeprefix("~").split() for call in calls(name)}
        found = found - named if line.startswith("~") else found | named
    return sorted(found)


def install(unit: Path) -> None:
    """Filter the system calls of this process and of all that it starts, irrevocably.

    Raises:
        OSError: There is no libseccomp, or the kernel refuses the filter.
    """
    [refusal] = setting(unit, "SystemCallErrorNumber")
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(_ERRNO | getattr(errno, refusal))))
    for name in allowed(unit):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number != _UNKNOWN:  # a newer call than the library, or one of another architecture
            _check(seccomp.seccomp_rule_add_array(context, ctypes.c_uint32(_ALLOW), number, 0, None))
    _check(seccomp.seccomp_load(context))  # without new privileges, as in the unit


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))


if __name__ == "__main__":
    try:
        install(Path(sys.argv[1]))
    except OSError as error:
        print(f"no filter: {error}", file=sys.stderr)  # noqa: T201 - told to the test that starts this
        sys.exit(REFUSED)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the test's own command
