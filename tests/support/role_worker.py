"""Worker process without an engine that takes the other role when it is told to.

python -m tests.support.role_worker NATS ETCD FOLDER POOL WORKER
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.wire.messages import DrainCommand

_ROLES: Final[tuple[Role, Role]] = ("prefill", "decode")


async def serve(nats: str, etcd: str, folder: str, pool: str, worker: str) -> None:
    """Serve until drained: in ``pool``, and once the file ``FOLDER/WORKER`` exists in the pool of the other role."""
    role, other = _ROLES if pool == _ROLES[0] else _ROLES[::-1]
    record = WorkerRecord("m", pool, worker, role, time.time_ns() // 1_000_000)
    order = Path(folder) / worker

    def sample() -> WorkerSample:
        # A worker that has moved has the least work, so it is the first victim.
        return WorkerSample(
            0, 0, kv_usage_ratio=0.5, waiting_requests=0, running_requests=0 if client.record.home_pool else 4
        )

    async def empty(_command: DrainCommand) -> None:
        """Return at once: there are no requests."""

    async with (
        asyncio.timeout(120),
        WorkerClient(
            record,
            nats=NatsKnobs(servers=(nats,)),
            etcd=EtcdKnobs(endpoints=(etcd,)),
            sample=sample,
            on_drain=empty,
            report_interval_ms=100,
        ) as client,
    ):
        await client.ready()
        while not client.drained.is_set():
            if order.exists() and client.record.pool == pool:
                await client.move(other, other)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:6]))
