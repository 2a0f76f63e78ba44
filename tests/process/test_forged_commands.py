"""Forged commands of a high epoch to a worker on real servers: those of the leader are accepted again."""

import asyncio

import msgspec
import pytest

from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.errors import BusUnavailable
from loadline.ports import Write
from loadline.wire.codec import encode
from loadline.wire.keys import LEADER_SCOPE_ALL
from loadline.wire.messages import MigrateCommand, MigrateReply
from tests.support.client_rig import Agent, Engine, agent_at, worker_at
from tests.waiting import until_async

pytestmark = pytest.mark.process

HIGHEST = 2**53
"""Highest epoch that a command can have; those with more are no commands."""
LEADER = 1_767_225_500_000
FORMER = LEADER - 1


async def lead(agent: Agent) -> None:
    """Write the keys of a leader."""
    keys, lease = agent.keys, await agent.store.grant(60)
    term = [Write(keys.leader(LEADER_SCOPE_ALL), b"a", lease), Write(keys.epoch(LEADER_SCOPE_ALL), b"%d" % LEADER)]
    assert (await agent.store.commit([], term)).committed


async def migrate(agent: Agent, epoch: int, command_id: str) -> str | None:
    """Send a migrate command, and return the reason of its refusal."""
    source, destination = MigrationEndpoint("p", "w", 1), MigrationEndpoint("p", "v", 1)
    command = MigrateCommand(
        command_id, "m", epoch, source, destination, "decode_load", "NUM_REQ", "LR", 1.0, ttl_ms=10_000
    )
    reply = await agent.bus.request(agent.subjects.migrate("m", "p", "w"), encode(command), 5)
    return msgspec.json.decode(reply, type=MigrateReply).reason


def test_a_leader_drains_a_worker_despite_a_forged_command(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with agent_at(nats_url, etcd_url, own_name) as agent, worker_at(nats_url, etcd_url, own_name, Engine()):
            with pytest.raises(BusUnavailable):
                await agent.drain("decode", drain_id="forged", epoch=2**60)
            assert (await agent.drain("decode", drain_id="forged", epoch=HIGHEST)).accepted
            assert not (await agent.drain("decode", epoch=LEADER)).accepted
            await lead(agent)

            async def accepted() -> bool:
                return (await agent.drain("decode", epoch=LEADER)).accepted

            await until_async(accepted, "the leader's drain command")
            assert not (await agent.drain("decode", drain_id="former", epoch=FORMER)).accepted

    asyncio.run(scenario())


def test_a_leader_migrates_requests_despite_a_forged_command(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with agent_at(nats_url, etcd_url, own_name) as agent, worker_at(nats_url, etcd_url, own_name, Engine()):
            await lead(agent)
            assert await migrate(agent, HIGHEST, "forged") == "unsupported", "the engine has no migrations"
            attempts = 0

            async def understood() -> bool:
                nonlocal attempts
                attempts += 1
                return await migrate(agent, LEADER, f"{attempts}") == "unsupported"

            assert not await understood()
            await until_async(understood, "the leader's migrate command")
            assert await migrate(agent, FORMER, "former") == "stale_epoch"

    asyncio.run(scenario())
