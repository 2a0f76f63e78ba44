"""A network namespace, in which programs have their default ports to themselves."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Sets the loopback interface up (SIOCSIFFLAGS: IFF_UP | IFF_RUNNING), says so, and lives until its stdin is closed.
_HOLDER = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH", b"lo", 0x41))
print("up", flush=True)
sys.stdin.read()
"""


def can_make_namespaces() -> bool:
    """Return True if this user may make network namespaces."""
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0  # noqa: S607


@contextmanager
def network_namespace() -> Iterator[list[str]]:
    """Yield the beginning of a command that runs in a new network namespace with a loopback interface only."""
    command = ["unshare", "--net", sys.executable, "-c", _HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        yield ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        holder.stdin.close()
