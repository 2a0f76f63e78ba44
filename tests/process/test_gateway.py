"""The command `loadline gateway` with real NATS and etcd."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.samples import WorkerSample
from loadline.wire.messages import DrainCommand
from tests.support.client_rig import agent_at
from tests.support.fake_engine import FakeEngine, greedy
from tests.support.gateway_rig import MODEL, record
from tests.waiting import until

pytestmark = pytest.mark.process


@asynccontextmanager
async def gateway_at(nats_url: str, etcd_url: str, name: str, *more: str) -> AsyncIterator[str]:
    """Run the command on a free port; yield its URL."""
    servers = ("--nats", nats_url, "--etcd", etcd_url, "--root", name, "--namespace", name)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "loadline", "gateway", "--model", MODEL, "--listen", "127.0.0.1:0", *servers, *more),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        assert line.startswith("serves tiny at http://127.0.0.1:")
        yield line.split()[-1]
    finally:
        process.terminate()
        assert await process.wait() == 0


def test_requests_wait_for_the_first_worker_and_are_reported(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def drain(_command: DrainCommand) -> None:
        return

    async def scenario() -> None:
        async with (
            agent_at(nats_url, etcd_url, own_name) as agent,
            FakeEngine() as engine,
            aiohttp.ClientSession() as session,
            gateway_at(nats_url, etcd_url, own_name, "--ttft-ms", "60000", "--itl-ms", "60000") as url,
        ):
            body = {"model": MODEL, "prompt": "abc", "max_tokens": 30, "ignore_eos": True}
            asked = asyncio.create_task(session.post(url + "/v1/completions", json=body))
            await until(lambda: any(one.sample.queued == 1 for one in agent.traffic), "it waits")
            worker = WorkerClient(
                record("w", engine.address),
                nats=NatsKnobs(servers=(nats_url,)),
                etcd=EtcdKnobs(endpoints=(etcd_url,)),
                root=own_name,
                namespace=own_name,
                sample=lambda: WorkerSample(0, 0, waiting_requests=0, running_requests=0),
                on_drain=drain,
            )
            async with worker:
                await worker.ready()
                async with await asked as answer:
                    assert (await answer.json())["choices"][0]["text"] == greedy("abc", 30, ignore_eos=True)[0]
                await until(lambda: any(one.sample.completed == 1 for one in agent.traffic), "it is reported")
            done = next(one.sample for one in agent.traffic if one.sample.completed == 1)
            assert (done.osl_tokens, done.ttft_met, done.itl_met, done.both_met) == (30, 1, 1, 1)
            assert sum(one.sample.arrivals for one in agent.traffic) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "no model is named"),
        (("--model", "m", "--ttft-ms", "5"), "has no effect without --itl-ms"),
        (("--model", "m", "--nats", "http://x"), "is not nats:// or tls://"),
    ],
)
def test_bad_options_are_refused_by_name(options: tuple[str, ...], says: str) -> None:
    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadline", "gateway", *options), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        assert process.returncode != 0
        assert says in errors.decode()

    asyncio.run(scenario())
