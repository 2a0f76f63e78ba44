"""Engine of docs/how-to/integrate-an-engine.md: each request is served once, even if a process is killed."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.documents import Document
from tests.support.migration_leader import leader_at
from tests.waiting import until

pytestmark = pytest.mark.process

DOCUMENT = Document("how-to/integrate-an-engine.md")


@pytest.mark.parametrize(
    "kill", [("", "done"), ("a", "copying"), ("b", "copying"), ("a", "switched"), ("b", "switched")], ids=" ".join
)
def test_migrated_requests_are_served_completely(
    tmp_path: Path, nats_url: str, etcd_url: str, own_name: str, kill: tuple[str, str]
) -> None:
    killed, phase = kill

    async def scenario() -> None:
        async with leader_at(nats_url, own_name) as leader:

            def running(worker: str) -> int | None:
                return leader.sample(worker).running_requests if worker in leader.loads else None

            with ExitStack() as stack:
                servers = (nats_url, etcd_url, own_name)
                workers = {
                    name: stack.enter_context(DOCUMENT.running(tmp_path, "engine", *servers, name)) for name in "ab"
                }
                await until(lambda: running("a") == running("b") == 0, "both report")
                frontend = stack.enter_context(DOCUMENT.running(tmp_path, "frontend", *servers, "a", "b"))
                await until(lambda: running("a") == 2, "two requests")
                assert (await leader.migrate("a", "b", ttl_ms=10_000)).requests == 2
                await until(lambda: phase in leader.phases(), phase)
                if killed:
                    workers[killed].kill()
                else:
                    await until(lambda: (running("a"), running("b")) == (0, 2), "both are there")
                await until(lambda: frontend.poll() is not None, "both are over")
                assert frontend.stdout is not None
                assert frontend.stdout.read().splitlines()[-2:] == ["whole", "whole"]

    asyncio.run(scenario())
