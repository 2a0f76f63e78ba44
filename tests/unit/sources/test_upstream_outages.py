"""Outages of what sources read: healthy workers that are heard one by one afterwards stay registered."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from loadline.adapters.grpc_calls import GrpcCalls
from loadline.adapters.redis_reader import RedisReader
from loadline.client.resources import running
from loadline.errors import StoreUnavailable
from loadline.sources.dynamo import DynamoSource
from loadline.sources.dynamo_config import DynamoKnobs, DynamoPoolKnobs
from loadline.sources.llumnix import METADATA_PREFIX, STATUS_PREFIX, LlumnixSource
from loadline.sources.llumnix_config import LlumnixKnobs, LlumnixPoolKnobs
from loadline.sources.workers import SourcedWorkers
from tests.support.memory import MemoryBus, MemoryStore
from tests.support.sources import envelope, idle_pass
from tests.support.virtual_time import run_virtual
from tests.unit.sources.test_llumnix_status import metadata, status


def names(workers: SourcedWorkers) -> list[str]:
    return sorted(worker for _, _, worker in workers.names)


def sourced(knobs: DynamoKnobs | LlumnixKnobs) -> SourcedWorkers:
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


@pytest.mark.parametrize("is_away", [True, False], ids=["restarted", "emptied"])
def test_engines_of_llumnix_that_write_their_keys_again_one_by_one_stay(*, is_away: bool) -> None:
    knobs = LlumnixKnobs(pools=(LlumnixPoolKnobs(model="m", name="p", role="decode", instance_type="decode"),))

    async def scenario() -> None:
        redis, calls = Redis(["busy", "idle"]), GrpcCalls(1, 1.0)
        async with sourced(knobs) as workers:
            source = LlumnixSource(knobs, workers, cast("RedisReader", redis), calls)
            async with running(source.run(asyncio.Event()), "source"):
                await asyncio.sleep(5)
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
        await calls.close()

    run_virtual(scenario())


def test_a_lost_engine_of_llumnix_leaves_although_a_poll_fails_now_and_then() -> None:
    knobs = LlumnixKnobs(pools=(LlumnixPoolKnobs(model="m", name="p", role="decode", instance_type="decode"),))

    async def scenario() -> None:
        redis, calls = Redis(["live", "lost"]), GrpcCalls(1, 1.0)
        async with sourced(knobs) as workers:
            source = LlumnixSource(knobs, workers, cast("RedisReader", redis), calls)
            async with running(source.run(asyncio.Event()), "source"):
                await asyncio.sleep(5)
                del redis.stored[STATUS_PREFIX + "lost"]
                for second in range(60):
                    redis.is_away = second % 20 == 0
                    await asyncio.sleep(1)
                assert names(workers) == ["live"]
        await calls.close()

    run_virtual(scenario())
