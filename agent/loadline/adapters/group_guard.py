"""Guard of a session, which kills its processes if this process dies before it dismisses the guard."""

import subprocess
from typing import Final

# Waits on a pipe that only this process has open for writing: it ends with this process, by whatever signal. A shell
# takes 1 MB. Behind the name of a process, which ends with the last ")", are its state, parent, group and session.
_SCRIPT: Final = """
read -r _
kill -s KILL -- "-$1"
for stat in /proc/[0-9]*/stat; do
  read -r line <"$stat" || continue
  set -- "$1" ${line##*)}
  [ "$5" = "$1" ] && pid=${stat#/proc/} && kill -s KILL "${pid%/stat}"
done
"""


class GroupGuard:
    """Process that waits for the end of this one, and then kills a process group and all others of its session.

    The kernel kills a child with its parent on request (``die_with_parent``), but not the child's own children: those
    of an engine would hold its GPU memory for ever.

    Args:
        group: Process group whose leader leads the session, too.

    Raises:
        OSError: The guard cannot be started.
    """

    def __init__(self, group: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - a constant and a number
            ["/bin/sh", "-c", _SCRIPT, "loadline-guard", str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to the group of this process leaves it alive
        )

    def dismiss(self) -> None:
        """End the guard; the group is left as it is."""
        self._process.kill()  # before its pipe is closed
        self._process.communicate()
