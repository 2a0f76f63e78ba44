"""Source of Llumnix's engines: registers them, reports their load, and carries out migrate commands.

Llumnix's engines store their description and status in Redis only, so this source registers them with the agent. Run it
in place of Llumnix's component that migrates.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final

from msgspec import Struct

from loadline.adapters.grpc_calls import GrpcCalls
from loadline.adapters.logs import bounded
from loadline.adapters.redis_reader import RedisReader
from loadline.client.resources import wait_at_most
from loadline.errors import StoreUnavailable
from loadline.sources.llumnix_config import LlumnixKnobs, LlumnixPoolKnobs
from loadline.sources.llumnix_messages import read_instance, read_status
from loadline.sources.llumnix_migrations import Engine, LlumnixMigrations
from loadline.sources.llumnix_status import LlumnixInstance
from loadline.sources.upstream import Upstream
from loadline.sources.workers import LatestSamples, SourcedWorkers
from loadline.wire.codec import Rejected

METADATA_PREFIX: Final = "llumnix:instance_metadata:"
STATUS_PREFIX: Final = "llumnix:instance_status:"

_log = bounded("source")


class _Known(Struct):
    """An engine whose description was read."""

    pool: LlumnixPoolKnobs
    instance: LlumnixInstance


class LlumnixSource:
    """Poller of Redis.

    Args:
        knobs: The configuration.
        workers: The registered workers.
        redis: Connection to Llumnix's store.
        calls: Connections to llumlets.
    """

    def __init__(self, knobs: LlumnixKnobs, workers: SourcedWorkers, redis: RedisReader, calls: GrpcCalls) -> None:
        self._knobs = knobs
        self._workers = workers
        self._redis = redis
        self._pools = {pool.instance_type: pool for pool in knobs.pools}
        self._known: dict[str, _Known] = {}
        self._engines: dict[tuple[str, str, str], Engine] = {}
        self._migrations = LlumnixMigrations(calls, self._find, lambda: time.monotonic_ns() // 1_000_000)
        self._upstream = Upstream(knobs.redis.url)
        self._searched_s = float("-inf")

    async def run(self, stop: asyncio.Event) -> None:
        """Read Redis every interval until ``stop`` is set."""
        interval_s = self._knobs.report_interval_ms / 1_000
        while not stop.is_set():
            wait_s = interval_s
            try:
                await self._poll()
            except StoreUnavailable as error:
                self._set_away(is_away=True)
                wait_s = max(self._upstream.failed("unavailable", str(error)), interval_s)
            else:
                self._set_away(is_away=not self._engines)
                self._upstream.succeeded()
            for report in self._migrations.reports():
                await self._workers.report_migration(report)
            await wait_at_most(stop, wait_s)

    async def _poll(self) -> None:
        """Read the engines' statuses, and now and then their descriptions.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        now_s = time.monotonic()
        if now_s - self._searched_s >= self._knobs.metadata_interval_ms / 1_000:
            await self._search()
            self._searched_s = now_s
        keys = [f"{STATUS_PREFIX}{name}" for name in self._known]
        values = await self._redis.values(keys)
        self._engines = {}
        for known, key, value in zip(self._known.values(), keys, values, strict=True):
            if value is not None:
                self._put(known, key, value)

    async def _search(self) -> None:
        keys = await self._redis.keys(METADATA_PREFIX)
        found = {}
        for key, value in zip(keys, await self._redis.values(keys), strict=True):
            instance = None if value is None else read_instance(key, value)
            if isinstance(instance, Rejected):
                _log.warning("engine_refused", reason=instance.reason, key=instance.subject, detail=instance.detail)
            elif instance is not None and instance.instance_type in self._pools:
                name = key.removeprefix(METADATA_PREFIX)
                if instance.instance_id == name:
                    found[name] = _Known(self._pools[instance.instance_type], instance)
        self._known = found

    def _put(self, known: _Known, key: str, value: bytes) -> None:
        status = read_status(key, value)
        if isinstance(status, Rejected):
            _log.warning("status_refused", reason=status.reason, key=status.subject, detail=status.detail)
            return
        record = known.instance.record(known.pool)
        self._workers.heard(record, LatestSamples, self._migrations.answer)
        engine = self._workers.engine(record.names)
        if isinstance(engine, LatestSamples):
            # An idle engine stores its status every 30 s; the agent compares the times of repeated samples.
            engine.put([status.sample(known.instance.block_size or known.pool.block_size_tokens or 0)])
            self._engines[record.names] = Engine(record.pool, known.instance, status)

    def _set_away(self, *, is_away: bool) -> None:
        """Note whether Redis tells of no engine: engines write their keys again one by one after it lost them."""
        for pool in self._knobs.pools:
            self._workers.set_away(pool.model, pool.name, is_away=is_away)

    def _find(self, model: str, pool: str, worker: str) -> Engine | None:
        return self._engines.get((model, pool, worker))


async def run_llumnix(knobs: LlumnixKnobs, stop: asyncio.Event) -> None:
    """Bring Llumnix's engines to the agent, and the agent's migrations to them, until ``stop`` is set."""
    store = knobs.redis
    async with AsyncExitStack() as stack:
        redis = RedisReader(
            store.url,
            user=store.user,
            password_file=store.password_file,
            ca_file=store.ca_file,
            timeout_s=store.timeout_ms / 1_000,
        )
        stack.push_async_callback(redis.close)
        calls = GrpcCalls(knobs.grpc_pool_size, knobs.grpc_timeout_ms / 1_000)
        stack.push_async_callback(calls.close)
        workers = await stack.enter_async_context(SourcedWorkers(knobs, "loadline-source-llumnix"))
        await LlumnixSource(knobs, workers, redis, calls).run(stop)
