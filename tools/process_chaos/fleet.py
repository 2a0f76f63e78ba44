"""Demo fleet with two agents, each behind proxies, whose processes can be killed, frozen and started again."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadline.adapters.child_process import Child
from loadline.adapters.etcd_store import EtcdStore
from loadline.client.resources import wait_at_most
from loadline.demo.setup import DemoSetup
from loadline.rig.servers import EtcdServer, NatsServer, Server
from loadline.servers import EtcdKnobs
from loadline.wire.keys import Keys
from tools.process_chaos.proxy import Proxy

LEASE_TTL_S: Final = 5
SPEED: Final = 5.0
REQUESTS_PER_S: Final = 25
"""Arrivals of the demo's trace at ``SPEED``."""
RESTART_S: Final = 0.5
_STOP_S: Final = 20.0


class Program:
    """Child process that is started again whenever it ends, until it is stopped for good.

    Args:
        name: Its name, and that of its log.
        command: Program and arguments.
        log: File to append its output to.
        restart: Whether it is started again.
    """

    def __init__(self, name: str, command: list[str], log: Path, *, restart: bool = True) -> None:
        self.name = name
        self.ended = asyncio.Event()
        self.code = 0
        """Last exit code; negative: the signal that ended it."""
        self._command = command
        self._log = log
        self._restart = restart
        self._child: Child | None = None
        self._log_bytes = 0
        """Size of its log at the last start."""
        self._start()

    @property
    def is_ready(self) -> bool:
        """True if it has logged since its last start that it is ready."""
        if self._child is None:
            return False
        with self._log.open("rb") as log:
            log.seek(self._log_bytes)
            return b'"event": "ready"' in log.read()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; nothing while it does not run."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.identity.pid, number)

    async def stop(self) -> None:
        """Let it end by SIGTERM, and kill it with its children after 20 s."""
        self._restart = False
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if self._child is None:
            return
        await wait_at_most(self.ended, _STOP_S)
        if self._child is not None:
            self._child.send("kill")
            await self.ended.wait()

    def _start(self) -> None:
        if self._child is None and not self.ended.is_set():
            self._log_bytes = self._log.stat().st_size if self._log.exists() else 0
            self._child = Child(self._command, {}, self._log, self._exited)

    def _exited(self, code: int) -> None:
        self._child, self.code = None, code
        if self._restart:
            asyncio.get_running_loop().call_later(RESTART_S, self._start)
        else:
            self.ended.set()


class ChaosFleet:
    """Servers, two agents, a scaler, workers and a gateway.

    Args:
        directory: Folder of all files.
        write_line: Called with what happens.
    """

    def __init__(self, directory: Path, write_line: Callable[[str], None]) -> None:
        self.directory = directory
        self.write_line = write_line
        self.nats, self.etcd = NatsServer(directory / "nats"), EtcdServer(directory / "etcd")
        self.agents: dict[str, Program] = {}
        self.proxies: dict[tuple[str, str], Proxy] = {}
        """Proxies by agent and server, ``nats`` or ``etcd``."""
        self.keys = Keys("chaos")

    @property
    def servers(self) -> tuple[Server, ...]:
        """Both servers."""
        return self.nats, self.etcd

    @property
    def has_standby(self) -> bool:
        """True if all agents are ready."""
        return all(agent.is_ready for agent in self.agents.values())

    def open_store(self) -> EtcdStore:
        """Return a client of etcd that passes no proxy."""
        return EtcdStore(EtcdKnobs(endpoints=(self.etcd.url,)))

    async def start(self) -> None:
        """Start servers, agents and the scaler, which starts the workers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        await asyncio.gather(*(server.start_async() for server in self.servers))
        self.setup = DemoSetup(
            self.nats.url, self.etcd.url, self.directory, speed=SPEED, load=1, root="chaos", namespace="chaos"
        )
        for name in ("agent-1", "agent-2"):
            await self._start_agent(name)
        config = self.directory / "scaler.toml"
        state = f'state_file = "{self.directory / "scaler.json"}"\n'
        config.write_text(state + self.setup.scaler_config(), encoding="utf-8")
        self.scaler = Program("scaler", self.setup.scaler_command(config), self.directory / "scaler.log")

    def start_load(self, requests: int) -> None:
        """Let ``requests`` arrive."""
        command = self.setup.gateway_command("--repeat", "--requests-max", str(requests))
        self.gateway = Program("gateway", command, self.directory / "gateway.log", restart=False)

    async def stop(self) -> None:
        """Stop all processes, the workers by the scaler."""
        for program in (*self._started("gateway"), *self._started("scaler"), *self.agents.values()):
            await program.stop()
        for proxy in self.proxies.values():
            await proxy.close()
        for server in self.servers:
            await asyncio.to_thread(server.stop)

    def _started(self, name: str) -> list[Program]:
        program = getattr(self, name, None)
        return [program] if isinstance(program, Program) else []

    async def _start_agent(self, name: str) -> None:
        nats, etcd = (self.proxies.setdefault((name, server.name), Proxy(server.port)) for server in self.servers)
        await asyncio.gather(nats.start(), etcd.start())
        setup = replace(self.setup, nats=f"nats://127.0.0.1:{nats.port}", etcd=f"http://127.0.0.1:{etcd.port}")
        config = self.directory / f"{name}.toml"
        margin_ms = LEASE_TTL_S * 200
        lease = f"\n[leadership]\nlease_ttl_s = {LEASE_TTL_S}\nmargin_ms = {margin_ms}\n"
        config.write_text(setup.agent_config(name) + lease, encoding="utf-8")
        command = [sys.executable, "-m", "loadline", "run", "--config", str(config)]
        self.agents[name] = Program(name, command, self.directory / f"{name}.log")
