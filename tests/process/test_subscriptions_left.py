"""State in which clients leave a connection of their caller, as a real nats-server sees it."""

import asyncio
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from loadline.adapters import nats_client
from loadline.adapters.nats_bus import NatsBus
from loadline.client.handover import HandoverBus
from loadline.client.migratable_engine import MigrationOptions
from loadline.client.scaler import ScalerClient
from loadline.client.worker import WorkerClient
from loadline.config import NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.rig.server_processes import NatsServer, free_port
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryStore
from tests.support.migrating_worker import BlockingEngine
from tests.waiting import until

pytestmark = pytest.mark.process

CONNECTION = "of-the-caller"
SUBJECTS = Subjects("loadline")


def commands(pool: str) -> set[str]:
    return {SUBJECTS.drain("m", pool, "w"), SUBJECTS.migrate("m", pool, "w")}


def test_clients_on_a_shared_connection_leave_no_subscription(private_nats: Callable[[str], NatsServer]) -> None:
    port = free_port()
    nats = private_nats(f"http: 127.0.0.1:{port}")

    def subscriptions() -> set[str]:
        """Return the subjects of the connection, without that of replies to its requests."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/connz?subs=1") as page:
            connections: list[dict[str, Any]] = msgspec.json.decode(page.read())["connections"]
        [found] = [one for one in connections if one["name"] == CONNECTION]
        subjects: list[str] = [one for one in found["subscriptions_list"] if not one.startswith("_INBOX.")]
        assert len(subjects) == len(set(subjects)), "none is there twice"
        return set(subjects)

    async def scenario() -> None:
        bus, store = NatsBus(NatsKnobs(servers=(nats.url,)), name=CONNECTION), MemoryStore()
        async with AsyncExitStack() as stack:
            await bus.connect(lambda _connected: None)
            stack.push_async_callback(bus.close)
            await bus.subscribe("of.the.caller", lambda _subject, _payload: None)
            engine = BlockingEngine("w")
            for incarnation in range(1, 4):
                worker = WorkerClient(
                    WorkerRecord("m", "p", "w", "prefill", incarnation),
                    bus=bus,
                    store=store,
                    sample=engine.sample,
                    on_drain=engine.drain,
                    migration=MigrationOptions(engine, HandoverBus(bus, "toy")),
                )
                async with worker, ScalerClient("s", ["m"], bus=bus):
                    await worker.ready()
                    before = subscriptions()
                    assert commands("p") | {"toy.room.w", "toy.handover.w"} < before
                    await worker.move("q", "decode")
                    assert subscriptions() == before - commands("p") | commands("q")
                await until(lambda: subscriptions() == {"of.the.caller"}, "only that of the caller is left")

    asyncio.run(scenario())


def test_a_late_answer_of_the_server_leaves_the_connection_readable(
    nats_url: str, own_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a server that was frozen for more than 1 s: the library would end its reading at the PONG."""

    async def scenario() -> None:
        bus, got = NatsBus(NatsKnobs(servers=(nats_url,)), name=CONNECTION), list[bytes]()
        async with AsyncExitStack() as stack:
            await bus.connect(lambda _connected: None)
            stack.push_async_callback(bus.close)
            monkeypatch.setattr(nats_client, "_FLUSH_S", 1e-9)
            await bus.subscribe(own_name, lambda _subject, data: got.append(data))
            async with asyncio.timeout(5):  # a connection that is not read any more is replaced after 6 to 9 s
                while len(got) < 5:  # what is read together with the PONG may still come
                    await bus.publish(own_name, b"")
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())
