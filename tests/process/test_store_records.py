"""Oversized records in a real etcd: they hide no other record, take little memory and are reported."""

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from loadline.adapters.etcd_rpc import EtcdRpc, ReplyTooLong
from loadline.adapters.etcd_store import EtcdStore
from loadline.config import EtcdKnobs
from loadline.core.vocabulary.events import RegistryRead, WorkerDeregistered, WorkerRegistered
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import Write
from loadline.rig.rig import Rig
from loadline.rig.server_processes import EtcdServer
from loadline.runtime.registry import RegistryTranslator
from loadline.wire.codec import Rejected, encode
from loadline.wire.keys import WORKER_RECORD_BYTES_MAX, Keys
from tests.support.agents import MODEL as FLEET_MODEL
from tests.support.agents import config, fleet
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

KEYS = Keys("default")
BAD_RECORDS = 90
BAD_BYTES = 700_000
TIMEOUT_MS = 60_000
"""Limit of one call. etcd answers the read of all bad records with 84 MB, which takes seconds on a busy machine."""
MEMORY_BYTES_MAX = 32 * 2**20
"""Half of the size of all bad records."""


@contextlib.asynccontextmanager
async def opened(server: EtcdServer) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(EtcdKnobs(endpoints=(server.url,), timeout_ms=TIMEOUT_MS), KEYS.value_bytes_max)
    try:
        yield store
    finally:
        await store.close()


async def register(store: EtcdStore, worker: str, value: bytes | None = None) -> None:
    record = encode(WorkerRecord("m", "p", worker, "decode", 1)) if value is None else value
    assert (await store.commit([], [Write(KEYS.worker("m", "p", worker), record)])).committed


async def write_bad_records(store: EtcdStore) -> None:
    for index in range(BAD_RECORDS):
        await register(store, f"bad-{index:02}", b"x" * BAD_BYTES)


@pytest.fixture
def memory() -> Iterator[Callable[[], int]]:
    """Yield the peak memory of Python objects since the start of the test; the cyclic collector is off."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    gc.enable()


def test_bad_records_hide_no_other_record_and_are_reported(
    private_etcd: Callable[[], EtcdServer], memory: Callable[[], int]
) -> None:
    async def scenario() -> None:
        events: list[object] = []
        rejected: list[Rejected] = []
        translator = RegistryTranslator(KEYS, "all", events.append, rejected.append)
        server = private_etcd()
        async with opened(server) as store, opened(server) as other:
            await register(store, "a-good")
            await write_bad_records(store)
            await register(store, "z-good")
            connections: list[bool] = []
            following = asyncio.create_task(
                store.follow(KEYS.prefix, translator.on_snapshot, translator.on_changes, connections.append)
            )
            await until(lambda: any(isinstance(event, RegistryRead) for event in events), "the snapshot")
            (read,) = [event for event in events if isinstance(event, RegistryRead)]
            assert [one.record.worker for one in read.workers] == ["a-good", "z-good"]
            assert {(one.reason, one.subject) for one in rejected} == {
                ("oversized", f"workers/m/p/bad-{index:02}") for index in range(BAD_RECORDS)
            }
            assert rejected[0].detail == f"{BAD_BYTES} bytes, {WORKER_RECORD_BYTES_MAX} are allowed"
            # The same through the watch: only the worker whose record became unreadable is removed.
            await register(other, "a-good", b"x" * BAD_BYTES)
            await register(other, "new")
            await until(lambda: WorkerDeregistered("m", "p", "a-good") in events, "unreadable")
            await until(
                lambda: any(isinstance(e, WorkerRegistered) and e.worker.record.worker == "new" for e in events)
            )
            following.cancel()
            await asyncio.wait([following])
            assert connections == [True]
        assert memory() < MEMORY_BYTES_MAX

    asyncio.run(scenario())


def test_a_gap_of_the_watch_with_many_bad_records_is_read_in_bounded_memory(
    private_etcd: Callable[[], EtcdServer], memory: Callable[[], int]
) -> None:
    async def scenario() -> None:
        server = private_etcd()
        async with opened(server) as store, opened(server) as other:
            await register(store, "good")
            revision = (await store.read(KEYS.workers)).revision
            await write_bad_records(other)
            await register(other, "last")
            # A watch returns all changes since then; without fragments they are one line of 84 MB.
            seen: list[str] = []
            watching = asyncio.create_task(
                store._watch(KEYS.workers, revision + 1, lambda changes: seen.extend(c.key for c in changes))
            )
            await until(lambda: KEYS.worker("m", "p", "last") in seen, "the last change")
            assert len(seen) == BAD_RECORDS + 1
            watching.cancel()
            await asyncio.wait([watching])
        assert memory() < MEMORY_BYTES_MAX

    asyncio.run(scenario())


def test_an_answer_that_is_too_long_leaves_nothing_behind(
    private_etcd: Callable[[], EtcdServer], memory: Callable[[], int]
) -> None:
    async def scenario() -> None:
        server = private_etcd()
        async with opened(server) as store:
            await write_bad_records(store)
        rpc = EtcdRpc(EtcdKnobs(endpoints=(server.url,), timeout_ms=TIMEOUT_MS))
        body = {"key": KEYS.workers.encode(), "range_end": KEYS.workers.encode() + b"\xff"}
        try:
            for _ in range(20):
                with pytest.raises(ReplyTooLong):
                    await rpc.call("/kv/range", body, WorkerRecord, bytes_max=8 * 2**20)
        finally:
            await rpc.close()
        assert memory() < MEMORY_BYTES_MAX, "20 answers of 8 MiB each were read"

    asyncio.run(scenario())


def test_an_agent_stays_ready_and_decides_despite_bad_records(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet, opened(rig.etcd) as store:
            for index in range(BAD_RECORDS):
                key = KEYS.worker(FLEET_MODEL, "decode", f"bad-{index}")
                assert (await store.commit([], [Write(key, b"x" * BAD_BYTES)])).committed
            await asyncio.to_thread(rig.etcd.restart)  # a gap in every watch
            agent = rig.agent(config(rig, "a"), "a")
            await asyncio.to_thread(agent.wait_ready)
            await agent_fleet.add("decode", "d1", "d2")
            await agent_fleet.add("prefill", "p1")
            agent_fleet.load(kv=0.97, waiting=0)
            await until(lambda: agent_fleet.observer.desired().get("decode", 0) >= 3, "a decision")

    with Rig(tmp_path) as rig:
        asyncio.run(scenario(rig))
