"""Agents as processes with real NATS and etcd servers: decisions, takeovers and outages."""

import asyncio
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.config import EtcdKnobs
from loadline.errors import BusUnavailable
from loadline.ports import Write
from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.keys import Keys
from tests.support.agents import LEASE_TTL_S, MODEL, MODELS, AgentFleet, assert_replays, config, fleet, loadline
from tests.waiting import SCENARIO_S, until, until_true

pytestmark = pytest.mark.process

Scenario = Callable[[AgentFleet], Awaitable[None]]


def start(rig: Rig, name: str = "a", *, lease_ttl_s: int = LEASE_TTL_S) -> ChildAgent:
    agent = rig.agent(config(rig, name, lease_ttl_s=lease_ttl_s), name)
    agent.wait_ready()
    return agent


def run_scenario(rig: Rig, scenario: Scenario) -> None:
    async def run() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet:
            await scenario(agent_fleet)

    asyncio.run(run())


async def scale_up(agent_fleet: AgentFleet, replicas: int) -> None:
    """Make the load high and wait until the leader has decided on this number of decode workers."""
    agent_fleet.load(kv=0.97, waiting=0)
    await until(lambda: agent_fleet.observer.desired().get("decode", 0) >= replicas)


def test_decisions_are_explained_and_replayed(rig: Rig) -> None:
    agent = start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        await scale_up(agent_fleet, 3)
        decision = agent_fleet.observer.announced[-1]
        assert 0 < decision.ttl_ms <= decision.expires_at_ms - decision.issued_at_ms
        explained = await asyncio.to_thread(loadline, rig, "explain", decision.decision_id)
        assert explained.returncode == 0, explained.stderr
        assert "mean KV load" in explained.stdout
        assert "decode 2 -> 3" in explained.stdout

    run_scenario(rig, scenario)
    assert agent.stop() == 0
    assert_replays(rig, "a")


def test_a_scale_down_drains_a_worker_until_it_reports_drained(rig: Rig) -> None:
    start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.accept_decisions()
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        agent_fleet.load(kv=0.1)
        agent_fleet.workers["d1"].kv = 0.2
        await until(lambda: agent_fleet.workers["d2"].drain is not None)
        decision = agent_fleet.observer.committed[-1]
        assert [v.worker for t in decision.targets for v in t.victims] == ["d2"], (
            "the worker with the least work is drained"
        )
        await until(lambda: "d2" not in agent_fleet.ready())
        agent_fleet.workers["d2"].may_leave.set()
        await agent_fleet.workers["d2"].client.drained.wait()

    run_scenario(rig, scenario)


def test_a_standby_takes_over_from_a_killed_leader(rig: Rig) -> None:
    first = start(rig, "a")
    first.wait_leading()
    second = start(rig, "b")

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        await scale_up(agent_fleet, 3)
        epoch = agent_fleet.observer.committed[-1].epoch
        first.kill()
        del agent_fleet.observer.statuses["a"]
        await until(lambda: agent_fleet.observer.leader() is not None)
        open_decision = agent_fleet.observer.committed[-1].decision_id
        await until(lambda: agent_fleet.observer.announced[-1].decision_id == open_decision)
        await agent_fleet.add("decode", "d3")
        await scale_up(agent_fleet, 4)
        assert agent_fleet.observer.committed[-1].epoch > epoch

    run_scenario(rig, scenario)
    assert second.stop() == 0
    assert_replays(rig, "a")
    assert_replays(rig, "b")


def test_sigterm_releases_leadership_at_once(rig: Rig) -> None:
    lease_ttl_s = 60
    first = start(rig, "a", lease_ttl_s=lease_ttl_s)
    first.wait_leading()
    start(rig, "b", lease_ttl_s=lease_ttl_s)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1")
        assert await asyncio.to_thread(first.stop) == 0
        del agent_fleet.observer.statuses["a"]
        await until(lambda: agent_fleet.observer.leader() is not None, deadline_s=lease_ttl_s / 2)

    run_scenario(rig, scenario)


def test_sigterm_ends_an_agent_to_which_reports_never_stop(rig: Rig) -> None:
    agent = start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1")
        stopping = asyncio.create_task(asyncio.to_thread(agent.stop))
        while not stopping.done():
            for _ in range(100):
                await publish(agent_fleet, "loadline.v1.load.m.decode.d1", b"{}")
            await asyncio.sleep(0.001)
        assert await stopping == 0

    run_scenario(rig, scenario)
    assert "shutdown_incomplete" not in agent.log.read_text()


def test_a_leader_that_was_frozen_steps_down_and_commits_nothing(rig: Rig) -> None:
    first = start(rig, "a")
    first.wait_leading()
    start(rig, "b")

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        first.process.send_signal(signal.SIGSTOP)
        try:
            del agent_fleet.observer.statuses["a"]
            await until(lambda: agent_fleet.observer.leader() is not None)
            await scale_up(agent_fleet, 3)
        finally:
            first.process.send_signal(signal.SIGCONT)
        await until(lambda: "a" in agent_fleet.observer.statuses and not agent_fleet.observer.statuses["a"].leading)
        assert len({d.epoch for d in agent_fleet.observer.committed}) <= 2
        assert first.stop() == 0

    run_scenario(rig, scenario)
    assert_replays(rig, "a")


def test_agents_survive_a_restart_of_nats(rig: Rig) -> None:
    agent = start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        before = agent_fleet.observer.desired()
        rig.nats.kill()
        await until(lambda: "NATS is not connected" in agent.get("/readyz")[1])
        assert agent.get("/healthz")[0] == 200
        agent_fleet.load(kv=0.01)  # no agent receives it, and missing reports must not cause a scale-down
        rig.nats.start()
        await until(lambda: agent.get("/readyz")[0] == 200)
        assert all(agent_fleet.observer.desired()[pool] >= count for pool, count in before.items())
        agent_fleet.load(kv=0.7)
        await until(lambda: agent_fleet.ready() == {"d1", "d2", "p1"})
        await scale_up(agent_fleet, 3)

    run_scenario(rig, scenario)
    assert agent.stop() == 0
    assert_replays(rig, "a")


@pytest.mark.parametrize("frozen", [False, True])
def test_agents_survive_a_killed_and_a_frozen_etcd(rig: Rig, frozen: bool) -> None:  # noqa: FBT001
    agent = start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        await scale_up(agent_fleet, 3)
        agent_fleet.load(kv=0.7)
        await agent_fleet.add("decode", "d3")
        known = len(agent_fleet.observer.committed)
        if frozen:
            rig.etcd.pause()
        else:
            rig.etcd.kill()
        await until(lambda: "etcd is not connected" in agent.get("/readyz")[1])
        await until(lambda: not agent_fleet.observer.statuses["a"].leading)
        agent_fleet.load(kv=0.97)
        began_ms = agent_fleet.observer.statuses["a"].at_ms
        await until(lambda: agent_fleet.observer.statuses["a"].at_ms > began_ms + 2_000)  # four adjustment intervals
        outage = agent_fleet.observer.statuses["a"]
        assert outage.models[0].pools[0].kv_usage_ratio > 0.9, "the agent knows the load"
        assert outage.models[0].pools[0].desired == 3
        if frozen:
            rig.etcd.resume()
        else:
            rig.etcd.start()
        await scale_up(agent_fleet, 4)
        await until(lambda: len(agent_fleet.observer.committed) > known)
        assert all(decision.issued_at_ms > outage.at_ms for decision in agent_fleet.observer.committed[known:])

    run_scenario(rig, scenario)
    assert agent.stop() == 0
    assert_replays(rig, "a")


WORKER = """
import asyncio, sys
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample

async def main(nats, etcd):
    record = WorkerRecord("m", "decode", "victim", "decode", incarnation=1)
    sample = WorkerSample(0, 0, kv_usage_ratio=0.97, waiting_requests=0, running_requests=1)
    nats, etcd = NatsKnobs(servers=(nats,)), EtcdKnobs(endpoints=(etcd,))
    worker = WorkerClient(record, nats=nats, etcd=etcd, sample=lambda: sample, on_drain=None, lease_ttl_s=2)
    async with worker:
        await worker.ready()
        await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_worker_that_dies_is_replaced(rig: Rig) -> None:
    start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1")
        await agent_fleet.add("prefill", "p1")
        await until(lambda: "victim" in agent_fleet.ready())
        await scale_up(agent_fleet, 3)
        agent_fleet.load(kv=0.7)
        victim.kill()
        await until(lambda: "victim" not in agent_fleet.ready())
        await until(lambda: "victim" not in agent_fleet.registered())
        assert agent_fleet.observer.desired()["decode"] == 3

    with subprocess.Popen([sys.executable, "-c", WORKER, rig.nats.url, rig.etcd.url]) as victim:
        try:
            run_scenario(rig, scenario)
        finally:
            victim.kill()


def test_arbitrary_frames_are_counted_and_dropped(rig: Rig) -> None:
    agent = start(rig)
    dice = random.Random(7)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1")
        good = msgspec.json.encode({"model": "m", "pool": "decode", "worker": "d1", "incarnation": 1, "samples": []})
        before = memory_kib(agent)
        for number in range(20_000):
            kind = dice.choice(("load", "traffic", "applied", "drained", "nonsense"))
            subject = f"loadline.v1.{kind}.m.decode.w{number}"
            body = dice.choice((dice.randbytes(dice.randrange(300)), good, b"[" * 2000, b'{"model":1e999}', b""))
            await publish(agent_fleet, subject, body)
        await publish(agent_fleet, "loadline.v1.load.m.decode.d1", b"x" * 300_000)
        await until(lambda: "oversized" in agent.get("/metrics")[1])
        assert agent.get("/healthz")[0] == 200
        assert memory_kib(agent) - before < 32 * 1024
        await scale_up(agent_fleet, 2)

    run_scenario(rig, scenario)
    assert agent.log.read_text().count("\n") < 200, "logged at a bounded rate"


async def publish(agent_fleet: AgentFleet, subject: str, body: bytes) -> None:
    """Publish, and wait until the server has read everything."""
    while True:
        try:
            return await agent_fleet.bus.publish(subject, body)
        except BusUnavailable:
            await asyncio.sleep(0.01)


def memory_kib(agent: ChildAgent) -> int:
    status = Path(f"/proc/{agent.process.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def test_decisions_continue_if_the_journal_cannot_be_written(rig: Rig) -> None:
    (rig.directory / "journal-a").write_text("in the way")
    agent = start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await scale_up(agent_fleet, 3)

    run_scenario(rig, scenario)
    assert "loadline_journal_lost_total" in agent.get("/metrics")[1]
    assert agent.stop() == 0


def test_operators_pause_resume_and_drain(rig: Rig) -> None:
    agent = start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")

        async def run_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
            return await asyncio.to_thread(loadline, rig, *arguments)

        assert (await run_command("pause", "m")).returncode == 0
        await until(lambda: (status := agent_fleet.observer.leader()) is not None and status.models[0].paused)
        assert "paused" in (await run_command("status")).stdout
        assert (await run_command("resume", "m")).returncode == 0
        await until(lambda: (status := agent_fleet.observer.leader()) is not None and not status.models[0].paused)
        assert (await run_command("drain", "m", "decode", "d1")).returncode == 0
        await until(lambda: agent_fleet.workers["d1"].drain is not None)
        refused = await run_command("drain", "m", "decode", "nobody")
        assert refused.returncode == 1
        assert "nobody" in refused.stderr

    run_scenario(rig, scenario)
    assert agent.stop() == 0
    silent = loadline(rig, "status")
    assert silent.returncode == 1
    assert "no agent answers" in silent.stderr


def test_servers_that_never_answer_do_not_block_the_loop(rig: Rig) -> None:
    with ExitStack() as stack:
        holes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        servers = [f"nats://127.0.0.1:{hole.getsockname()[1]}" for hole in holes]
        agent = rig.agent(rig.config(MODELS, "a", nats={"servers": servers}), "a")
        # The failure of etcd is known, and the first connection attempt to NATS, which takes 14 s, is in progress.
        until_true(lambda: (said := agent.get("/readyz")[1]) != "" and "etcd" not in said and "registry" not in said)
        assert agent.get("/healthz")[0] == 200
        assert agent.stop() == 0
    assert "nats_unreachable" not in agent.log.read_text()


def test_an_invalid_worker_record_is_ignored(rig: Rig) -> None:
    agent = start(rig)

    async def scenario(agent_fleet: AgentFleet) -> None:
        await agent_fleet.add("decode", "d1")
        store, key = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,))), Keys("default").worker(MODEL, "decode", "d2")
        try:
            await store.commit([], [Write(key, b"{}")])
            await until(lambda: 'loadline_rejected_total{reason="invalid"}' in agent.get("/metrics")[1])
            await agent_fleet.add("decode", "d3")
            assert agent_fleet.registered() == {"d1", "d3"}
        finally:
            await store.close()

    run_scenario(rig, scenario)
    assert agent.stop() == 0
    assert_replays(rig, "a")


def test_an_agent_without_servers_waits_reports_it_and_stops_on_sigterm(rig: Rig) -> None:
    rig.nats.stop()
    rig.etcd.stop()
    agent = rig.agent(config(rig, "a"), "a")
    until_true(lambda: "NATS is not connected" in agent.get("/readyz")[1])
    assert "etcd is not connected" in agent.get("/readyz")[1]
    assert agent.stop() == 0
