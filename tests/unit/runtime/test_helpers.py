"""Tasks beside the turns of an agent: failures are logged, and some end the agent."""

import asyncio

import pytest
from structlog.testing import capture_logs

from loadline.app import Agent
from loadline.config import parse
from loadline.runtime.helpers import Helpers
from loadline.runtime.service import Service
from tests.waiting import SCENARIO_S, until

CONFIG = """
agent.name = "a"
http.port = 0
nats.servers = ["nats://127.0.0.1:1"]
etcd.endpoints = ["http://127.0.0.1:1"]
[[models]]
name = "m"
[[models.pools]]
name = "pool"
role = "aggregated"
"""


async def fail() -> None:
    raise RuntimeError("the disk is gone")


def test_a_task_that_fails_is_logged_at_once_and_the_others_go_on() -> None:
    stops: list[str] = []

    async def scenario() -> None:
        ended = asyncio.Event()

        async def last() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        helpers = Helpers(lambda: stops.append("stop"))
        helpers.start("reload", fail())
        helpers.start("page", last())
        await until(lambda: bool(logs))
        assert not ended.is_set()
        helpers.check()
        await helpers.cancel()
        assert ended.is_set()

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(log["event"], log["task"], log["detail"]) for log in logs] == [
        ("task_failed", "reload", "RuntimeError('the disk is gone')")
    ]
    assert not stops


def test_an_agent_that_operators_cannot_reach_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "serve", lambda _service: fail())

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S):
            await Agent(parse(CONFIG, "test")).run()

    with capture_logs() as logs, pytest.raises(RuntimeError, match="the disk is gone"):
        asyncio.run(scenario())
    assert [log["event"] for log in logs if log["event"] in {"task_failed", "stopped"}] == ["task_failed", "stopped"]
