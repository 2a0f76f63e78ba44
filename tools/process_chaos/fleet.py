"""Demo fleet with two agents, each behind proxies, whose processes can be killed, frozen and started again."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from loadline.adapters.etcd_store import EtcdStore
from loadline.demo.setup import FIRST_AGENT, DemoSetup
from loadline.demo.stack import SupervisedProcess
from loadline.errors import LoadlineError
from loadline.rig.clusters import etcd_cluster, nats_cluster
from loadline.rig.server_processes import free_port
from loadline.wire.keys import Keys
from tools.process_chaos import engines
from tools.process_chaos.etcd_operator import EtcdOperator
from tools.process_chaos.neighbours import CONFIG as NEIGHBOURS
from tools.process_chaos.other_version import OtherVersion
from tools.process_chaos.plan import Plan
from tools.process_chaos.proxy import Proxy
from tools.process_chaos.small_disk import SmallDisk
from tools.process_chaos.wall_clock import WallClock

LEASE_TTL_S: Final = 5
JOURNAL_DISK_MIB: Final = 32
JOURNAL_BYTES_MAX: Final = 8 * 2**20
"""Size of an agent's journal; three of them fit on the disk."""
_SEGMENT_BYTES_MAX: Final = 2**20
_ETCD_QUOTA_BYTES: Final = 32 * 2**20
"""Size of etcd's data above which it takes no more."""
_TOKEN_TTL_S: Final = 10
"""Life of a login at etcd; unlike etcd's simple tokens, a JWT ends even if it is used."""
ENGINE_SPEED: Final = 5.0
REQUESTS_PER_S: Final = 25
"""Arrivals of the demo's trace at ``ENGINE_SPEED``."""
_PLANNER: Final = """planner = "saturation"

[models.saturation]
scale_up_window_ms = 1000
scale_down_window_ms = 2000

[models.guardrails]
stabilisation_ms = 2000
warm_up_ms = 2000
"""
"""Planner that does not relate latencies, which are of virtual time, to rates; it scales every few seconds."""


class Program(SupervisedProcess):
    """Child process that takes any signal, and tells whether it is ready.

    Args:
        name: Its name.
        command: Program and arguments.
        log: File to append its output to.
        write_line: Called when it is started again.
        restart: Whether it is started again whenever it ends.
    """

    def __init__(
        self, name: str, command: list[str], log: Path, write_line: Callable[[str], None], *, restart: bool = True
    ) -> None:
        self.name = name
        self._log_bytes = 0
        """Size of its log at the last start."""
        super().__init__(name, command, log, write_line, restart=restart)

    @property
    def pid(self) -> int:
        """Process id; 0 while it does not run."""
        return self._child.identity.pid if self._child is not None else 0

    def change(self, command: list[str]) -> None:
        """End it by SIGTERM; from then on, it runs another command."""
        self._command = command
        self.send(signal.SIGTERM)

    @property
    def is_ready(self) -> bool:
        """True if it has logged since its last start that it is ready."""
        if self._child is None:
            return False
        with self.log.open("rb") as log:
            log.seek(self._log_bytes)
            return b'"event": "ready"' in log.read()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; nothing while it does not run."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.identity.pid, number)

    async def stop(self) -> None:
        """Let it end by SIGTERM, even if it is frozen, and kill it with its children after 10 s."""
        self.send(signal.SIGCONT)
        await super().stop()

    def _start(self) -> None:
        self._log_bytes = self.log.stat().st_size if self.log.exists() else 0
        super()._start()


class ChaosFleet:
    """Servers, two agents, a scaler, the demo's workers and gateway, and engines with sidecars behind another gateway.

    Args:
        directory: Folder of all files.
        plan: Its plan, which has the number of servers and whether etcd asks for logins.
        write_line: Called with what happens.

    Raises:
        LoadlineError: The folder has the files of an earlier run.
    """

    def __init__(self, directory: Path, plan: Plan, write_line: Callable[[str], None]) -> None:
        if (directory / "journal").exists():
            raise LoadlineError(f"{directory} has the files of an earlier run. Name another folder, or remove it.")
        self.directory = directory
        self.write_line = write_line
        self.keys = Keys("chaos")
        self._token_key = directory / "token.key"
        options = {
            "quota-backend-bytes": str(_ETCD_QUOTA_BYTES),
            "auth-token": f"jwt,sign-method=HS256,priv-key={self._token_key},ttl={_TOKEN_TTL_S}s",
            "bcrypt-cost": "4",
        }
        self.nats = nats_cluster(directory, plan.members)
        self.etcd = etcd_cluster(directory, plan.members, options=options)
        self.operator = EtcdOperator(self.etcd, directory, self.keys.prefix, secured=plan.secured)
        self._plan = plan
        self.other: OtherVersion | None = None
        self.steady: Program | None = None
        """Agent that no fault ends or freezes, and that serves the live page."""
        self.agents: dict[str, Program] = {}
        """Agents that faults may end and freeze."""
        self._configs: dict[str, str] = {}
        """Configurations of the agents by name, as the demo has them."""
        self.clocks: dict[str, WallClock] = {}
        """Wall clocks of the agents."""
        self.proxies: dict[tuple[str, str], list[Proxy]] = {}
        """Proxies to all members, by agent and program, ``nats-server`` or ``etcd``."""
        self._programs: list[Program] = []
        """Running programs, in the order of their start."""

    @property
    def has_standby(self) -> bool:
        """True if all agents are ready."""
        return all(agent.is_ready for agent in self.agents.values())

    def open_store(self) -> EtcdStore:
        """Return a client of etcd that passes no proxy."""
        return EtcdStore(self.operator.knobs)

    async def start(self) -> None:
        """Start servers, agents and the scaler, which starts the workers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.journal_disk = SmallDisk(self.directory / "journal", JOURNAL_DISK_MIB)
        if self._plan.other_revision:
            self.other = OtherVersion(self._plan.other_revision, self.directory / "other")
        self._token_key.write_text("chaos", encoding="utf-8")
        await asyncio.gather(self.nats.start_async(), self.operator.start())
        etcd = self.operator.fleet_knobs
        self.setup = DemoSetup(
            ",".join(self.nats.urls), ",".join(etcd.endpoints), self.directory, trace_speed=1, load=1, root="chaos",
            namespace="chaos", etcd_user=etcd.user, etcd_password_file=etcd.password_file, engine_speed=ENGINE_SPEED,
            planner=_PLANNER,
        )  # fmt: skip
        if self._plan.has_steady_agent:
            self.setup = replace(self.setup, http_port=free_port())
            self.steady = await self._start_agent(FIRST_AGENT)
        for name in ("agent-2", "agent-3") if self._plan.has_steady_agent else (FIRST_AGENT, "agent-2"):
            self.agents[name] = await self._start_agent(name)
        connections = self.directory / "sidecar.toml"
        connections.write_text(self.setup.agent_config("sidecar") + engines.AGENT_CONFIG, encoding="utf-8")
        config = self.directory / "scaler.toml"
        first = f'state_file = "{self.directory / "scaler.json"}"\nsidecar_config = "{connections}"\n'
        config.write_text(first + self.setup.scaler_config() + engines.SCALER_CONFIG, encoding="utf-8")
        self.scaler = self._run("scaler", self.setup.scaler_command(config))
        port = free_port()
        self.engines_url = f"http://127.0.0.1:{port}"
        self._run("engines-gateway", engines.gateway_command(str(connections), port))

    def start_load(self, requests: int) -> None:
        """Let ``requests`` arrive."""
        command = self.setup.gateway_command("--repeat", "--requests-max", str(requests))
        self.gateway = self._run("gateway", command, restart=False)

    def worker_processes(self) -> dict[str, int]:
        """Return the process ids of this fleet's workers by name; other fleets of the machine have the same names."""
        fleet = self.setup.nats.encode()
        return {
            words[words.index(b"--name") + 1].decode(): pid
            for pid, words in commands()
            if b"loadline.demo.worker" in words and fleet in words
        }

    async def stop(self) -> None:
        """Stop all processes, the last first. The scaler ends the workers, unless it is being restarted."""
        for program in reversed(self._programs):
            await program.stop()
        for group in self._groups_left():
            self.write_line(f"process group {group} has outlived the scaler and is killed")
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for proxies in self.proxies.values():
            for proxy in proxies:
                await proxy.close()
        await asyncio.to_thread(self.nats.stop)
        await asyncio.to_thread(self.etcd.stop)
        self.journal_disk.unmount()

    def _groups_left(self) -> set[int]:
        """Return the process groups of workers and sidecars of this fleet, each of which has one of its own."""
        own, groups = str(self.directory).encode(), set[int]()
        pids = [
            pid
            for pid, words in commands()
            if b"loadline" in words and b"sidecar" in words and any(word.startswith(own) for word in words)
        ]
        for pid in [*pids, *(self.worker_processes().values() if self._programs else ())]:
            with suppress(ProcessLookupError):
                groups.add(os.getpgid(pid))
        return groups - {os.getpgrp()}

    def _run(self, name: str, command: list[str], *, restart: bool = True) -> Program:
        program = Program(name, command, self.directory / f"{name}.log", self.write_line, restart=restart)
        self._programs.append(program)
        return program

    async def _start_agent(self, name: str) -> Program:
        for cluster in (self.nats, self.etcd):
            self.proxies[name, cluster.name] = [Proxy(member.port) for member in cluster.members]
            await asyncio.gather(*(proxy.start() for proxy in self.proxies[name, cluster.name]))
        nats = ",".join(f"nats://127.0.0.1:{proxy.port}" for proxy in self.proxies[name, self.nats.name])
        etcd = ",".join(f"http://127.0.0.1:{proxy.port}" for proxy in self.proxies[name, self.etcd.name])
        setup = replace(self.setup, nats=nats, etcd=etcd)
        self._configs[name] = setup.agent_config(name)
        self.configure(name, 0)
        self.clocks[name] = WallClock(self.directory / f"{name}.clock")
        return self._run(name, self._agent_command(name, f"{name}.toml"))

    def change_version(self, name: str, *, to_other: bool) -> None:
        """Let an agent be restarted in the other version, or in this one again.

        The other one has a journal of its own, since journals are replayed by the version that wrote them.
        """
        command = self._agent_command(name, f"{name}.toml")
        if to_other and self.other is not None:
            text = (self.directory / f"{name}.toml").read_text(encoding="utf-8")
            config = self.directory / f"{name}-other.toml"
            config.write_text(text.replace(f"journal/{name}", f"journal/{name}-other"), encoding="utf-8")
            command = self.other.command(self._agent_command(name, config.name))
        self.agents[name].change(command)

    def _agent_command(self, name: str, config: str) -> list[str]:
        return self.clocks[name].command("run", "--config", str(self.directory / config))

    def configure(self, name: str, version: int) -> None:
        """Replace the configuration of an agent, which reads it by itself; versions differ in a duration."""
        lease = f"lease_ttl_s = {LEASE_TTL_S}\nmargin_ms = {LEASE_TTL_S * 200}\nblind_after_ms = {15_000 + version}"
        journal = f"segment_bytes_max = {_SEGMENT_BYTES_MAX}\nbytes_max = {JOURNAL_BYTES_MAX}"
        text = self._configs[name].replace("[journal]", f"[leadership]\n{lease}\n\n[journal]\n{journal}")
        draft, config = self.directory / f"{name}.draft", self.directory / f"{name}.toml"
        draft.write_text(text + engines.AGENT_CONFIG + NEIGHBOURS, encoding="utf-8")
        draft.replace(config)


def commands() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the process id and the words of the command of all processes of the machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), folder.joinpath("cmdline").read_bytes().split(b"\0")
