"""Key of a worker in a real etcd that other clients remove or overwrite."""

import asyncio

import pytest

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import WorkerSuperseded
from loadline.ports import Write
from loadline.wire.codec import encode
from tests.support.client_rig import Engine, agent_at, worker_at

pytestmark = pytest.mark.process


def test_a_removed_worker_key_is_written_again_under_its_lease(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with (
            agent_at(nats_url, etcd_url, own_name) as agent,
            worker_at(nats_url, etcd_url, own_name, Engine()) as worker,
        ):
            await worker.ready()
            await agent.state_becomes("ready")
            before = await agent.entry()
            assert before is not None
            await agent.store.commit([], [Write(before.key, None)])
            assert await agent.state() is None
            await agent.state_becomes("ready")
            after = await agent.entry()
            assert after is not None
            assert after.lease_id == before.lease_id, "the lease was alive all the time"

    asyncio.run(scenario())


@pytest.mark.parametrize("other_lives", [True, False])
def test_a_worker_whose_key_another_incarnation_holds_ends_or_registers_again(
    nats_url: str,
    etcd_url: str,
    own_name: str,
    other_lives: bool,  # noqa: FBT001
) -> None:
    async def scenario() -> None:
        async with agent_at(nats_url, etcd_url, own_name) as agent:
            later = encode(WorkerRecord("m", "p", "w", "decode", incarnation=2))

            async def overtake() -> None:
                lease_id = await agent.store.grant(60)
                await agent.store.commit([], [Write(agent.keys.worker("m", "p", "w"), later, lease_id)])
                if not other_lives:
                    await agent.store.revoke(lease_id)

            async def serve() -> None:
                async with worker_at(nats_url, etcd_url, own_name, Engine()) as worker:
                    await worker.ready()
                    await agent.state_becomes("ready")
                    await overtake()
                    if not other_lives:
                        await agent.state_becomes("ready")
                        return
                    await worker.drained.wait()

            if other_lives:
                with pytest.raises(WorkerSuperseded):
                    await serve()
                held = await agent.entry()
                assert held is not None
                assert held.value == later
            else:
                await serve()

    asyncio.run(scenario())
