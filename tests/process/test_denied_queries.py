"""Commands with the login of a role that may not send queries, on a real nats-server."""

import asyncio
from pathlib import Path

import pytest

from loadline.cli.remote import Target, ask, connected
from loadline.errors import LoadlineError
from loadline.wire.messages import OperatorReply
from tests.support.secured import nats_login, secured_nats

pytestmark = pytest.mark.process


@pytest.mark.parametrize("role", ["worker-llama-aggregated", "scaler-llama"])
def test_a_command_whose_login_may_send_no_query_says_so(tmp_path: Path, role: str) -> None:

    async def scenario() -> None:
        with secured_nats(tmp_path / "server") as server:
            target = Target(nats_login(server, role, tmp_path), "loadline", "")
            async with connected(target) as bus:
                await ask(bus, target, "pause", b"{}", OperatorReply)

    with pytest.raises(LoadlineError, match=r"refuses a request on loadline\.v1\.api\.pause: .*permissions violation"):
        asyncio.run(scenario())
