"""Processor time and memory that a worker, a model, a lease and a decision cost: at the agent, nats-server and etcd.

Each process is measured by itself, so the publisher and the clients of this process do not count. A cost is the
difference between two sizes, over the difference of the sizes; ``one_core_at`` is the number for which one core
suffices, at an interval of 1 s for reports and of a third of ``lease_ttl_s = 10`` for leases. etcd waits for the disk,
as in production. Renewals are steps of the lease of a worker as a client takes them. With several members, figures of a
server are those of the member that spent most; the publisher and the agent are at different members of NATS.

  python -m tools.bench.scale [--quick] [--members 3]
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from loadline.adapters.etcd_store import EtcdStore
from loadline.client.leased_key import LeasedKey, LeaseStep
from loadline.config import EtcdKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.rig.clusters import Cluster
from loadline.rig.rig import Rig
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from tools.bench.harness import BenchFleet, RawPublisher, agent, command_line, progress, rig, warm
from tools.bench.reaction import MODELS as DECIDED_MODELS
from tools.bench.reaction import react, reporting_fleet

FEW_WORKERS, MANY_WORKERS, FEW_MODELS, MANY_MODELS = 1_000, 10_000, 10, 500
LEASES, AT_ONCE, STEPS = 1_000, 16, 4
RENEWAL_S: Final = 10.0 / 3.0
IDLE_S: Final = 20.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Used(Struct, frozen=True):
    """Processor time in s and resident memory in MB (10^6 bytes) of each process of a program."""

    cpu_s: tuple[float, ...]
    memory_mb: tuple[float, ...]

    @classmethod
    def by(cls, cluster: Cluster[Any]) -> "Used":
        """Return what the members of a cluster have used so far."""
        cpu_s, memory_mb = zip(*(used(member.pid) for member in cluster.members), strict=True)
        return cls(cpu_s, memory_mb)

    def cpu_s_since(self, before: "Used") -> float:
        """Return the processor time of the member that spent most since then."""
        return max(after_s - before_s for after_s, before_s in zip(self.cpu_s, before.cpu_s, strict=True))

    def growth_mb_since(self, before: "Used") -> float:
        """Return the growth of the member that grew most since then."""
        return max(after_mb - before_mb for after_mb, before_mb in zip(self.memory_mb, before.memory_mb, strict=True))


def used(pid: int) -> tuple[float, float]:
    """Return the processor time in s and the resident memory in MB (10^6 bytes) of a process."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return (int(after_name[11]) + int(after_name[12])) / _TICKS, pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def reporting(models: int, workers: int, seconds: float, members: int) -> dict[str, float]:
    """Return processor time a second and memory of an agent and its servers while all workers report once a second."""
    fleet = BenchFleet(models, workers, usage_ratio=0.6, planner="auto")
    with rig(fsync=True, members=members) as servers, RawPublisher(servers.nats.port) as wire:
        asyncio.run(servers.register(fleet.records, "agent"))
        with agent(servers, fleet) as child:
            warm(fleet, wire, child)
            play(fleet, wire, seconds)  # windows fill
            nats_before, agent_before = Used.by(servers.nats_cluster), child.sample()
            play(fleet, wire, seconds)
            nats_after, agent_after = Used.by(servers.nats_cluster), child.sample()
            agent_mb, _ = child.memory_mb()
    if agent_after.lost:
        raise SystemExit(f"the agent lost {agent_after.lost} of {workers * seconds:g} reports")
    return {
        "nats": nats_after.cpu_s_since(nats_before) / seconds,
        "agent": (agent_after.cpu_s - agent_before.cpu_s) / seconds,
        "nats_mb": max(nats_after.memory_mb),
        "agent_mb": agent_mb,
    }


def play(fleet: BenchFleet, wire: RawPublisher, seconds: float) -> None:
    """Send the reports of all workers and of a frontend of each model, once a second."""
    for _ in range(int(seconds)):
        wire.send(fleet.traffic_burst())
        wire.play(fleet.report_bursts(1.0))


async def renew(servers: Rig, leases: int) -> dict[str, float]:
    """Register workers under leases of their own; return what etcd takes for a registration and a renewal."""
    keys, store = Keys("leases"), EtcdStore(EtcdKnobs(endpoints=servers.etcd_cluster.urls))
    records = [WorkerRecord("model", "decode", f"worker-{n:05}", "decode", incarnation=1) for n in range(leases)]
    leased = [LeasedKey(store, keys.worker(*record.names), encode(record), 600, lambda _: False) for record in records]
    queue = asyncio.Semaphore(AT_ONCE)

    async def step(one: LeasedKey) -> LeaseStep:
        async with queue:
            return await one.step(asyncio.get_running_loop().time())

    try:
        began = Used.by(servers.etcd_cluster)
        await asyncio.gather(*map(step, leased))
        registered = Used.by(servers.etcd_cluster)
        for _ in range(STEPS):
            if set(await asyncio.gather(*map(step, leased))) != {LeaseStep.RENEWED}:
                raise SystemExit("a lease was not renewed")
        renewed = Used.by(servers.etcd_cluster)
    finally:
        await store.close()
    return {
        "registration": registered.cpu_s_since(began) / leases,
        "renewal": renewed.cpu_s_since(registered) / (STEPS * leases),
        "lease_mb": renewed.growth_mb_since(began) / leases,
    }


def deciding(members: int) -> dict[str, float]:
    """Return what etcd takes for a decision, without its idle time: half of a commit and a like one of the baseline."""
    with reporting_fleet(in_memory=False, planner="auto", members=members) as (servers, fleet, wire):
        before, began_s = Used.by(servers.etcd_cluster), time.monotonic()
        asyncio.run(react(servers, fleet, wire))
        after, ended_s = Used.by(servers.etcd_cluster), time.monotonic()
        time.sleep(IDLE_S)
        idle = Used.by(servers.etcd_cluster).cpu_s_since(after) / IDLE_S
    return {"etcd": (after.cpu_s_since(before) - idle * (ended_s - began_s)) / (2 * DECIDED_MODELS)}


def cost(many: Sequence[dict[str, float]], few: Sequence[dict[str, float]], name: str, count: int) -> float:
    """Return the median over rounds of the difference in ``name``, for each of ``count``."""
    return statistics.median((a[name] - b[name]) / count for a, b in zip(many, few, strict=True))


def main() -> None:
    """Run the benchmark and print its results."""
    parser = command_line(__doc__)
    parser.add_argument("--members", type=int, default=1, help="nats-servers and etcds (default: 1)")
    options = parser.parse_args()
    rounds, seconds, leases = (1, 10.0, LEASES // 4) if options.quick else (3, 30.0, LEASES)
    few: list[dict[str, float]] = []
    many: list[dict[str, float]] = []
    spread: list[dict[str, float]] = []
    renewals: list[dict[str, float]] = []
    decisions: list[dict[str, float]] = []
    for number in range(1, rounds + 1):
        few.append(reporting(FEW_MODELS, FEW_WORKERS, seconds, options.members))
        many.append(reporting(FEW_MODELS, MANY_WORKERS, seconds, options.members))
        spread.append(reporting(MANY_MODELS, FEW_WORKERS, seconds, options.members))
        with rig(fsync=True, members=options.members) as servers:
            renewals.append(asyncio.run(renew(servers, leases)))
        decisions.append(deciding(options.members))
        progress(f"round {number}/{rounds}: {few[-1]} {many[-1]} {spread[-1]} {renewals[-1]} {decisions[-1]}")
    workers, models = MANY_WORKERS - FEW_WORKERS, MANY_MODELS - FEW_MODELS
    for what in ("agent", "nats"):
        show(f"a report, {what}", cost(many, few, what, workers), at=1.0)
        show(f"a model with 1 Hz traffic, {what}", cost(spread, few, what, models), at=1.0)
        show_memory(f"a worker, {what}", cost(many, few, f"{what}_mb", workers))
        show_memory(f"a model, {what}", cost(spread, few, f"{what}_mb", models))
    for what in ("registration", "renewal"):
        show(f"a {what}, etcd", statistics.median(one[what] for one in renewals), at=RENEWAL_S)
    show_memory("a lease with its key, etcd", statistics.median(one["lease_mb"] for one in renewals))
    show("a decision, etcd", statistics.median(one["etcd"] for one in decisions), at=1.0)


def show(name: str, seconds: float, at: float) -> None:
    """Print a processor time, and how many of these one core takes if each comes once in ``at`` seconds."""
    line: dict[str, Any] = {"name": name, "us": round(seconds * 1e6, 1), "every_s": round(at, 2)}
    print(json.dumps(line | {"one_core_at": round(at / seconds) if seconds > 0 else None}), flush=True)


def show_memory(name: str, mb: float) -> None:
    """Print a memory."""
    print(json.dumps({"name": name, "kB": round(mb * 1e3, 2)}), flush=True)


if __name__ == "__main__":
    main()
