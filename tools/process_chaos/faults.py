"""Faults on the processes of a fleet. Each function makes one and heals it when its time is over."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from loadline.errors import LoadlineError
from loadline.rig.clusters import Cluster
from loadline.rig.server_processes import Server
from tools.process_chaos.checks import Observer
from tools.process_chaos.engines import MODEL
from tools.process_chaos.fleet import ChaosFleet, Program, commands
from tools.process_chaos.proxy import State

Inject = Callable[[ChaosFleet, Observer, float, Random], Awaitable[None]]


_STEP_S: Final = 3_600
_STOPPED_TOO: Final = 0.5
_CHILDREN: Final = {b"loadline.adapters.forecast_child", b"loadline.adapters.solver_child"}
_ENGINE: Final = b"loadline.demo.openai.server"
_GARBAGE: Final = b"\x00\x00\x00\x05{\xff]]}HTTP/1.1 500"
_Member = TypeVar("_Member", bound=Server)


async def inject(kind: str, fleet: ChaosFleet, observer: Observer, for_s: float, rng: Random) -> None:
    """Make a fault, and heal it after ``for_s``."""
    await FAULTS[kind](fleet, observer, for_s, rng)


def _kill_server(cluster_of: Callable[[ChaosFleet], Cluster[_Member]]) -> Inject:
    async def kill(fleet: ChaosFleet, _observer: Observer, for_s: float, rng: Random) -> None:
        cluster = cluster_of(fleet)
        server = rng.choice(cluster.members)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(for_s)
        async with cluster.restarting:
            if not server.alive:  # another fault may have started it
                await server.start_async()

    return kill


def _freeze_server(cluster_of: Callable[[ChaosFleet], Cluster[_Member]]) -> Inject:
    async def freeze(fleet: ChaosFleet, _observer: Observer, for_s: float, rng: Random) -> None:
        cluster = cluster_of(fleet)
        server = rng.choice(cluster.members)
        server.pause()
        try:
            await asyncio.sleep(for_s)
        finally:
            server.resume()

    return freeze


async def _compact(fleet: ChaosFleet, _observer: Observer, _for_s: float, _rng: Random) -> None:
    await fleet.operator.compact()


async def _move_etcd_leader(fleet: ChaosFleet, _observer: Observer, _for_s: float, rng: Random) -> None:
    await fleet.operator.move_leader(rng)


async def _fill_etcd(fleet: ChaosFleet, _observer: Observer, for_s: float, _rng: Random) -> None:
    await fleet.operator.fill()
    await asyncio.sleep(for_s)
    await fleet.operator.make_space()


async def _wipe_etcd(fleet: ChaosFleet, observer: Observer, _for_s: float, _rng: Random) -> None:
    with observer.committed.losing_data():
        await fleet.operator.wipe()


async def _restore_etcd(fleet: ChaosFleet, observer: Observer, for_s: float, _rng: Random) -> None:
    """Return etcd to the state that it had ``for_s`` ago."""
    snapshot = fleet.directory / "etcd-snapshot"
    if await fleet.operator.back_up(snapshot):
        await asyncio.sleep(for_s)
        with observer.committed.losing_data():
            await fleet.operator.restore(snapshot)


async def _fill_journal_disk(fleet: ChaosFleet, _observer: Observer, for_s: float, _rng: Random) -> None:
    if fleet.journal_disk.mounted:
        await fleet.journal_disk.fill(for_s)
    else:
        fleet.write_line("fill_journal_disk is skipped: mounting a small disk is not allowed here")


async def _step_clock(fleet: ChaosFleet, _observer: Observer, for_s: float, rng: Random) -> None:
    """Set the wall clock of one agent; half of the times it is stopped too, and comes back under that clock."""
    name = rng.choice(sorted(fleet.agents))
    fleet.clocks[name].step(rng.choice((-_STEP_S, _STEP_S)))
    try:
        if rng.random() < _STOPPED_TOO:
            fleet.agents[name].send(signal.SIGTERM)
        await asyncio.sleep(for_s)
    finally:
        fleet.clocks[name].step(0)


def _signal_agent(number: signal.Signals, *, leads: bool) -> Inject:
    async def send(fleet: ChaosFleet, observer: Observer, for_s: float, _rng: Random) -> None:
        agent = _agent(fleet, observer, leads=leads)
        agent.send(number)
        if number is signal.SIGSTOP:
            try:
                await asyncio.sleep(for_s)
            finally:
                agent.send(signal.SIGCONT)

    return send


async def _revoke_leader(fleet: ChaosFleet, observer: Observer, _for_s: float, _rng: Random) -> None:
    await _revoke(fleet, observer.leader_key)


async def _revoke_worker(fleet: ChaosFleet, _observer: Observer, _for_s: float, rng: Random) -> None:
    workers = await _workers(fleet)
    if workers:
        await _revoke(fleet, rng.choice(workers))


def _proxied(server: str, state: State) -> Inject:
    async def disturb(fleet: ChaosFleet, observer: Observer, for_s: float, _rng: Random) -> None:
        proxies = fleet.proxies[_agent(fleet, observer, leads=True).name, server]
        for proxy in proxies:
            proxy.set_state(state)
        try:
            await asyncio.sleep(for_s)
        finally:
            for proxy in proxies:
                proxy.set_state("open")

    return disturb


def _disturb_child(disturb: Callable[[int, float], Awaitable[None]]) -> Inject:
    async def find(fleet: ChaosFleet, observer: Observer, for_s: float, rng: Random) -> None:
        pid = _child_of(_agent(fleet, observer, leads=True), rng)
        if pid:
            with suppress(OSError):  # it has ended meanwhile
                await disturb(pid, for_s)
        else:
            fleet.write_line("the leader has no child process now")

    return find


async def _kill(pid: int, _for_s: float) -> None:
    os.kill(pid, signal.SIGKILL)


async def _freeze(pid: int, for_s: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(for_s)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _garble(pid: int, _for_s: float) -> None:
    """Write into the pipe of its answers what is no answer."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():  # noqa: ASYNC240 - no disk
        if str(descriptor.readlink()).startswith("pipe:") and _is_writable(pid, descriptor.name):
            with descriptor.open("wb", buffering=0) as answers:
                answers.write(_GARBAGE)


def _is_writable(pid: int, descriptor: str) -> bool:
    lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="utf-8").splitlines()
    flags = next(int(line.removeprefix("flags:"), 8) for line in lines if line.startswith("flags:"))
    return flags & os.O_ACCMODE == os.O_WRONLY


async def _change_version(fleet: ChaosFleet, _observer: Observer, for_s: float, rng: Random) -> None:
    """Upgrade or downgrade one agent, and roll back."""
    name = rng.choice(sorted(fleet.agents))
    fleet.change_version(name, to_other=True)
    try:
        await asyncio.sleep(for_s)
    finally:
        fleet.change_version(name, to_other=False)


async def _reload_agents(fleet: ChaosFleet, _observer: Observer, _for_s: float, rng: Random) -> None:
    version = rng.randrange(1_000)
    for name in fleet.clocks:
        fleet.configure(name, version)


async def _kill_scaler(fleet: ChaosFleet, _observer: Observer, _for_s: float, _rng: Random) -> None:
    fleet.scaler.send(signal.SIGKILL)


def _signal_worker(number: signal.Signals) -> Inject:
    async def send(fleet: ChaosFleet, observer: Observer, for_s: float, rng: Random) -> None:
        workers = [key.rsplit("/", 1)[1] for key in await _workers(fleet) if f"/{MODEL}/" not in key]
        name = rng.choice(workers) if workers else ""
        pid = fleet.worker_processes().get(name)
        if pid is None:
            return
        if number is signal.SIGKILL:
            observer.killed.add(name)
        await _send(pid, number, for_s)

    return send


def _signal_served(number: signal.Signals, *, sidecar: bool) -> Inject:
    """Send a signal to an engine or to its sidecar, whose command ends with that of the engine."""

    async def send(fleet: ChaosFleet, _observer: Observer, for_s: float, rng: Random) -> None:
        own = str(fleet.directory).encode()
        found = [(pid, words) for pid, words in commands() if _ENGINE in words]
        sidecars = [pid for pid, words in found if b"sidecar" in words and any(word.startswith(own) for word in words)]
        pids = sidecars if sidecar else [pid for pid, _ in found if _parent_of(pid) in sidecars]
        if pids:
            await _send(rng.choice(sorted(pids)), number, for_s)
        else:
            fleet.write_line("no engine runs now")

    return send


async def _send(pid: int, number: signal.Signals, for_s: float) -> None:
    """Send a signal; after SIGSTOP let the process go on after ``for_s``."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    if number is signal.SIGSTOP:
        try:
            await asyncio.sleep(for_s)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


FAULTS: Final[dict[str, Inject]] = {
    "kill_nats": _kill_server(lambda fleet: fleet.nats),
    "freeze_nats": _freeze_server(lambda fleet: fleet.nats),
    "kill_etcd": _kill_server(lambda fleet: fleet.etcd),
    "freeze_etcd": _freeze_server(lambda fleet: fleet.etcd),
    "compact_etcd": _compact,
    "move_etcd_leader": _move_etcd_leader,
    "fill_etcd": _fill_etcd,
    "wipe_etcd": _wipe_etcd,
    "restore_etcd": _restore_etcd,
    "fill_journal_disk": _fill_journal_disk,
    "step_clock": _step_clock,
    "kill_leader": _signal_agent(signal.SIGKILL, leads=True),
    "stop_leader": _signal_agent(signal.SIGTERM, leads=True),
    "freeze_leader": _signal_agent(signal.SIGSTOP, leads=True),
    "kill_standby": _signal_agent(signal.SIGKILL, leads=False),
    "revoke_leader": _revoke_leader,
    "cut_leader_nats": _proxied("nats-server", "cut"),
    "cut_leader_etcd": _proxied("etcd", "cut"),
    "freeze_leader_etcd": _proxied("etcd", "frozen"),
    "slow_leader_etcd": _proxied("etcd", "slow"),
    "change_version": _change_version,
    "reload_agents": _reload_agents,
    "kill_child": _disturb_child(_kill),
    "freeze_child": _disturb_child(_freeze),
    "garble_child": _disturb_child(_garble),
    "kill_scaler": _kill_scaler,
    "kill_worker": _signal_worker(signal.SIGKILL),
    "freeze_worker": _signal_worker(signal.SIGSTOP),
    "revoke_worker": _revoke_worker,
    "kill_engine": _signal_served(signal.SIGKILL, sidecar=False),
    "freeze_engine": _signal_served(signal.SIGSTOP, sidecar=False),
    "kill_sidecar": _signal_served(signal.SIGKILL, sidecar=True),
    "freeze_sidecar": _signal_served(signal.SIGSTOP, sidecar=True),
}


def _agent(fleet: ChaosFleet, observer: Observer, *, leads: bool) -> Program:
    """Return the leader, or a standby; without a leader, or if the steady agent leads, one counts as the leader."""
    names = sorted(fleet.agents)
    leader = observer.last_leader if observer.last_leader in names else names[0]
    return fleet.agents[leader if leads else next(name for name in names if name != leader)]


async def _revoke(fleet: ChaosFleet, key: str) -> None:
    """Revoke the lease of a key, as an operator may."""
    store = fleet.open_store()
    try:
        with suppress(LoadlineError):
            entry = await store.get(key)
            if entry is not None:
                await store.revoke(entry.lease_id)
    finally:
        await store.close()


async def _workers(fleet: ChaosFleet) -> list[str]:
    """Return the keys of all workers."""
    store = fleet.open_store()
    try:
        return [entry.key for entry in (await store.read(fleet.keys.workers)).entries]
    except LoadlineError:
        return []
    finally:
        await store.close()


def _child_of(agent: Program, rng: Random) -> int:
    """Return the process id of a forecast or solver child of an agent; 0 if it has none."""
    children = [pid for pid, words in commands() if _CHILDREN & set(words) and _parent_of(pid) == agent.pid]
    return rng.choice(sorted(children)) if children else 0


def _parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return 0
