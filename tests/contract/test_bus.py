"""Contract of ``ports.Bus``. Written against the port, so that another bus is one more parameter."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from loadline.adapters import nats_client
from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.errors import BusUnavailable, NoSubscriber
from loadline.ports import Bus
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.tasks import VirtualFuture
from loadline.sim.world.timeline import Timeline
from tests.support.driven import DrivenBus, Driver
from tests.waiting import DEADLINE_S, until

MakeBus = Callable[[], Bus]


@pytest.fixture(params=[*(pytest.param(name, marks=pytest.mark.process) for name in ("nats", "plain")), "virtual"])
def make_bus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeBus:
    """Return a function that makes unconnected buses of one server; plain: without private parts of nats-py."""
    if request.param == "plain":
        monkeypatch.setattr(nats_client, "missing_parts", lambda: ("_sid",))
    if request.param in {"nats", "plain"}:
        nats_url = request.getfixturevalue("nats_url")
        return lambda: NatsBus(NatsKnobs(servers=(nats_url,), frame_bytes_max=1_000), name="contract")
    driver = Driver(Timeline())
    virtual = VirtualBus(driver.timeline)
    return lambda: DrivenBus(driver, virtual.connection())


real = pytest.mark.parametrize("make_bus", [pytest.param("nats", marks=pytest.mark.process)], indirect=True)
"""Real buses only: a simulated bus raises errors of handlers, limits no frame and connects at once."""


@contextlib.asynccontextmanager
async def connected(*buses: Bus) -> AsyncIterator[None]:
    for bus in buses:
        await bus.connect(lambda _connected: None)
    try:
        yield
    finally:
        for bus in buses:
            await bus.close()


def test_frames_reach_all_subscribers_in_order(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        sender, one, two = make_bus(), make_bus(), make_bus()
        got: dict[str, list[tuple[str, bytes]]] = {"one": [], "two": []}
        async with connected(sender, one, two):
            await one.subscribe(f"{own_name}.>", lambda subject, data: got["one"].append((subject, data)))
            await two.subscribe(f"{own_name}.*", lambda subject, data: got["two"].append((subject, data)))
            sent = [(f"{own_name}.{i % 3}", b"%d" % i) for i in range(200)]
            for subject, data in sent:
                await sender.publish(subject, data)
            await until(lambda: all(len(frames) == len(sent) for frames in got.values()))
        assert got == {"one": sent, "two": sent}

    asyncio.run(scenario())


def test_a_subscription_receives_the_next_frame(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        sender, receiver = make_bus(), make_bus()
        async with connected(sender, receiver):
            for i in range(100):
                got = asyncio.Event()
                await receiver.subscribe(f"{own_name}.{i}", lambda _subject, _data, got=got: got.set())  # type: ignore[misc]
                await sender.publish(f"{own_name}.{i}", b"")
                await asyncio.wait_for(got.wait(), DEADLINE_S)

    asyncio.run(scenario())


def test_a_subscription_made_before_the_connection_receives_frames(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        bus = make_bus()
        got: list[bytes] = []
        await bus.subscribe(own_name, lambda _subject, data: got.append(data))
        async with connected(bus):
            await bus.publish(own_name, b"early")
            await until(lambda: got == [b"early"])

    asyncio.run(scenario())


def test_a_request_is_answered(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        asking, answering = make_bus(), make_bus()

        async def answer(data: bytes) -> bytes:
            return b"<" + data + b">"

        async with connected(asking, answering):
            await answering.answer(own_name, answer)
            assert await asking.request(own_name, b"question", 10) == b"<question>"

    asyncio.run(scenario())


def gate(bus: Bus) -> Any:
    """Return a future for which handlers of a bus can wait."""
    return VirtualFuture() if isinstance(bus, DrivenBus) else asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("concurrent_max", [1, 2])
def test_as_many_requests_are_answered_at_a_time_as_allowed(
    make_bus: MakeBus, own_name: str, concurrent_max: int
) -> None:
    async def scenario() -> None:
        asking, answering = make_bus(), make_bus()
        begun: list[int] = []
        gates = [gate(answering) for _ in range(concurrent_max)]

        async def answer(data: bytes) -> bytes:
            begun.append(int(data))
            if int(data) < concurrent_max:
                await gates[int(data)]
            return data

        async with connected(asking, answering):
            await answering.answer(f"{own_name}.work", answer, concurrent_max=concurrent_max)
            await answering.answer(f"{own_name}.later", answer)
            asked = list[asyncio.Task[bytes]]()
            for number in range(concurrent_max + 1):
                asked.append(asyncio.create_task(asking.request(f"{own_name}.work", b"%d" % number, 10)))
                await until(lambda: number >= concurrent_max or number in begun)  # noqa: B023 - called at once
            for _ in range(2):  # the second one is sent after the last request
                await asking.request(f"{own_name}.later", b"99", 10)
            assert begun == [*range(concurrent_max), 99, 99], "the last request waits"
            gates[0].set_result(None)
            assert [await asked[0], await asked[-1]] == [b"0", b"%d" % concurrent_max]
            for one in gates[1:]:
                one.set_result(None)
            assert await asyncio.gather(*asked) == [b"%d" % number for number in range(concurrent_max + 1)]

    asyncio.run(scenario())


def test_requests_that_wait_get_no_answer_after_the_end_of_their_subscription(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        asking, answering = make_bus(), make_bus()
        begun, opened = list[bytes](), gate(answering)

        async def answer(data: bytes) -> bytes:
            begun.append(data)
            await opened
            return data

        async with connected(asking, answering):
            end = await answering.answer(own_name, answer)
            asked = [asyncio.create_task(asking.request(own_name, b"%d" % number, 0.5)) for number in range(2)]
            await until(lambda: begun)
            await end()
            with contextlib.suppress(asyncio.InvalidStateError):  # the handler was cancelled
                opened.set_result(None)
            failed = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(one) for one in failed] == [BusUnavailable] * 2
            assert len(begun) == 1

    asyncio.run(scenario())


def test_a_request_without_an_answer_fails(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        asking, silent = make_bus(), make_bus()

        async def nothing(_data: bytes) -> None:
            return None

        async with connected(asking, silent):
            with pytest.raises(BusUnavailable):
                await asking.request(f"{own_name}.nobody", b"", 10)
            await silent.answer(f"{own_name}.silent", nothing)
            with pytest.raises(BusUnavailable):
                await asking.request(f"{own_name}.silent", b"", 0.05)

    asyncio.run(scenario())


def test_a_subscription_that_was_ended_receives_nothing_and_others_stay(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        bus, early = make_bus(), make_bus()
        got: list[str] = []

        async def answer(data: bytes) -> bytes:
            return data

        end_early = await early.subscribe(own_name, lambda _subject, _data: got.append("before the connection"))
        await end_early()
        async with connected(bus, early):
            end_frames = await bus.subscribe(own_name, lambda _subject, _data: got.append("ended"))
            await bus.subscribe(own_name, lambda _subject, _data: got.append("stays"))
            end_answers = await bus.answer(f"{own_name}.ended", answer)
            await bus.answer(f"{own_name}.stays", answer)
            for _ in range(2):  # the second time changes nothing
                await end_frames()
                await end_answers()
            await bus.publish(own_name, b"")
            with pytest.raises(NoSubscriber):
                await bus.request(f"{own_name}.ended", b"1", 10)
            assert await bus.request(f"{own_name}.stays", b"2", 10) == b"2"
            await until(lambda: bool(got))
            await bus.answer(f"{own_name}.ended", answer)
            assert await bus.request(f"{own_name}.ended", b"3", 10) == b"3"
        assert got == ["stays"]

    asyncio.run(scenario())


@real
def test_a_reply_that_has_arrived_behind_unread_frames_counts(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        asking, answering = make_bus(), make_bus()
        frames = 200  # several reads of 32 KiB, which take longer than the request may

        async def answer(_data: bytes) -> bytes:
            for _ in range(frames):
                await answering.publish(f"{own_name}.load", b"x" * 1_000)
            return b"answer"

        async with connected(asking, answering):
            await asking.subscribe(f"{own_name}.load", lambda _subject, _data: time.sleep(0.003))
            await answering.answer(f"{own_name}.question", answer)
            assert await asking.request(f"{own_name}.question", b"", 0.1) == b"answer"

    asyncio.run(scenario())


def test_the_service_that_has_an_answer_replies(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        asking, leader, follower = make_bus(), make_bus(), make_bus()
        calls: list[str] = []

        async def lead(_data: bytes) -> bytes:
            calls.append("leader")
            return b"I lead"

        async def follow(_data: bytes) -> None:
            calls.append("follower")

        async with connected(asking, leader, follower):
            subject = f"{own_name}.api.status"
            await leader.serve("loadline", "1.2.3", {"status": (subject, lead)})
            await follower.serve("loadline", "1.2.3", {"status": (subject, follow)})
            for _ in range(20):
                assert await asking.request(subject, b"", 10) == b"I lead"
            await until(lambda: calls.count("leader") == 20 and calls.count("follower") == 20)

    asyncio.run(scenario())


@real
def test_a_service_survives_an_exception_of_its_handler(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        bus = make_bus()

        async def answer(data: bytes) -> bytes:
            return b"%d" % (1 // len(data))

        async with connected(bus):
            await bus.answer(own_name, answer)
            with pytest.raises(BusUnavailable):
                await bus.request(own_name, b"", 0.05)
            assert await bus.request(own_name, b"x", 10) == b"1"

    asyncio.run(scenario())


@real
def test_a_subscription_survives_an_exception_of_its_handler(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        bus = make_bus()
        got: list[float] = []
        async with connected(bus):
            await bus.subscribe(own_name, lambda _subject, data: got.append(1 / len(data)))
            await bus.publish(own_name, b"")
            await bus.publish(own_name, b"xx")
            await until(lambda: bool(got))
            assert got == [0.5]
            assert bus.connected

    asyncio.run(scenario())


@real
def test_frames_that_are_too_large_are_dropped(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        bus = make_bus()
        got: list[bytes] = []
        async with connected(bus):
            await bus.subscribe(own_name, lambda _subject, data: got.append(data))
            await bus.publish(own_name, b"x" * 1_001)
            await bus.publish(own_name, b"x" * 1_000)
            await until(lambda: len(got) == 1)
        assert len(got[0]) == 1_000

    asyncio.run(scenario())


@real
def test_nothing_can_be_published_before_connecting_or_after_closing(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        bus = make_bus()
        with pytest.raises(BusUnavailable):
            await bus.publish(own_name, b"")
        async with connected(bus):
            assert bus.connected
        assert not bus.connected
        with pytest.raises(BusUnavailable):
            await bus.publish(own_name, b"")
        with pytest.raises(BusUnavailable):
            await bus.request(own_name, b"", 1)

    asyncio.run(scenario())


def test_closing_delivers_published_frames(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        sender, receiver = make_bus(), make_bus()
        got: list[bytes] = []
        async with connected(receiver):
            await receiver.subscribe(own_name, lambda _subject, data: got.append(data))
            async with connected(sender):
                for _ in range(500):
                    await sender.publish(own_name, b"")
            await until(lambda: len(got) == 500)

    asyncio.run(scenario())


@real
def test_a_bus_closes_although_the_library_swallows_a_cancellation(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncio.wait_for does in Python 3.11 if the result arrives in the same turn of the event loop."""

    async def scenario() -> None:
        flushing = asyncio.Event()

        async def flush_all(_client: nats_client.NatsClient) -> None:
            if not flushing.is_set():
                flushing.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

        monkeypatch.setattr(nats_client.NatsClient, "flush_all", flush_all)
        bus = make_bus()
        connecting = asyncio.create_task(bus.connect(lambda _connected: None))
        async with asyncio.timeout(DEADLINE_S):
            await flushing.wait()
            connecting.cancel()
            await bus.close()

    asyncio.run(scenario())


@real
def test_a_subscription_that_is_cancelled_leaves_the_connection_to_others(make_bus: MakeBus, own_name: str) -> None:
    async def scenario() -> None:
        bus, got = make_bus(), list[bytes]()
        async with connected(bus):
            await bus.subscribe(own_name, lambda _subject, data: got.append(data))
            for turns in range(12):
                subscribing = asyncio.create_task(bus.subscribe("unused", lambda _subject, _data: None))
                for _ in range(turns):
                    await asyncio.sleep(0)
                subscribing.cancel()
                await asyncio.wait({subscribing})
                await bus.publish(own_name, b"%d" % turns)
                async with asyncio.timeout(2):  # a connection that is not read any more is replaced after 6 to 9 s
                    await until(lambda: len(got) == turns + 1)  # noqa: B023 - awaited here

    asyncio.run(scenario())


@real
@pytest.mark.parametrize("turns", range(1, 6))
def test_a_subscription_that_is_cancelled_answers_nothing(make_bus: MakeBus, own_name: str, turns: int) -> None:
    async def scenario() -> None:
        bus = make_bus()
        async with connected(bus):
            subscribing = asyncio.create_task(bus.answer(own_name, lambda _data: asyncio.sleep(0, b"")))
            for _ in range(turns):
                await asyncio.sleep(0)
            subscribing.cancel()
            await asyncio.wait({subscribing})
            with pytest.raises(NoSubscriber) if subscribing.cancelled() else contextlib.nullcontext():
                await bus.request(own_name, b"", DEADLINE_S)

    asyncio.run(scenario())
