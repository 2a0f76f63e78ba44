"""Migrations over real nats-server and etcd: phases, refusals, deadlines, repeats and a killed source."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.config import EtcdKnobs
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.errors import BusUnavailable
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply
from tests.support.migrating_worker import BlockingEngine, migrating_worker
from tests.support.migration_leader import MigrationLeader, leader_at
from tests.waiting import until, until_async

pytestmark = pytest.mark.process


async def registered(etcd_url: str, root: str, worker: str) -> bool:
    store = EtcdStore(EtcdKnobs(endpoints=(etcd_url,)))
    try:
        return bool((await store.read(Keys(root).worker("m", "p", worker))).entries)
    finally:
        await store.close()


async def leaves_the_registry(etcd_url: str, root: str, worker: str) -> None:
    async def left() -> bool:
        return not await registered(etcd_url, root, worker)

    await until_async(left, f"{worker} is out of the routers' sight")


@asynccontextmanager
async def two_at(
    nats_url: str, etcd_url: str, root: str, *, slots_in: int = 4
) -> AsyncIterator[tuple[MigrationLeader, BlockingEngine, BlockingEngine]]:
    """Run a leader and the workers ``a`` and ``b``, of which ``b`` has ``slots_in`` slots."""
    async with (
        leader_at(nats_url, root) as leader,
        migrating_worker(nats_url, etcd_url, root, "a") as a,
        migrating_worker(nats_url, etcd_url, root, "b", slots_in=slots_in) as b,
    ):
        await until(lambda: len(leader.loads) == 2, "both report")
        yield leader, a, b


def test_a_migration_from_command_to_end(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with two_at(nats_url, etcd_url, own_name) as (leader, a, b):
            reply = await leader.migrate("a", "b")
            assert (reply.accepted, reply.requests, reply.tokens) == (True, 2, 210)
            await until(lambda: leader.phases().count("copying") == 2, "copying")
            await until(lambda: leader.sample("a").migration_slots_out == 2, "two are going")
            await until(lambda: leader.sample("b").migration_slots_in == 2, "two are coming")
            a.copied.set()
            await until(lambda: "done" in leader.phases(), "done")
            assert set(b.held) == {"a-0", "a-1", "b-0", "b-1"}
            assert a.held == {}
            assert await leader.migrate("a", "b") == reply, "the report is repeated"
            await until(lambda: leader.phases().count("done") == 3, "the end is said three times")
            done = leader.reports[-1]
            assert (done.requests, done.moved, done.tokens, done.trigger) == (2, 2, 210, "decode_load")
            assert leader.phases().count("switched") == 2, "the repeated command started no migration"
            await until(lambda: leader.sample("b").migration_slots_in == 4, "the slots are free again")

    asyncio.run(scenario())


def test_a_destination_without_room_refuses(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with two_at(nats_url, etcd_url, own_name, slots_in=1) as (leader, a, b):
            a.copied.set()
            assert (await leader.migrate("a", "b")).requests == 2
            await until(lambda: "done" in leader.phases(), "one was moved")
            done = leader.reports[-1]
            assert (done.moved, done.failed, done.reason) == (1, 1, "destination_refused")
            assert len(a.held) == 1
            assert len(b.held) == 3

    asyncio.run(scenario())


def test_a_missing_destination_fails_without_loss(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with two_at(nats_url, etcd_url, own_name) as (leader, a, _):
            await leader.migrate("a", "nobody")
            await until(lambda: "aborted" in leader.phases(), "aborted")
            assert leader.reports[-1].reason == "destination_lost"
            assert len(a.held) == 2
            assert (await leader.migrate("a", "b", command_id="d")).requests == 2, (
                "the requests can migrate to another worker"
            )

    asyncio.run(scenario())


def test_a_copy_that_hangs_is_withdrawn_at_the_deadline(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with two_at(nats_url, etcd_url, own_name) as (leader, a, b):
            assert (await leader.migrate("a", "b", ttl_ms=3_000)).accepted
            await until(lambda: "aborted" in leader.phases(), "aborted")
            assert leader.reports[-1].reason == "deadline"
            assert sorted(a.withdrawn) == sorted(a.held) == ["a-0", "a-1"]
            assert set(b.held) == {"b-0", "b-1"}
            await until(lambda: leader.sample("b").migration_slots_in == 4, "the destination was told")

    asyncio.run(scenario())


def test_a_draining_worker_is_evacuated(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with two_at(nats_url, etcd_url, own_name) as (leader, a, _):
            drain = DrainCommand("d", "m", "p", "a", "decode", 1, 1, 60_000)
            reply = await leader.bus.request(leader.subjects.drain("m", "p", "a"), encode(drain), 5)
            assert msgspec.json.decode(reply, type=DrainReply).accepted
            await leaves_the_registry(etcd_url, own_name, "a")
            await until(lambda: leader.sample("a").migration_slots_out == 2, "all it has")
            assert leader.sample("a").migration_slots_in == 0
            a.copied.set()
            assert (await leader.migrate("a", "b", trigger="drain")).requests == 2
            await until(lambda: "a" in leader.drained, "drained")
            refused = await leader.migrate("b", "a", command_id="back")
            assert refused.accepted
            await until(lambda: leader.phases("back")[-1:] == ["aborted"], "who drains takes nothing in")

    asyncio.run(scenario())


def test_a_source_killed_while_it_copies_stops_reporting(nats_url: str, etcd_url: str, own_name: str) -> None:
    command = [sys.executable, "-m", "tests.support.migrating_worker", nats_url, etcd_url, own_name, "a"]

    async def scenario() -> None:
        async with (
            leader_at(nats_url, own_name) as leader,
            migrating_worker(nats_url, etcd_url, own_name, "b") as b,
        ):
            process = await asyncio.create_subprocess_exec(*command)
            try:
                await until(lambda: len(leader.loads) == 2, "both report")
                assert (await leader.migrate("a", "b")).accepted
                await until(lambda: leader.phases().count("copying") == 2, "copying")
            finally:
                process.kill()
                await process.wait()

            await leaves_the_registry(etcd_url, own_name, "a")
            assert leader.phases() == ["admitted", "copying"] * 2
            assert set(b.held) == {"b-0", "b-1"}, "the destination never had the requests"
            with pytest.raises(BusUnavailable):
                await leader.migrate("a", "b", command_id="d")
            async with migrating_worker(nats_url, etcd_url, own_name, "a", incarnation=2):
                reply = await leader.migrate("a", "b", command_id="d", source=MigrationEndpoint("p", "a", 1))
                assert (reply.accepted, reply.reason) == (False, "gone")

    asyncio.run(scenario())
