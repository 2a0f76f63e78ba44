"""Clients with real NATS and etcd servers, in normal operation and when a server is killed."""

import asyncio
import shutil
import time
from collections.abc import Callable

import pytest

from loadline.client.frontend import FrontendClient
from loadline.client.scaler import ScalerClient
from loadline.config import NatsKnobs
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.core.vocabulary.events import WorkerDrained
from loadline.core.vocabulary.scalars import Role
from loadline.errors import BusUnavailable
from loadline.rig.server_processes import EtcdServer, NatsServer
from tests.support.client_rig import Agent, Engine, agent_at, worker_at
from tests.support.decisions import decision
from tests.waiting import until, until_async

pytestmark = pytest.mark.process


def test_a_worker_registers_stays_registered_reports_and_leaves(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with agent_at(nats_url, etcd_url, own_name) as agent:
            async with worker_at(nats_url, etcd_url, own_name, Engine()) as worker:
                await agent.state_becomes("starting")
                await worker.ready()
                await agent.state_becomes("ready")
                first = await agent.entry()
                # After two TTLs the key exists only if the lease was kept alive.
                later_s = time.monotonic() + 4.5
                await until(lambda: time.monotonic() > later_s, "two TTLs")
                assert await agent.entry() == first
                await agent.receives_load()
                numbers = [sample.sequence for report in agent.loads for sample in report.samples]
                assert numbers == sorted(set(numbers))
            await agent.state_becomes(None)

    asyncio.run(scenario())


def test_a_worker_whose_lease_was_revoked_registers_again(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with (
            agent_at(nats_url, etcd_url, own_name) as agent,
            worker_at(nats_url, etcd_url, own_name, Engine()) as worker,
        ):
            await worker.ready()
            await agent.state_becomes("ready")
            before = await agent.entry()
            assert before is not None
            await agent.store.revoke(before.lease_id)
            await agent.state_becomes("ready")
            after = await agent.entry()
            assert after is not None
            assert after.lease_id != before.lease_id

    asyncio.run(scenario())


@pytest.mark.parametrize(("role", "state_while_draining"), [("decode", None), ("prefill", "draining")])
def test_a_drained_worker_reports_and_deregisters(
    nats_url: str, etcd_url: str, own_name: str, role: Role, state_while_draining: str | None
) -> None:
    async def scenario() -> None:
        engine = Engine()
        async with (
            agent_at(nats_url, etcd_url, own_name) as agent,
            worker_at(nats_url, etcd_url, own_name, engine, role) as worker,
            ScalerClient("s", ["m"], nats=NatsKnobs(servers=(nats_url,)), root=own_name) as scaler,
        ):
            await worker.ready()
            await agent.state_becomes("ready")
            assert not (await agent.drain(role, incarnation=0)).accepted
            assert (await agent.drain(role)).accepted
            assert (await agent.drain(role)).accepted
            await agent.state_becomes(state_while_draining)
            await agent.receives_load()
            assert agent.drained == []
            engine.empty.set()
            assert await scaler.wait_drained("m", "p", "w", 30, incarnation=1)
            await worker.drained.wait()
            await agent.state_becomes(None)
            # The report is repeated, since messages may be lost.
            await until(lambda: len(agent.drained) > 1, "the report is repeated")
            assert set(agent.drained) == {WorkerDrained("m", "p", "w", 1)}

    asyncio.run(scenario())


def test_a_worker_survives_a_restart_of_nats(
    etcd_url: str, own_name: str, private_nats: Callable[[], NatsServer]
) -> None:
    nats = private_nats()

    async def scenario() -> None:
        async with (
            agent_at(nats.url, etcd_url, own_name) as agent,
            worker_at(nats.url, etcd_url, own_name, Engine()) as worker,
        ):
            await worker.ready()
            await agent.state_becomes("ready")
            await agent.receives_load()
            nats.kill()
            await until(lambda: not agent.bus.connected, "NATS is unreachable")
            before = await agent.entry()
            assert not await worker.report_now()
            missed = worker._incarnation_state.sequence
            await nats.start_async()
            await agent.receives_load()
            # Reports of the outage are dropped, not sent late.
            late = [sample.sequence for report in agent.loads for sample in report.samples]
            assert missed not in late
            assert await agent.entry() == before, "the registration does not depend on NATS"

            async def drains() -> bool:
                try:
                    return (await agent.drain("decode")).accepted
                except BusUnavailable:
                    return False

            await until_async(drains, "commands are accepted again")

    asyncio.run(scenario())


def test_a_worker_survives_a_restart_of_etcd(
    nats_url: str, own_name: str, private_etcd: Callable[[], EtcdServer]
) -> None:
    etcd = private_etcd()

    async def scenario() -> None:
        async with (
            agent_at(nats_url, etcd.url, own_name) as agent,
            worker_at(nats_url, etcd.url, own_name, Engine()) as worker,
        ):
            await worker.ready()
            await agent.state_becomes("ready")
            etcd.kill()
            await agent.receives_load()
            # The TTL is 2 s. etcd restarts without data, so it has lost the lease and the key.
            gone_s = time.monotonic() + 2.5
            await until(lambda: time.monotonic() > gone_s, "longer than the TTL")
            await asyncio.to_thread(shutil.rmtree, etcd.directory / "data")
            await etcd.start_async()
            await agent.state_becomes("ready")

    asyncio.run(scenario())


def test_a_worker_starts_before_its_servers(
    own_name: str, private_nats: Callable[[], NatsServer], private_etcd: Callable[[], EtcdServer]
) -> None:
    nats, etcd = private_nats(), private_etcd()
    nats.kill()
    etcd.kill()

    async def scenario() -> None:
        async with worker_at(nats.url, etcd.url, own_name, Engine()) as worker:
            await worker.ready()
            await nats.start_async()
            await etcd.start_async()
            async with agent_at(nats.url, etcd.url, own_name) as agent:
                await agent.state_becomes("ready")
                await agent.receives_load()

    asyncio.run(scenario())


def test_a_frontend_survives_a_restart_of_nats(
    etcd_url: str, own_name: str, private_nats: Callable[[], NatsServer]
) -> None:
    nats = private_nats()

    async def scenario() -> None:
        knobs = NatsKnobs(servers=(nats.url,))
        async with (
            agent_at(nats.url, etcd_url, own_name) as agent,
            FrontendClient("m", "f", nats=knobs, root=own_name, interval_ms=50) as frontend,
        ):
            await until(lambda: agent.traffic, "zeros of an idle frontend")
            frontend.arrived(100)
            frontend.finished(10, 200.0, 20.0)
            await until(lambda: any(report.sample.arrivals for report in agent.traffic), "an arrival")
            nats.kill()
            await until(lambda: not agent.bus.connected, "NATS is unreachable")
            frontend.arrived(7)
            assert not await frontend.report_now()
            await nats.start_async()
            reports_before = len(agent.traffic)
            await until(lambda: len(agent.traffic) > reports_before, "reports again")
            assert sum(report.sample.arrivals for report in agent.traffic) == 1

    asyncio.run(scenario())


def test_a_scaler_that_starts_late_and_loses_nats_misses_no_decision(
    etcd_url: str, own_name: str, private_nats: Callable[[], NatsServer]
) -> None:
    nats = private_nats()

    async def announce(agent: Agent, sequence: int) -> None:
        """Announce decisions repeatedly until they are applied, as agents do, with outdated ones between."""
        while True:
            try:
                await agent.announce(decision(2, sequence, PoolTarget("p", "decode", sequence, 0)))
                await agent.announce(decision(1, 99))
            except BusUnavailable:
                pass
            await asyncio.sleep(0.05)

    def statuses(agent: Agent, sequence: int) -> list[str]:
        return [a.status for a in agent.answers if (a.epoch, a.sequence) == (2, sequence)]

    async def scenario() -> None:
        async with agent_at(nats.url, etcd_url, own_name) as agent:
            announcing = asyncio.create_task(announce(agent, 1))
            async with ScalerClient("s", ["m"], nats=NatsKnobs(servers=(nats.url,)), root=own_name) as scaler:
                # The first decision received may be the outdated one, of epoch 1; then the newer one follows.
                order = await anext(scaler)
                while order.decision.epoch == 1:
                    order = await anext(scaler)
                assert order.targets["p"].replicas == 1
                await scaler.accept(order)
                await until(lambda: statuses(agent, 1).count("accepted") >= 3, "a repetition is answered again")
                await until(
                    lambda: any(a.epoch == 1 and a.status == "refused" for a in agent.answers), "the old one is refused"
                )
                nats.kill()
                await until(lambda: not agent.bus.connected, "NATS is unreachable")
                await scaler.complete(order, {"p": 1})
                announcing.cancel()
                assert "done" not in statuses(agent, 1)
                announcing = asyncio.create_task(announce(agent, 1))
                await nats.start_async()
                await until(lambda: "done" in statuses(agent, 1), "the answer that was lost")
                announcing.cancel()
                announcing = asyncio.create_task(announce(agent, 2))
                assert (await anext(scaler)).decision.sequence == 2
            announcing.cancel()

    asyncio.run(scenario())
