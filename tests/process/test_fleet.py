"""Demo fleet as processes with real servers: no request is lost when workers or servers fail."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from loadline.core.vocabulary.scalars import Role
from loadline.rig.server_processes import EtcdServer, NatsServer
from tests.support.demo_fleet import REQUESTS, SPEED, TIMEOUT_S, DemoFleet, account, replay_has_begun
from tests.support.demo_load import load_on
from tests.waiting import until_true

pytestmark = pytest.mark.process


def test_all_requests_finish_and_all_processes_end(fleet: DemoFleet) -> None:
    workers = [fleet.worker(role, f"{role}-{i}") for role in ("prefill", "decode") for i in range(2)]
    summary = account(fleet, fleet.gateway())
    assert (summary["arrived"], summary["finished"], summary["lost"], summary["retried"]) == (REQUESTS, REQUESTS, 0, 0)
    # The profile's shortest prefill takes 32 ms and its shortest iteration 17.6 ms: these are virtual times.
    assert summary["ttft_p50_ms"] > 32.0
    assert 17.0 < summary["itl_p50_ms"] < 68.0
    fleet.stop()
    assert [worker.returncode for worker in workers] == [0] * 4


def test_aggregated_workers_serve_without_other_roles(fleet: DemoFleet) -> None:
    for i in range(2):
        fleet.worker("aggregated", f"w{i}")
    summary = account(fleet, fleet.gateway("--mode", "aggregated"))
    assert (summary["finished"], summary["lost"]) == (REQUESTS, 0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_requests_of_a_killed_worker_are_retried(fleet: DemoFleet, role: Role) -> None:
    victim = fleet.worker(role, "victim")
    for name in ("prefill", "decode"):
        fleet.worker(name, name)

    async def scenario() -> None:
        async with load_on(fleet, float(SPEED), per_s=6.0) as load:
            await fleet.wait_for_work("victim")
            victim.send_signal(signal.SIGSTOP)
            await fleet.wait_for_work("victim")  # which it never reports
            victim.kill()
            summary = await load.finish()
            assert (summary.finished, summary.lost) == (summary.arrived, 0)
            assert summary.retried > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_drained_worker_finishes_its_requests_and_leaves(fleet: DemoFleet, role: Role) -> None:
    leaving = fleet.worker(role, "leaving")
    for name in ("prefill", "decode"):
        fleet.worker(name, name)

    async def scenario() -> None:
        async with load_on(fleet, float(SPEED), per_s=6.0) as load:
            await fleet.wait_for_work("leaving")
            unrouted, report = await fleet.drain(role, "leaving")
            assert unrouted
            assert (report.drain_id, report.pool) == ("d1", role)
            summary = await load.finish()
            # It left after a drain, so no request was retried.
            assert (summary.finished, summary.lost, summary.retried) == (summary.arrived, 0, 0)

    asyncio.run(scenario())
    assert leaving.wait(TIMEOUT_S) == 0, fleet.log("leaving")
    assert '"drained": true, "held": 0' in fleet.log("leaving")
    assert not fleet.registered(role, "leaving")


def test_requests_wait_while_there_is_no_worker(fleet: DemoFleet) -> None:
    gateway = fleet.gateway()
    only = [fleet.worker("prefill", "prefill"), fleet.worker("decode", "decode")]
    until_true(lambda: replay_has_begun(fleet), deadline_s=TIMEOUT_S)
    for worker in only:
        worker.terminate()
    assert [worker.wait(TIMEOUT_S) for worker in only] == [0, 0]
    fleet.worker("prefill", "prefill-2")
    fleet.worker("decode", "decode-2")
    summary = account(fleet, gateway)
    assert (summary["finished"], summary["lost"]) == (REQUESTS, 0)


def test_restarts_of_servers_lose_no_request(
    tmp_path: Path, own_name: str, private_nats: Callable[[], NatsServer], private_etcd: Callable[[], EtcdServer]
) -> None:
    nats, etcd = private_nats(), private_etcd()
    fleet = DemoFleet(tmp_path, nats.url, etcd.url, own_name)
    try:
        for role in ("prefill", "decode"):
            fleet.worker(role, role)
        gateway = fleet.gateway()
        until_true(lambda: replay_has_begun(fleet), deadline_s=TIMEOUT_S)
        for server in (nats, etcd):
            server.kill()
            server.start()
        summary = account(fleet, gateway)
        assert (summary["arrived"], summary["finished"], summary["lost"]) == (REQUESTS, REQUESTS, 0)
    finally:
        fleet.stop()


def test_a_stopped_gateway_writes_its_summary(fleet: DemoFleet) -> None:
    for role in ("prefill", "decode"):
        fleet.worker(role, role)
    gateway = fleet.gateway("--repeat", "--requests-max", "0")
    until_true(lambda: replay_has_begun(fleet), deadline_s=TIMEOUT_S)
    gateway.terminate()
    summary = account(fleet, gateway)
    assert summary["arrived"] == summary["finished"] + summary["in_flight"] + summary["queued"]
