"""Outages of what sources read: healthy workers that are heard one by one afterwards stay registered."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import pytest

from loadline.adapters.grpc_calls import GrpcCalls
from loadline.adapters.http_reader import HttpReader, PageUnavailable
from loadline.adapters.redis_reader import RedisReader
from loadline.client.resources import running
from loadline.errors import StoreUnavailable
from loadline.sources.dynamo import DynamoSource
from loadline.sources.dynamo_config import DynamoKnobs, DynamoPoolKnobs
from loadline.sources.llumnix import METADATA_PREFIX, STATUS_PREFIX, LlumnixSource
from loadline.sources.llumnix_config import LlumnixKnobs, LlumnixPoolKnobs
from loadline.sources.prometheus import _PoolSource
from loadline.sources.prometheus_config import PrometheusKnobs, PrometheusPoolKnobs
from loadline.sources.workers import SourcedWorkers
from tests.support.memory import MemoryBus, MemoryStore
from tests.support.sources import envelope, idle_pass
from tests.support.virtual_time import run_virtual
from tests.unit.sources.test_llumnix_status import metadata, status


def names(workers: SourcedWorkers) -> list[str]:
    return sorted(worker for _, _, worker in workers.names)


def sourced(knobs: DynamoKnobs | LlumnixKnobs | PrometheusKnobs) -> SourcedWorkers:
    clock = asyncio.get_running_loop().time
    return SourcedWorkers(knobs, "source", bus=MemoryBus(), store=MemoryStore(), clock=clock)


def test_engines_of_dynamo_that_reconnect_one_by_one_stay() -> None:
    pool = DynamoPoolKnobs(model="m", name="p", role="decode", component="backend")
    knobs, all_engines = DynamoKnobs(pools=(pool,)), [f"w{number}" for number in range(8)]

    async def scenario() -> None:
        async with sourced(knobs) as workers:
            source = DynamoSource(knobs, workers)

            async def beat(engines: Sequence[str]) -> None:
                for engine in engines:
                    source._on_envelope(pool, "subject", envelope(idle_pass(engine)))
                await asyncio.sleep(1)

            async with running(source.run(asyncio.Event()), "source"):
                for _ in range(5):
                    await beat(all_engines)
                await asyncio.sleep(15)
                for count in range(1, 8):
                    await beat(all_engines[:count])
                    assert names(workers) == all_engines, count
                for _ in range(5):
                    await beat(all_engines[:7])
                assert names(workers) == all_engines[:7], "one did not come back"

    run_virtual(scenario())


def test_a_lost_engine_of_dynamo_leaves_although_the_plane_is_silent_now_and_then() -> None:
    """Of 9 s, 6 are silent: a lost engine is judged by the time in which others are heard."""
    pool = DynamoPoolKnobs(model="m", name="p", role="decode", component="backend")
    knobs = DynamoKnobs(pools=(pool,))

    async def scenario() -> None:
        async with sourced(knobs) as workers:
            source = DynamoSource(knobs, workers)
            async with running(source.run(asyncio.Event()), "source"):
                source._on_envelope(pool, "subject", envelope(idle_pass("lost")))
                for silent_s in (5, 5, 5, 0):
                    assert "lost" in names(workers), "lost_after_s is 10"
                    for _ in range(4):
                        source._on_envelope(pool, "subject", envelope(idle_pass("live")))
                        await asyncio.sleep(1)
                    await asyncio.sleep(silent_s)
                assert names(workers) == ["live"]

    run_virtual(scenario())


class Redis:
    """Llumnix's store, which may be away."""

    def __init__(self, engines: Sequence[str]) -> None:
        self.is_away = False
        self.stored = {METADATA_PREFIX + name: metadata(instance_id=name) for name in engines}
        self.write(*engines)

    def write(self, *engines: str) -> None:
        self.stored |= {STATUS_PREFIX + name: status() for name in engines}

    async def keys(self, prefix: str) -> list[str]:
        return [key for key in self.stored if key.startswith(prefix)]

    async def values(self, keys: Sequence[str]) -> list[bytes | None]:
        if self.is_away:
            raise StoreUnavailable("refused")
        return [self.stored.get(key) for key in keys]


@asynccontextmanager
async def llumnix(*engines: str) -> AsyncIterator[tuple[Redis, SourcedWorkers]]:
    """Run the source for five seconds in which it finds the engines."""
    knobs = LlumnixKnobs(pools=(LlumnixPoolKnobs(model="m", name="p", role="decode", instance_type="decode"),))
    redis, calls = Redis(engines), GrpcCalls(1, 1.0)
    async with sourced(knobs) as workers:
        source = LlumnixSource(knobs, workers, cast("RedisReader", redis), calls)
        async with running(source.run(asyncio.Event()), "source"):
            await asyncio.sleep(5)
            yield redis, workers
    await calls.close()


@pytest.mark.parametrize("is_away", [True, False], ids=["restarted", "emptied"])
def test_engines_of_llumnix_that_write_their_keys_again_one_by_one_stay(*, is_away: bool) -> None:
    async def scenario() -> None:
        async with llumnix("busy", "idle") as (redis, workers):
            for name in ("busy", "idle"):
                del redis.stored[STATUS_PREFIX + name]
            redis.is_away = is_away
            await asyncio.sleep(60)
            redis.is_away = False
            redis.write("busy")
            await asyncio.sleep(40)
            assert names(workers) == ["busy", "idle"], "an idle engine writes every 30 s"
            await asyncio.sleep(30)
            assert names(workers) == ["busy"], "one did not come back"

    run_virtual(scenario())


def test_a_lost_engine_of_llumnix_leaves_although_a_poll_fails_now_and_then() -> None:
    async def scenario() -> None:
        async with llumnix("live", "lost") as (redis, workers):
            del redis.stored[STATUS_PREFIX + "lost"]
            for second in range(60):
                redis.is_away = second % 20 == 0
                await asyncio.sleep(1)
            assert names(workers) == ["live"]

    run_virtual(scenario())


class Scraped:
    """The API of a Prometheus that reads the pods of two pools in turn."""

    def __init__(self, interval_s: int, window_s: int) -> None:
        self.times_s: dict[str, list[float]] = {f"{pool}{number}": [] for number in range(3) for pool in "pq"}
        self.window_s = window_s
        self.interval_s = interval_s
        self.now_s = 1_000
        self.answers = True

    def second(self, dead: str = "") -> None:
        """Read the pods that are due, except those whose pool or name begins so."""
        self.now_s += 1
        for number, (pod, times_s) in enumerate(self.times_s.items()):
            is_due = (self.now_s - number * self.interval_s // 6) % self.interval_s == 0
            if is_due and not (dead and pod.startswith(tuple(dead.split(",")))):
                times_s.append(self.now_s)

    async def get(self, _url: str, parameters: Mapping[str, str]) -> bytes:
        if not self.answers:
            raise PageUnavailable("unavailable", "refused")
        result = []
        for pod, times_s in self.times_s.items():
            recent = [at_s for at_s in times_s if at_s > self.now_s - self.window_s]
            for name in ("running", "waiting") if recent and f'pool="{pod[0]}"' in parameters["query"] else ():
                metric = {"__name__": f"vllm:num_requests_{name}", "pod": pod, "instance": pod}
                result.append({"metric": metric, "values": [[at_s, "0"] for at_s in recent]})
        return msgspec.json.encode({"status": "success", "data": {"resultType": "matrix", "result": result}})


@pytest.mark.parametrize(("interval_s", "window_s", "answers"), [(15, 60, True), (60, 120, False)])
def test_engines_that_prometheus_reads_again_one_by_one_stay(interval_s: int, window_s: int, *, answers: bool) -> None:
    """Scrapes failed for 100 s, or Prometheus was away for 140 s and reads every 60 s: 5 and 2 of 6 were removed."""
    pools = [
        PrometheusPoolKnobs(model="m", name=name, role="decode", engine="vllm", selector=f'pool="{name}"')
        for name in "pq"
    ]
    knobs = PrometheusKnobs(pools=tuple(pools), max_age_s=window_s)

    async def scenario() -> None:
        prometheus = Scraped(interval_s, window_s)
        async with sourced(knobs) as workers:
            found = set[tuple[str, str]]()
            pages, bus = cast("HttpReader", prometheus), MemoryBus()
            sources = [_PoolSource(pool, knobs, pages, workers, bus, with_series=found) for pool in pools]

            async def run(seconds: int, dead: str = "") -> None:
                for _ in range(seconds):
                    prometheus.second(dead)
                    for source in sources:
                        await source.poll()
                    await asyncio.sleep(1)

            await run(2 * interval_s)
            everybody = sorted(prometheus.times_s)
            assert names(workers) == everybody
            prometheus.answers = answers
            await run(140, dead="p,q")
            prometheus.answers = True
            for _ in range(4 * interval_s):
                await run(1)
                assert names(workers) == everybody
            await run(2 * window_s + 60, dead="p,q2")
            assert names(workers) == ["q0", "q1"], "a pool that has ended"

    run_virtual(scenario())
