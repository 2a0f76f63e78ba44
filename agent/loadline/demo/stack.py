"""Servers, agents, scaler and gateway of the demo as supervised child processes."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from loadline.adapters.child_process import Child
from loadline.client.resources import wait_at_most
from loadline.demo import defaults
from loadline.demo.account import DemoSummary
from loadline.demo.lifetimes import count_drained, gpu_hours
from loadline.demo.setup import DemoSetup, Mode
from loadline.errors import LoadlineError
from loadline.rig.free_space import lack_of_space
from loadline.rig.server_processes import EtcdServer, NatsServer, Server
from loadline.toml.regular_file import os_error_text

RESTART_S = 0.5
STOP_S = 10.0
RUNS_KEPT = 3
EXITS_MAX = 3
"""Exits of a program before its first success after which the demo gives up: its configuration is refused."""


class DemoOptions(Struct, frozen=True):
    """Options of a demo; an empty URL starts a private server."""

    directory: Path
    nats: str = ""
    etcd: str = ""
    mode: Mode = "disaggregated"
    trace_speed: int = defaults.TRACE_SPEED
    load: int = defaults.LOAD
    agents: int = 1
    for_s: float = 0.0
    http_port: int = 0
    root: str = "loadline"
    namespace: str = "demo"


class DemoResult(Struct, frozen=True):
    """Result of a demo."""

    requests: DemoSummary
    gpu_hours: float
    drains: int


class SupervisedProcess:
    """Child process that may be restarted when it ends unexpectedly."""

    def __init__(
        self, name: str, command: list[str], log: Path, write_line: Callable[[str], None], *, restart: bool
    ) -> None:
        self.name = name
        self.log = log
        self.ended = asyncio.Event()
        self.code = 0
        """Last exit code; negative: the signal that ended it."""
        self._command = command
        self._write_line = write_line
        self._restart = restart
        self.exits = 0
        self._stopping = False
        self._child: Child | None = None
        self._start()

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after 10 s."""
        self._stopping = True
        kinds: tuple[Literal["terminate", "kill"], ...] = ("terminate", "kill")
        for kind in kinds:
            if self._child is None:
                return
            self._child.send(kind)
            await wait_at_most(self.ended, STOP_S)

    def _start(self) -> None:
        if not self._stopping:
            self._child = Child(self._command, {}, self.log, self._exited)

    def _exited(self, code: int) -> None:
        self._child, self.code = None, code
        self.exits += 1
        if self._restart and not self._stopping:
            self._write_line(f"{self.name} exited with {code} and is restarted; its log is {self.log}")
            asyncio.get_running_loop().call_later(RESTART_S, self._start)
        else:
            self.ended.set()


class DemoStack:
    """Processes of a demo.

    Args:
        options: Options of the demo.
        write_line: Displays a line.
    """

    def __init__(self, options: DemoOptions, write_line: Callable[[str], None]) -> None:
        self.demo = DemoSetup(
            nats=options.nats,
            etcd=options.etcd,
            directory=options.directory,
            mode=options.mode,
            root=options.root,
            namespace=options.namespace,
            trace_speed=options.trace_speed,
            load=options.load,
            http_port=options.http_port,
        )
        self._options = options
        self._write_line = write_line
        self._servers: list[Server] = []
        self._programs: list[SupervisedProcess] = []
        self._gateway: SupervisedProcess | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._lock = -1

    async def start(self) -> None:
        """Start all processes except the gateway.

        Raises:
            LoadlineError: Another demo uses the folder, or a server cannot be started; the text has the reason.
        """
        directory = self._options.directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = "Name another folder with --directory."
            raise LoadlineError(f"{directory}: cannot be created: {os_error_text(error)}. {remedy}") from error
        self._lock = _lock(directory)
        for of_an_earlier_run in (self.demo.lifetimes_file, self.demo.summary_file):
            of_an_earlier_run.unlink(missing_ok=True)
        nats, etcd = NatsServer(directory / "nats"), EtcdServer(directory / "etcd")
        self._servers = [server for server, url in ((nats, self.demo.nats), (etcd, self.demo.etcd)) if not url]
        await asyncio.gather(*(server.start_async() for server in self._servers))
        self.demo = msgspec.structs.replace(self.demo, nats=self.demo.nats or nats.url, etcd=self.demo.etcd or etcd.url)
        self._watchdog = asyncio.create_task(self._restart_servers())
        for number in range(1, self._options.agents + 1):
            name = f"agent-{number}"
            config = directory / f"{name}.toml"
            config.write_text(self.demo.agent_config(name), encoding="utf-8")
            self._run(name, [sys.executable, "-P", "-m", "loadline", "run", "--config", str(config)])
        config = directory / "scaler.toml"
        config.write_text(self.demo.scaler_config(), encoding="utf-8")
        self._run("scaler", self.demo.scaler_command(config))

    async def wait_populated(self, populated: asyncio.Event) -> None:
        """Wait until each pool has its workers.

        Raises:
            LoadlineError: A program ends again and again; the text has the last line of its log.
        """
        while not await wait_at_most(populated, RESTART_S):
            for program in self._programs:
                if program.exits >= EXITS_MAX:
                    lines = program.log.read_text("utf-8", errors="replace").splitlines() or ["it is empty"]
                    text = f"{program.name} exited {program.exits} times, with {program.code} at last"
                    raise LoadlineError(f"{text}. The end of its log {program.log}: {lines[-1][:500]}")

    def start_load(self) -> asyncio.Event:
        """Start the gateway; return an event that is set when it has ended."""
        log = self._options.directory / "gateway.log"
        command = self.demo.gateway_command("--repeat")
        self._gateway = SupervisedProcess("gateway", command, log, self._write_line, restart=False)
        return self._gateway.ended

    async def stop(self) -> None:
        """Stop all processes in an order that loses nothing: gateway, workers, agents, servers."""
        if self._gateway is not None:
            await self._gateway.stop()
        for program in reversed(self._programs):
            await program.stop()
        if self._watchdog is not None:
            self._watchdog.cancel()
        for server in self._servers:
            await asyncio.to_thread(server.stop)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def result(self) -> DemoResult | None:
        """Return the result of a stopped demo; None if the load had not started.

        Raises:
            LoadlineError: The gateway left no account.
        """
        if self._gateway is None or self._gateway.code == -signal.SIGTERM:
            return None  # SIGTERM ended it while it started; once running, it exits by itself and writes an account
        try:
            summary = msgspec.json.decode(self.demo.summary_file.read_bytes(), type=DemoSummary)
        except (OSError, msgspec.DecodeError) as error:
            log = self._options.directory / "gateway.log"
            space = lack_of_space(self._options.directory)
            raise LoadlineError(f"the gateway left no account ({error}); its log is {log}{space}") from error
        lifetimes = self.demo.lifetimes_file
        return DemoResult(summary, gpu_hours(lifetimes, self.demo.engine_speed), count_drained(lifetimes))

    def _run(self, name: str, command: list[str]) -> None:
        log = self._options.directory / f"{name}.log"
        self._programs.append(SupervisedProcess(name, command, log, self._write_line, restart=True))

    async def _restart_servers(self) -> None:
        """Restart servers that were killed, on the same port and data, as a service manager would."""
        while True:
            await asyncio.sleep(RESTART_S)
            for server in self._servers:
                if not server.alive:
                    self._write_line(f"{server.name} exited and is restarted")
                    with contextlib.suppress(LoadlineError):
                        await server.start_async()


def _lock(directory: Path) -> int:
    """Lock the folder of a demo until the returned file is closed: a second one would replace the first one's files."""
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise LoadlineError(f"another `loadline up` uses {directory}: end it, or name another --directory") from error
    return lock


def run_directory(parent: Path) -> Path:
    """Return the path of a new folder for one run, named after this process; only the last three others are kept."""
    ended = [one for one in parent.glob("up-*") if not _is_running(one.name.removeprefix("up-"))]
    for old in sorted(ended, key=lambda one: one.stat().st_mtime)[:-RUNS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return (parent / f"up-{os.getpid()}").resolve()


def _is_running(pid: str) -> bool:
    """Return True if the process of a folder may still use it, or if the name is none of ours."""
    return not pid.isdecimal() or Path("/proc", pid).exists()
