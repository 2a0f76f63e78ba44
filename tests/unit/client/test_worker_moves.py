"""Worker that takes another role: its key is replaced in one transaction, and commands reach it in its new pool."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from loadline.core.vocabulary.events import LoadReported
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import BusUnavailable, ConfigError
from loadline.ports import Write
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply, MigrateCommand, MigrateReply
from tests.support.client_worker import INCARNATION, KEY, SUBJECTS, WorkerClientHarness, harness
from tests.waiting import until

NEW_KEY = Keys("default").worker("m", "other", "w")
THIRD_KEY = Keys("default").worker("m", "third", "w")
OF_ANOTHER = encode(WorkerRecord("m", "p", "w", "prefill", INCARNATION + 1))


def keys(client: WorkerClientHarness) -> set[str]:
    return {key for key in client.store.server.keys if "/workers/" in key}


def home_pool(client: WorkerClientHarness, key: str) -> str:
    return msgspec.json.decode(client.store.server.keys[key].value, type=WorkerRecord).home_pool


async def asked_to_drain(client: WorkerClientHarness, pool: str) -> DrainReply:
    command = DrainCommand("d", "m", pool, "w", "decode", INCARNATION, 1, 60_000)
    reply = await client.bus.request(SUBJECTS.drain("m", pool, "w"), encode(command), 5)
    return msgspec.json.decode(reply, type=DrainReply)


async def asked_to_migrate(client: WorkerClientHarness, pool: str) -> MigrateReply:
    source, destination = MigrationEndpoint(pool, "w", INCARNATION), MigrationEndpoint(pool, "v", 1)
    command = MigrateCommand(
        command_id="c",
        model="m",
        epoch=1,
        source=source,
        destination=destination,
        trigger="drain",
        rule="NUM_REQ",
        order="SR",
        value=1,
        ttl_ms=60_000,
    )
    reply = await client.bus.request(SUBJECTS.migrate("m", pool, "w"), encode(command), 5)
    return msgspec.json.decode(reply, type=MigrateReply)


def test_commands_to_a_worker_reach_it_in_its_new_pool_only() -> None:
    async def scenario() -> None:
        async with harness("prefill") as client:
            assert (await asked_to_migrate(client, "p")).reason == "unsupported"
            await client.worker.move("other", "decode")
            assert (await asked_to_migrate(client, "other")).reason == "unsupported", "it answers for itself"
            for asked in (asked_to_migrate, asked_to_drain):
                with pytest.raises(BusUnavailable):
                    await asked(client, "p")

    asyncio.run(scenario())


def test_a_worker_that_moves_is_registered_in_one_pool_at_every_moment() -> None:
    async def scenario() -> None:
        async with harness("prefill") as client:
            await client.worker.ready()
            await until(lambda: client.state == "ready")
            assert client.held is not None
            lease_id, revision = client.held.lease_id, client.store.server.revision
            await client.worker.move("other", "decode")
            await until(lambda: NEW_KEY in keys(client))
            assert keys(client) == {NEW_KEY}
            entry = client.store.server.keys[NEW_KEY]
            record = msgspec.json.decode(entry.value, type=WorkerRecord)
            assert (record.pool, record.role, record.state, record.incarnation) == (
                "other",
                "decode",
                "ready",
                INCARNATION,
            )
            assert (entry.lease_id, client.store.server.revision) == (lease_id, revision + 1), "one transaction"
            await until(lambda: isinstance(one := client.received()[-1], LoadReported) and one.pool == "other")
            assert (await asked_to_drain(client, "other")).accepted
            with pytest.raises(ValueError, match="worker w drains"):
                await client.worker.move("p", "prefill")
            client.empty.set()
            await until(client.worker.drained.is_set)
            assert keys(client) == set()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("disturb", "left"),
    [
        (lambda client: client.lose_lease(), {NEW_KEY}),
        (lambda client: client.store.server.commit([], [Write(KEY, None)]), {NEW_KEY}),
        (lambda client: client.store.server.commit([], [Write(KEY, OF_ANOTHER)]), {NEW_KEY, KEY}),
    ],
    ids=["lease lost", "key removed", "key of another worker"],
)
def test_a_move_touches_no_key_that_is_not_its_own(
    disturb: Callable[[WorkerClientHarness], object], left: set[str]
) -> None:
    async def scenario() -> None:
        async with harness("prefill") as client:
            await until(lambda: client.state == "starting")
            disturb(client)
            await client.worker.move("other", "decode")
            await until(lambda: keys(client) == left, f"{left}, but there is {keys(client)}")
            await client.worker.ready()
            await until(
                lambda: msgspec.json.decode(client.store.server.keys[NEW_KEY].value, type=WorkerRecord).state == "ready"
            )
            client.store.server.commit([], [Write(KEY, None)])

    asyncio.run(scenario())


def test_a_worker_may_move_while_it_registers_and_back() -> None:
    async def scenario() -> None:
        async with harness("prefill") as client:
            await client.worker.move("other", "decode")
            await until(lambda: keys(client) == {NEW_KEY})
            assert home_pool(client, NEW_KEY) == "p", "the scaler that started it ends it"
            await client.worker.move("third", "decode")
            await until(lambda: keys(client) == {THIRD_KEY})
            assert home_pool(client, THIRD_KEY) == "p"
            await client.worker.move("p", "prefill")
            await client.worker.ready()
            await until(lambda: keys(client) == {KEY})
            await until(lambda: client.state == "ready")
            assert home_pool(client, KEY) == ""

    asyncio.run(scenario())


def test_a_worker_does_not_move_to_what_is_no_pool_or_role() -> None:
    async def scenario() -> None:
        async with harness("prefill") as client:
            with pytest.raises(ConfigError, match=r"\$.role"):
                await client.worker.move("other", "decoder")  # type: ignore[arg-type]
            assert client.worker.record.pool == "p"

    asyncio.run(scenario())
