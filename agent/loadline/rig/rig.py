"""Private nats-server, etcd and agents, for benchmarks, tests and experiments."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.parent_death import ending_with_parent
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import LoadlineError
from loadline.ports import Write
from loadline.rig.clusters import Cluster, etcd_cluster, nats_cluster
from loadline.rig.server_processes import EtcdServer, NatsServer, free_port
from loadline.servers import EtcdKnobs
from loadline.wire.codec import encode
from loadline.wire.keys import Keys

READY_S = 60.0
POLL_S = 0.01
# etcd allows at most 128 writes in a transaction.
WRITES_MAX = 100


class ChildAgent:
    """Child process that runs ``loadline run``.

    Args:
        config: Text of its configuration, without ``[http]``.
        directory: Folder for configuration and log.
        name: Base name of both files.
        runner: Command that runs the one appended to it, such as a sandbox.
    """

    def __init__(self, config: str, directory: Path, name: str = "agent", runner: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.log = directory / f"{name}.log"
        path = directory / f"{name}.toml"
        path.write_text(f"{config}\n[http]\nport = {self.port}\n", encoding="utf-8")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                ending_with_parent([*runner, sys.executable, "-m", "loadline", "run", "--config", str(path)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def get(self, path: str) -> tuple[int, str]:
        """Request an HTTP path; return status and body, with status 0 while the port is closed."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self) -> float:
        """Wait until ``/readyz`` returns 200; return the seconds that it took.

        Raises:
            LoadlineError: The agent ended, or is not ready within 60 s.
        """
        return self._wait_until(lambda: self.get("/readyz")[0] == 200, "ready")  # noqa: PLR2004 - HTTP OK

    def wait_leading(self) -> float:
        """Wait until it leads, half a second after it is ready; return the seconds that it took.

        Raises:
            LoadlineError: The agent ended, or does not lead within 60 s.
        """
        return self._wait_until(lambda: "\nloadline_leading 1.0\n" in self.get("/metrics")[1], "leading")

    def _wait_until(self, condition: Callable[[], bool], what: str) -> float:
        began = time.monotonic()
        while not condition():
            if self.process.poll() is not None or time.monotonic() - began > READY_S:
                raise LoadlineError(f"the agent is not {what}: {self.get('/readyz')[1]} {self.log.read_text()[-2000:]}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(READY_S)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.process.kill()
        self.process.wait()


class Rig:
    """Servers and agents with their files in one folder; all of them end with the ``with`` block.

    Args:
        directory: Folder of all files.
        fsync: True if etcd waits for the disk, as in production.
        members: Number of nats-servers and of etcds, each a cluster if there are several.
    """

    def __init__(self, directory: Path, *, fsync: bool = False, members: int = 1) -> None:
        self.directory = directory
        self.nats_cluster: Cluster[NatsServer] = nats_cluster(directory, members)
        self.etcd_cluster: Cluster[EtcdServer] = etcd_cluster(directory, members, fsync=fsync)
        self._agents: list[ChildAgent] = []

    @property
    def nats(self) -> NatsServer:
        """The first nats-server."""
        return self.nats_cluster.members[0]

    @property
    def etcd(self) -> EtcdServer:
        """The first etcd."""
        return self.etcd_cluster.members[0]

    def __enter__(self) -> Self:
        self.nats_cluster.start()
        self.etcd_cluster.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self._agents:
            with contextlib.suppress(ProcessLookupError):
                agent.kill()
        self.etcd_cluster.stop()
        self.nats_cluster.stop()

    def config(self, models: str, name: str = "agent", **sections: dict[str, object]) -> str:
        """Build a configuration for these servers from the models as TOML and the keys of other sections."""
        base: dict[str, dict[str, object]] = {
            "agent": {"name": name},
            "nats": {"servers": list(self.nats_cluster.urls)},
            "etcd": {"endpoints": list(self.etcd_cluster.urls)},
            "journal": {"directory": str(self.directory / f"journal-{name}")},
        }
        for section, values in sections.items():
            base[section] = {**base.get(section, {}), **values}
        lines = [
            line
            for section, values in base.items()
            for line in (f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()))
        ]
        return "\n".join([*lines, models])

    def agent(self, config: str, name: str = "agent", runner: Sequence[str] = ()) -> ChildAgent:
        """Start an agent, which ends with the rig."""
        agent = ChildAgent(config, self.directory, name, runner)
        self._agents.append(agent)
        return agent

    async def register(self, records: Iterable[WorkerRecord], namespace: str = "default") -> None:
        """Write workers into the registry without leases, so that they last as long as etcd."""
        store, keys = EtcdStore(EtcdKnobs(endpoints=self.etcd_cluster.urls)), Keys(namespace)
        try:
            for chunk in _chunks(records, WRITES_MAX):
                await store.commit([], [Write(keys.worker(r.model, r.pool, r.worker), encode(r)) for r in chunk])
        finally:
            await store.close()


def _chunks(records: Iterable[WorkerRecord], size: int) -> Iterator[list[WorkerRecord]]:
    chunk: list[WorkerRecord] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
