"""Private parts of nats-py: all are there today, and a version without one is noticed."""

import asyncio
from collections.abc import Iterator

import nats.errors
import pytest
from nats.aio.client import Client

from loadline.adapters.nats_client import NatsClient, missing_parts


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    missing_parts.cache_clear()
    yield
    missing_parts.cache_clear()


def test_this_version_has_all_parts() -> None:
    assert missing_parts() == ()


async def other_parameters(_self: Client, _message: object) -> None:
    pass


def test_a_part_with_other_parameters_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_process_msg", other_parameters)
    assert missing_parts() == ("_process_msg",)


def test_a_login_is_not_sent_if_nothing_checks_for_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Client, "_connect_command")
    assert missing_parts() == ("_connect_command",)
    client = NatsClient(tls_only=True, read_pause_s=0.0, on_dropped=lambda _count: None)
    with pytest.raises(nats.errors.Error, match="without TLS"):
        asyncio.run(client.connect(servers=["tls://127.0.0.1:1"]))


def test_a_client_whose_connection_never_began_can_be_closed() -> None:
    async def scenario() -> None:
        client = NatsClient(tls_only=False, read_pause_s=0.0, on_dropped=lambda _count: None)
        await client.close_or_abort()

    asyncio.run(scenario())
