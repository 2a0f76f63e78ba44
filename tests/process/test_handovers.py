"""Handovers of several sources at a time over a real nats-server."""

import asyncio

import pytest

from loadline.client.handover.bus import HandoverBus
from loadline.client.handover.messages import HandedRequest, HandoverReply, HandoverRequest
from loadline.client.handover.migrator import RequestMigrator
from loadline.client.handover.ownership import RequestOwners
from loadline.client.migratable_engine import MigrationOptions
from loadline.client.migration_driver import MigrationDriver
from loadline.client.resources import bus_of
from loadline.config import NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.messages import MigrationReport
from tests.support.migration_driver import ScriptedEngine
from tests.waiting import until

pytestmark = pytest.mark.process

TAKEN = HandoverReply(accepted=True)


async def publish(_report: MigrationReport) -> None:
    """Ignore reports: this worker hands nothing over."""


def running_answers() -> int:
    return sum(task.get_name() == "nats-answer" for task in asyncio.all_tasks())


def test_a_frontend_that_is_gone_delays_no_handover_of_others(nats_url: str, own_name: str) -> None:
    async def scenario() -> None:
        engine, owners = ScriptedEngine(), RequestOwners()
        migrator = RequestMigrator(WorkerRecord("m", "p", "w", "decode", 1), engine.held_requests)
        async with bus_of(None, NatsKnobs(servers=(nats_url,)), own_name) as bus:
            handovers = HandoverBus(bus, own_name)

            def hand_over(name: str, frontend: str) -> asyncio.Task[HandoverReply | None]:
                handed = HandoverRequest(HandedRequest(name, frontend, 1, 1, b""), 1)
                return asyncio.create_task(handovers.hand_over("w", handed))

            for name in ("r1", "r2", "r3"):
                owners.assign(name, "source", 1)
            await handovers.serve_frontend("alive", owners.answer)
            async with MigrationDriver(migrator, MigrationOptions(engine, handovers), "w", publish):
                waiting = [hand_over("r1", "gone"), hand_over("r1", "gone")]
                await until(lambda: migrator.destination.expected == ["r1"], "its claim is pending")
                assert await hand_over("r2", "alive") == TAKEN
                assert not any(one.done() for one in waiting)
                await handovers.serve_frontend("gone", owners.answer)
                assert await asyncio.gather(*waiting) == [TAKEN, TAKEN]
                assert await hand_over("r1", "gone") == TAKEN, "the answer is repeated"
                assert [one.request_id for one in engine.run_requests] == ["r2", "r1"], "each runs once"
                left = hand_over("r3", "nobody")
                await until(lambda: migrator.destination.expected == ["r3"], "its claim is pending")
                assert running_answers() == 1
            await until(lambda: running_answers() == 0, "a worker that leaves ends its answers")
            left.cancel()

    asyncio.run(scenario())
