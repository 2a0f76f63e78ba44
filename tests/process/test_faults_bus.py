"""Bus with a nats-server that is killed, frozen, restarted or denies permissions."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import structlog

from loadline.adapters import nats_bus
from loadline.adapters.logs import bounded
from loadline.adapters.nats_bus import NatsBus
from loadline.adapters.nats_client import NatsClient
from loadline.config import NatsKnobs
from loadline.errors import BusUnavailable, ConfigError, NoSubscriber
from loadline.rig.server_processes import NatsServer
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

MakeServer = Callable[..., NatsServer]


@contextlib.asynccontextmanager
async def connected(bus: NatsBus) -> AsyncIterator[list[bool]]:
    connections: list[bool] = []
    await bus.connect(connections.append)
    try:
        yield connections
    finally:
        await bus.close()


def bus_for(*servers: NatsServer, knobs: NatsKnobs | None = None, name: str = "faults") -> NatsBus:
    return NatsBus(knobs or NatsKnobs(servers=tuple(server.url for server in servers)), name=name)


def test_subscriptions_and_services_survive_a_killed_server(private_nats: MakeServer) -> None:
    async def scenario() -> None:
        server = private_nats()
        bus = bus_for(server)
        got: list[bytes] = []

        async def answer(data: bytes) -> bytes:
            return data

        async with connected(bus) as connections:
            await bus.subscribe("a.*", lambda _subject, data: got.append(data))
            await bus.answer("q", answer)
            await bus.serve("loadline", "1.0.0", {"echo": ("service.echo", answer)})
            end_before = await bus.answer("ended.before", answer)
            end_while_away = await bus.answer("ended.while-away", answer)
            end_afterwards = await bus.answer("ended.afterwards", answer)
            await end_before()
            server.kill()
            await until(lambda: connections == [True, False])
            for _ in range(3):
                with pytest.raises(BusUnavailable):
                    await bus.publish("a.b", b"published while away")
            with pytest.raises(BusUnavailable):
                await bus.request("q", b"", 1)
            assert bus.last_error
            await end_while_away()
            server.start()
            await until(lambda: connections == [True, False, True])
            assert await bus.request("ended.afterwards", b"0", 10) == b"0"
            await end_afterwards()
            for ended in ("before", "while-away", "afterwards"):
                with pytest.raises(NoSubscriber):
                    await bus.request(f"ended.{ended}", b"", 10)
            await bus.publish("a.b", b"back")
            await until(lambda: bool(got))
            assert await bus.request("q", b"1", 10) == b"1"
            assert await bus.request("service.echo", b"2", 10) == b"2"
        # Messages published during the outage are lost.
        assert got == [b"back"]

    asyncio.run(scenario())


def test_the_server_may_start_after_the_agent(private_nats: MakeServer) -> None:
    async def scenario() -> None:
        server = private_nats()
        server.kill()
        bus = bus_for(server)
        got: list[bytes] = []
        async with connected(bus) as connections:
            assert connections == []
            assert not bus.connected
            await bus.subscribe("early", lambda _subject, data: got.append(data))
            server.start()
            await until(lambda: connections == [True])
            await bus.publish("early", b"")
            await until(lambda: bool(got))

    asyncio.run(scenario())


def test_an_outage_is_logged_once_with_its_server_and_a_remedy(
    private_nats: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bus, "_log", bounded("nats"))
    attempts: list[None] = []
    open_client = NatsBus._open

    async def count(bus: NatsBus, client: NatsClient) -> None:
        attempts.append(None)
        await open_client(bus, client)

    monkeypatch.setattr(NatsBus, "_open", count)

    async def scenario() -> None:
        server = private_nats()
        server.kill()
        bus = bus_for(server)
        async with connected(bus) as connections:
            await until(lambda: len(attempts) >= 3)
            server.start()
            await until(lambda: connections == [True])
            server.kill()
            await until(lambda: len(attempts) >= 6)
            events = [line["event"] for line in lines if line["event"] != "nats_error"]  # why a connection was lost
            assert events == ["nats_unreachable", "nats_connected", "nats_unreachable"]
            assert f"no connection to NATS at {server.url}: [Errno 111]" in lines[0]["detail"]
            assert "nats.servers" in lines[0]["remedy"]

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())


def test_the_bus_reconnects_to_another_member_of_the_cluster(private_nats: MakeServer) -> None:
    async def scenario() -> None:
        one, two = private_nats(), private_nats()
        bus = bus_for(one, two)
        async with connected(bus) as connections:
            one.kill()
            two.kill()
            await until(lambda: connections == [True, False])
            two.start()
            await until(lambda: bus.connected)

    asyncio.run(scenario())


def test_a_frozen_server_is_detected(private_nats: MakeServer) -> None:
    async def scenario() -> None:
        server = private_nats()
        bus = bus_for(server)
        async with connected(bus) as connections:
            server.pause()
            await until(lambda: connections == [True, False])
            with pytest.raises(BusUnavailable):
                await bus.publish("a", b"")
            server.resume()
            await until(lambda: connections == [True, False, True])
            await bus.publish("a", b"")

    asyncio.run(scenario())


def test_a_frozen_server_fills_no_memory_and_does_not_block_the_close(
    private_nats: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bus, "_PING_S", 3_600)  # no ping detects it: the close waits for nothing

    async def scenario() -> None:
        server = private_nats()
        bus = bus_for(server)
        refused = False
        async with connected(bus):
            server.pause()
            frame = b"x" * 200_000
            for _ in range(200):  # 40 MB, part of which fits into the kernel's buffers
                try:
                    await bus.publish("a", frame)
                except BusUnavailable:
                    refused = True
                    break
                await asyncio.sleep(0)
        assert refused

    asyncio.run(asyncio.wait_for(scenario(), SCENARIO_S))


def test_denied_operations_are_counted(private_nats: MakeServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        server = private_nats(
            """
            authorization { users = [ { user: worker, password: "s3cret", permissions: {
                publish: ["allowed.>"], subscribe: ["allowed.>", "_INBOX_worker.>"] } } ] }
            """
        )
        password = tmp_path / "password"
        password.write_text("wrong\n")
        knobs = NatsKnobs(
            servers=(server.url,), user="worker", password_file=str(password), inbox_prefix="_INBOX_worker"
        )
        bus = NatsBus(knobs, name="worker")
        got: list[bytes] = []

        async def answer(data: bytes) -> bytes:
            return data

        async with connected(bus) as connections:
            assert connections == []
            assert "authorization" in bus.last_error.lower()
            password.write_text("s3cret\n")  # read again at every connect
            await until(lambda: connections == [True])
            assert bus.last_error == ""
            await bus.subscribe("allowed.a", lambda _subject, data: got.append(data))
            await bus.publish("allowed.a", b"1")
            await until(lambda: got == [b"1"])
            assert bus.denied == 0
            await bus.publish("forbidden.a", b"2")
            await bus.subscribe("forbidden.a", lambda _subject, data: got.append(data))
            await until(lambda: bus.denied == 2)
            assert "forbidden.a" in bus.last_error
            assert connections == [True]
            await bus.answer("allowed.q", answer)
            with pytest.raises(BusUnavailable):  # this user may not publish to the inbox of the reply
                await bus.request("allowed.q", b"", 0.2)

    asyncio.run(scenario())


def test_tls_cannot_be_stripped(private_nats: MakeServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        server = private_nats('authorization { user: agent, password: "s3cret" }')
        password = tmp_path / "password"
        password.write_text("s3cret")
        url = server.url.replace("nats://", "tls://")
        bus = NatsBus(NatsKnobs(servers=(url,), user="agent", password_file=str(password)), name="agent")
        async with connected(bus) as connections:
            assert connections == []
            assert "TLS" in bus.last_error

    asyncio.run(scenario())


def test_a_server_of_another_protocol_is_reported() -> None:
    async def scenario() -> None:
        async def send_garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\xff\xfe garbage\r\n" * 10)
            writer.close()

        listener = await asyncio.start_server(send_garbage, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        bus = NatsBus(NatsKnobs(servers=(f"nats://127.0.0.1:{port}",)), name="faults")
        async with connected(bus) as connections:
            assert connections == []
            assert bus.last_error
        listener.close()
        await listener.wait_closed()

    asyncio.run(scenario())


def test_a_server_that_sends_nothing_is_reported() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            bus = NatsBus(NatsKnobs(servers=(f"nats://127.0.0.1:{port}",)), name="faults")
            async with connected(bus) as connections:
                assert connections == []
                assert bus.last_error

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "knobs",
    [
        NatsKnobs(user="agent"),
        NatsKnobs(password_file="p"),  # noqa: S106
        NatsKnobs(ca_file="/nowhere/ca.pem"),
        NatsKnobs(cert_file="/nowhere/cert.pem", key_file="/nowhere/key.pem"),
        NatsKnobs(credentials_file="/nowhere/agent.creds"),
    ],
)
def test_an_invalid_configuration_is_refused(knobs: NatsKnobs) -> None:
    with pytest.raises(ConfigError):
        NatsBus(knobs, name="faults")


JWT = "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.c2ln\n------END NATS USER JWT------\n"
SEED = f"-----BEGIN USER NKEY SEED-----\nSU{'A' * 56}\n------END USER NKEY SEED------\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no user JWT"),
        ("-----BEGIN NATS USER JWT-----", "no user JWT"),
        (JWT, "no user seed"),
        (JWT + "-----BEGIN USER NKEY SEED-----\n", "no user seed"),
        ("\xff", "not a credentials file"),
    ],
)
def test_the_error_names_a_broken_credentials_file(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "agent.creds"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=problem) as raised:
        NatsBus(NatsKnobs(credentials_file=str(path)), name="faults")
    assert str(path) in str(raised.value)


def test_a_credentials_file_that_breaks_later_is_reported_without_blocking(
    private_nats: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())

    async def scenario() -> None:
        path = tmp_path / "agent.creds"
        path.write_text(JWT + SEED, "utf-8")
        bus = bus_for(knobs=NatsKnobs(servers=(private_nats().url,), credentials_file=str(path)))
        path.write_text("", "utf-8")
        async with asyncio.timeout(10), connected(bus):
            assert "holds no user JWT" in bus.last_error

    asyncio.run(scenario())
