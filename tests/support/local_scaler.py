"""Local scaler as a process, with an agent that announces decisions to it."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.core.vocabulary.decisions import PoolTarget, Victim
from loadline.core.vocabulary.events import DecisionAnswered
from loadline.errors import BusUnavailable
from loadline.scalers.local.lifetimes import Lifetime
from loadline.wire.codec import Codec, encode
from loadline.wire.messages import ScalingDecision
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.waiting import SCENARIO_S, until

LATER = 2**53
"""Incarnation later than any start, since the test's processes do not register."""


class Host:
    """Local scaler process, its children, and an agent that announces decisions to it."""

    def __init__(self, directory: Path, nats_url: str, root: str, command: list[str], knobs: str) -> None:
        self.directory = directory
        self.root = root
        self.subjects = Subjects(root)
        self.bus = NatsBus(NatsKnobs(servers=(nats_url,)), name="test-agent")
        self.answers: list[DecisionAnswered] = []
        self._codec = Codec(self.subjects, 262_144)
        self._announced: ScalingDecision | None = None
        config = directory / "local.toml"
        config.write_text(
            f"""
            root = "{root}"
            {knobs}
            log_directory = "{directory}/logs"
            lifetimes_file = "{directory}/lifetimes.jsonl"
            settle_ms = 100
            restart_backoff_ms = 50
            linger_ms = 200
            grace_ms = 1000
            nats.servers = ["{nats_url}"]
            [[models]]
            name = "m"
            [[models.pools]]
            name = "p"
            role = "decode"
            gpus = 2
            env = {{ FROM_CONFIG = "yes" }}
            command = {msgspec.json.encode(command).decode()}
            """,
            encoding="utf-8",
        )
        self.config = config
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadline", "scaler", "local", "--config", str(self.config)]
        )

    def children(self) -> dict[str, int]:
        """Return the process ids of running workers by name, which is the last word of the command line.

        By their parent: /proc/<pid>/task/<pid>/children leaves processes out while another one ends.
        """
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int(folder.joinpath("stat").read_text("utf-8").rpartition(")")[2].split()[1])
                words = folder.joinpath("cmdline").read_bytes().split(b"\0") if parent == self.process.pid else []
                if len(words) > 2 and words[-2].startswith(b"p-"):
                    found[words[-2].decode()] = int(folder.name)
        return found

    def lifetimes(self) -> dict[str, Lifetime]:
        path = self.directory / "lifetimes.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return {lifetime.worker: lifetime for lifetime in (msgspec.json.decode(line, type=Lifetime) for line in lines)}

    def receive(self, subject: str, payload: bytes) -> None:
        event = self._codec.decode(subject, payload)
        assert isinstance(event, DecisionAnswered)
        self.answers.append(event)

    def announce(
        self, sequence: int, replicas: int, *victims: str, drain_ttl_ms: int = 60_000, pool: str = "p"
    ) -> None:
        """Announce a decision repeatedly from now on, as agents do."""
        named = tuple(Victim(name, LATER) for name in victims)
        target = PoolTarget(pool, "decode", replicas, 0, named)
        self._announced = decision(1, sequence, target, drain_ttl_ms=drain_ttl_ms)

    async def keep_announcing(self) -> None:
        while True:
            with contextlib.suppress(BusUnavailable):
                if self._announced is not None:
                    await self.bus.publish(self.subjects.decision("m"), encode(self._announced))
            await asyncio.sleep(0.05)

    async def answered(self, sequence: int, status: str) -> DecisionAnswered:
        def found() -> list[DecisionAnswered]:
            return [answer for answer in self.answers if (answer.sequence, answer.status) == (sequence, status)]

        await until(found, f"{status} of decision {sequence}")
        return found()[0]

    async def wait_for_workers(self, *names: str) -> None:
        await until(lambda: set(self.children()) == set(names), f"workers {names}, there are {self.children()}")


@asynccontextmanager
async def host(directory: Path, nats_url: str, root: str, command: list[str], knobs: str = "") -> AsyncIterator[Host]:
    scaler_host = Host(directory, nats_url, root, command, knobs)
    announcing = asyncio.create_task(scaler_host.keep_announcing())
    try:
        await scaler_host.bus.connect(lambda _connected: None)
        await scaler_host.bus.subscribe(scaler_host.subjects.applied("m"), scaler_host.receive)
        async with asyncio.timeout(SCENARIO_S):
            yield scaler_host
    finally:
        announcing.cancel()
        # Terminated, not killed: otherwise the children of its workers would survive.
        scaler_host.process.terminate()
        scaler_host.process.wait(timeout=10)
        await scaler_host.bus.close()
