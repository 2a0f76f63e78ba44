"""Cause of the queue of a decode pool: full batches, or prompts that prefill workers have not computed yet."""

from typing import Final

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import MICRO, WorkerState

QUEUE_MAX: Final = 4
"""Waiting requests of a worker that are no queue."""
_FULL: Final = 0.9
"""Occupied part of batch slots or KV cache from which on a pool is full."""


def waits_for_prefill(model: Model, pool: Pool) -> bool:
    """Return True if most of the requests that wait at a pool may wait for prefill workers.

    They do where their own decode worker has room: other workers may be empty because they have just started. Where
    workers do not register ``max_batch_requests``, or do not report KV usage, they may as long as prefill workers have
    a queue.
    """
    if pool.knobs.role != "decode" or not pool.load.waiting:
        return False
    counted = [worker for worker in pool.workers.values() if worker.counted]
    with_room = sum(worker.load.waiting for worker in counted if worker.load.waiting and _has_room(worker))
    if 2 * with_room <= pool.load.waiting:
        return False
    if all(worker.record.max_batch_requests and worker.load.kv_reporting for worker in counted):
        return True
    others = (one for one in model.pools.values() if one.knobs.role == "prefill")
    return any(one.load.waiting > QUEUE_MAX * one.fresh for one in others)


def _has_room(worker: WorkerState) -> bool:
    """Return False if batch slots or KV cache of a worker are full, as far as they are known."""
    slots, load = (worker.record.max_batch_requests or 0) * len(worker.latest), worker.load
    is_full = load.running >= _FULL * slots > 0 or load.kv_micro >= _FULL * load.kv_reporting * MICRO > 0
    return not is_full
