"""Logins by credentials files (JWT and nkey) at a real nats-server in operator mode."""

import asyncio
from pathlib import Path

import pytest

from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.rig.server_processes import NatsServer
from tests.support.nats_credentials import NatsAccount
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process
OWN, OTHER = "loadline.v1.load.llama.decode.w-1", "loadline.v1.decision.llama"


def test_credentials_log_in_and_confine_and_new_ones_are_read_again(tmp_path: Path) -> None:
    account, file = NatsAccount(), tmp_path / "worker.creds"
    NatsAccount().write_user(file, [OWN], ["_INBOX_worker.>"])  # of another operator
    heard: list[str] = []

    async def scenario(server: NatsServer) -> None:
        bus = NatsBus(NatsKnobs(servers=(server.url,), credentials_file=str(file)), name="worker")
        try:
            await bus.connect(lambda _connected: None)
            assert not bus.connected
            assert "authorization" in bus.last_error.lower()
            account.write_user(file, [OWN], ["loadline.v1.load.>"])
            await until(lambda: bus.connected, "a login with the new file")
            await bus.subscribe(OWN, lambda subject, _data: heard.append(subject))
            await bus.publish(OTHER, b"{}")
            await until(lambda: bus.denied == 1, "a refusal")
            await bus.publish(OWN, b"{}")
            await until(lambda: heard == [OWN], "its own frame")
            await bus.subscribe(OTHER, lambda subject, _data: heard.append(subject))
            await until(lambda: bus.denied == 2, "a second refusal")
        finally:
            await bus.close()

    with NatsServer(tmp_path / "server", account.server_config) as server:
        asyncio.run(asyncio.wait_for(scenario(server), SCENARIO_S))
