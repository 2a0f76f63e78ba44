"""Source of NVIDIA Dynamo's forward-pass metrics: registers Dynamo's workers and reports their load.

Dynamo's workers register in Dynamo's own discovery only, so this source registers them with the agent.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.logs import bounded
from loadline.adapters.nats_bus import NatsBus
from loadline.adapters.zmq_subscriber import Frames, ZmqSubscriber
from loadline.client.resources import running
from loadline.sources.dynamo_config import DynamoKnobs, DynamoPoolKnobs
from loadline.sources.dynamo_discovery import PREFIX, Publisher, Publishers
from loadline.sources.dynamo_records import (
    TOPIC,
    DynamoEngine,
    ForwardPassMetrics,
    RecordRefused,
    read_envelope,
    read_frames,
)
from loadline.sources.upstream import Upstream
from loadline.sources.workers import SourcedWorkers
from loadline.wire.subjects import decode_token, encode_token

# Worker ids are new with every start of a worker, so there is one incarnation of each.
_INCARNATION: Final = 1
# Three heartbeats of an idle engine.
_SILENT_S: Final = 3.0

_log = bounded("source")


class DynamoSource:
    """Reader of records, from any plane, for the workers of the configured pools.

    Args:
        knobs: The configuration.
        workers: The registered workers.
    """

    def __init__(self, knobs: DynamoKnobs, workers: SourcedWorkers) -> None:
        self._knobs = knobs
        self._workers = workers
        self._pools = {(pool.dynamo_namespace, pool.component): pool for pool in knobs.pools}
        self._upstream = Upstream(f"dynamo-{knobs.plane}")
        self._heard_s = asyncio.get_running_loop().time()
        self._zmq: dict[str, asyncio.Task[None]] = {}
        self._publishers_of: dict[tuple[str, str, str], set[str]] = {}
        self.refused: Counter[str] = Counter()
        """Messages that were no records, by reason."""

    async def run(self, stop: asyncio.Event) -> None:
        """Read records until ``stop`` is set."""
        async with AsyncExitStack() as stack:
            if self._knobs.plane == "nats":
                await self._listen_nats(stack)
            else:
                await self._listen_zmq(stack)
            await stack.enter_async_context(running(self._watch_silence(), "silence of Dynamo"))
            await stop.wait()

    # -- planes --------------------------------------------------------------------------------------------------------

    async def _listen_nats(self, stack: AsyncExitStack) -> None:
        bus = NatsBus(self._knobs.dynamo_nats, name="loadline-source-dynamo-events")
        stack.push_async_callback(bus.close)
        await bus.connect(lambda connected: _log.info("dynamo_nats", connected=connected))
        for (namespace, component), pool in self._pools.items():
            scope = f"namespace.{encode_token(namespace)}.component.{encode_token(component)}"
            for subject in (f"{scope}.{TOPIC}", f"{scope}.endpoint.*.{TOPIC}"):
                await bus.subscribe(subject, partial(self._on_envelope, pool))

    async def _listen_zmq(self, stack: AsyncExitStack) -> None:
        subscriber = ZmqSubscriber()
        stack.callback(subscriber.close)
        stack.push_async_callback(self._end_zmq)
        for endpoint in self._knobs.brokers:
            self._connect(subscriber, endpoint, None)
        for pool in self._knobs.pools:
            for endpoint in pool.endpoints:
                self._connect(subscriber, endpoint, pool)
        if self._knobs.discovery is not None:
            store = EtcdStore(self._knobs.discovery)
            stack.push_async_callback(store.close)
            publishers = Publishers(partial(self._update_publishers, subscriber))
            follow = store.follow(
                PREFIX,
                publishers.read,
                publishers.follow,
                lambda connected: _log.info("dynamo_discovery", connected=connected),
            )
            await stack.enter_async_context(running(follow, "discovery of Dynamo"))

    def _update_publishers(self, subscriber: ZmqSubscriber, known: set[Publisher]) -> None:
        """Connect to new publishers, and remove the workers of those that have left Dynamo's discovery."""
        pools = {one.endpoint: self._pools.get((one.namespace, one.component)) for one in known}
        listed = {*self._knobs.brokers, *(endpoint for pool in self._knobs.pools for endpoint in pool.endpoints)}
        for endpoint in sorted(set(self._zmq) - set(pools) - listed):
            self._zmq.pop(endpoint).cancel()
            self._publisher_left(endpoint)
        for endpoint, pool in sorted(pools.items()):
            if pool is not None and endpoint not in self._zmq:
                self._connect(subscriber, endpoint, pool)

    def _connect(self, subscriber: ZmqSubscriber, endpoint: str, pool: DynamoPoolKnobs | None) -> None:
        offer = partial(self._on_frames, pool, endpoint)
        task = asyncio.create_task(subscriber.receive(endpoint, offer), name=f"records of {endpoint}")
        task.add_done_callback(partial(self._receiving_ended, endpoint))
        self._zmq[endpoint] = task

    def _receiving_ended(self, endpoint: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("publisher_refused", endpoint=endpoint, detail=str(error))

    async def _end_zmq(self) -> None:
        for task in self._zmq.values():
            task.cancel()
        await asyncio.gather(*self._zmq.values(), return_exceptions=True)

    # -- records -------------------------------------------------------------------------------------------------------

    def _on_envelope(self, pool: DynamoPoolKnobs, subject: str, data: bytes) -> None:
        try:
            record = read_envelope(data)
        except RecordRefused as refused:
            self._refuse(refused, subject)
            return
        if record is not None:
            self._put(pool, record, subject)

    def _on_frames(self, pool: DynamoPoolKnobs | None, endpoint: str, frames: Frames) -> None:
        try:
            record, topic = read_frames(frames)
        except RecordRefused as refused:
            self._refuse(refused, endpoint)
            return
        owner = pool or self._pools.get(_scope(topic))
        if record is not None and owner is not None:
            self._put(owner, record, endpoint)

    def _put(self, pool: DynamoPoolKnobs, record: ForwardPassMetrics, publisher: str) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if not self._upstream.reachable:
            self._set_away(is_away=False)
            self._upstream.succeeded()
        if record.dp_rank >= pool.data_parallel_size:
            detail = f"rank {record.dp_rank} of {pool.data_parallel_size}; set data_parallel_size of pool {pool.name}"
            self._refuse(RecordRefused("rank", detail), publisher)
            return
        described = pool.record(record.worker_id, _INCARNATION)
        self._workers.heard(described, partial(DynamoEngine, described))
        engine = self._workers.engine(described.names)
        if isinstance(engine, DynamoEngine):
            engine.put(record)
            self._publishers_of.setdefault(described.names, set()).add(publisher)

    def _publisher_left(self, endpoint: str) -> None:
        for names, publishers in list(self._publishers_of.items()):
            publishers.discard(endpoint)
            if not publishers:
                del self._publishers_of[names]
                self._workers.remove(names)

    def _refuse(self, refused: RecordRefused, publisher: str) -> None:
        self.refused[refused.reason] += 1
        _log.warning("record_refused", reason=refused.reason, publisher=publisher, detail=refused.detail)

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if asyncio.get_running_loop().time() - self._heard_s > _SILENT_S and self._upstream.reachable is not False:
                self._upstream.failed("silent", "no engine has sent a record for 3 s")
                self._set_away(is_away=True)
            registered = set(self._workers.names)
            self._publishers_of = {names: one for names, one in self._publishers_of.items() if names in registered}

    def _set_away(self, *, is_away: bool) -> None:
        """Note for all workers whether the plane is silent: after its return they are heard one by one."""
        for pool in self._knobs.pools:
            self._workers.set_away(pool.model, pool.name, is_away=is_away)


def _scope(topic: str) -> tuple[str, str]:
    """Return namespace and component of a topic such as ``namespace.dynamo.component.backend.forward-pass-metrics``."""
    words = topic.split(".")
    if len(words) < 4 or words[0] != "namespace" or words[2] != "component":  # noqa: PLR2004 - two pairs of words
        return "", ""
    try:
        return decode_token(words[1]), decode_token(words[3])
    except ValueError:
        return "", ""


async def run_dynamo(knobs: DynamoKnobs, stop: asyncio.Event) -> None:
    """Bring the load of Dynamo's workers to the agent until ``stop`` is set."""
    async with SourcedWorkers(knobs, "loadline-source-dynamo") as workers:
        await DynamoSource(knobs, workers).run(stop)
