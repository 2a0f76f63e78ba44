"""Key of a worker in the store: replaced workers, and keys that other clients remove or overwrite."""

import asyncio

import pytest
from structlog.testing import capture_logs

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import WorkerSuperseded
from loadline.ports import StoreEntry, Write
from loadline.wire.codec import encode
from tests.support.client_worker import IDLE, INCARNATION, KEY, WorkerClientHarness, harness
from tests.waiting import until

LATER = encode(WorkerRecord("m", "p", "w", "decode", INCARNATION + 1))


def registered(client: WorkerClientHarness, value: bytes) -> StoreEntry:
    """Register another worker of the same name, as if this one had been frozen for a while."""
    client.store.server.commit([], [Write(KEY, value, client.store.server.grant(10))])
    assert client.held is not None
    return client.held


@pytest.mark.parametrize("is_superseded", [True, False])
@pytest.mark.parametrize("lease_lost", [True, False])
def test_a_replaced_worker_ends_without_touching_the_key(
    lease_lost: bool,  # noqa: FBT001
    is_superseded: bool,  # noqa: FBT001
) -> None:
    async def scenario() -> None:
        client = WorkerClientHarness("decode", IDLE)
        own = 0

        async def serve() -> None:
            nonlocal own
            async with asyncio.timeout(60), client.worker:
                await until(lambda: client.state == "starting")
                assert client.held is not None
                own = client.lose_lease() if lease_lost else client.held.lease_id
                registered(client, LATER)
                if is_superseded:
                    await client.worker.ready()
                await asyncio.Event().wait()  # the engine serves until the client ends it

        with pytest.raises(WorkerSuperseded, match=r"worker w of pool p .* incarnation 1000 ends"):
            await serve()
        assert client.held is not None
        assert client.held.value == LATER
        assert client.store.server.keep_alive(own) == 0, "its own lease is revoked"

    asyncio.run(scenario())


def test_a_draining_worker_finishes_although_it_was_replaced() -> None:
    async def scenario() -> None:
        client = WorkerClientHarness("prefill", IDLE)
        async with asyncio.timeout(60), client.worker:
            await until(lambda: client.state == "starting")
            await client.command()
            await until(lambda: client.state == "draining")
            later = registered(client, encode(WorkerRecord("m", "p", "w", "prefill", INCARNATION + 1)))
            await until(client.worker._registration.gone.is_set, "the replacement was noticed")
            client.empty.set()
            await client.worker.drained.wait()
        assert client.held == later

    asyncio.run(scenario())


def test_an_error_of_the_engine_is_raised_although_the_worker_was_replaced() -> None:
    async def scenario() -> None:
        client = WorkerClientHarness("decode", IDLE)

        async def serve() -> None:
            async with asyncio.timeout(60), client.worker:
                await until(lambda: client.state == "starting")
                registered(client, LATER)
                try:
                    await asyncio.Event().wait()
                finally:
                    raise RuntimeError("the engine failed")

        with pytest.raises(RuntimeError, match="the engine failed"):
            await serve()

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [[None], [b"rubbish"], [LATER, None]])
def test_a_key_that_another_client_removed_or_overwrote_is_written_again(writes: list[bytes | None]) -> None:
    async def scenario() -> None:
        async with harness() as client:
            await client.worker.ready()
            await until(lambda: client.state == "ready", "ready")
            before = client.held
            assert before is not None
            with capture_logs() as logs:
                for value in writes:
                    client.store.server.commit([], [Write(KEY, value)])
                await until(lambda: any(log["event"] == "registration_restored" for log in logs), "written again")
            assert client.state == "ready"
            after = client.held
            assert after is not None
            assert after.mod_revision > before.mod_revision
            assert after.lease_id == before.lease_id

    asyncio.run(scenario())


def test_a_renewal_that_finds_its_key_writes_nothing() -> None:
    async def scenario() -> None:
        async with harness() as client:
            await until(lambda: client.state == "starting", "registered")
            revision, calls = client.store.server.revision, 0
            keep_alive = client.store.keep_alive

            async def count(lease_id: int) -> int:
                nonlocal calls
                calls += 1
                return await keep_alive(lease_id)

            client.store.keep_alive = count  # type: ignore[method-assign]
            await until(lambda: calls > 2, "renewed")
            assert client.store.server.revision == revision

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [encode(WorkerRecord("m", "p", "w", "decode", INCARNATION - 1)), b"rubbish"])
def test_the_key_of_an_earlier_incarnation_is_replaced(value: bytes) -> None:
    async def scenario() -> None:
        client = WorkerClientHarness("decode", IDLE)
        before = registered(client, value)
        async with asyncio.timeout(60), client.worker:
            await until(lambda: client.held != before)
            assert client.state == "starting"

    asyncio.run(scenario())


def test_a_registration_is_logged_once_for_each_lease() -> None:
    async def scenario() -> None:
        with capture_logs() as logs:
            async with harness() as client:
                await until(lambda: client.state == "starting", "registered")
                await client.worker.ready()
                await until(lambda: client.state == "ready", "ready")
                client.lose_lease()
                await until(lambda: client.held is not None, "registered again")
        assert [log["key"] for log in logs if log["event"] == "registered"] == [KEY] * 2

    asyncio.run(scenario())
