"""Cause of the queue of a decode pool: full batches, or prompts that prefill workers have not computed yet."""

from typing import Final

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import MICRO

QUEUE_MAX: Final = 4
"""Waiting requests of a worker that are no queue."""
_FULL: Final = 0.9
"""Occupied part of batch slots or KV cache from which on a pool is full."""


def waits_for_prefill(model: Model, pool: Pool) -> bool:
    """Return whether requests at a pool may wait for prefill workers.

    They do while a decode pool has room. Where its workers do not register ``max_batch_requests``, they may as long as
    prefill workers have a queue.
    """
    if pool.knobs.role != "decode":
        return False
    counted = [worker for worker in pool.workers.values() if worker.counted]
    slots = [(worker.record.max_batch_requests or 0) * len(worker.latest) for worker in counted]
    if all(slots):
        has_slots = pool.load.running < _FULL * sum(slots)
        return has_slots and pool.load.kv_micro < _FULL * pool.load.kv_reporting * MICRO
    others = (one for one in model.pools.values() if one.knobs.role == "prefill")
    return any(one.load.waiting > QUEUE_MAX * one.fresh for one in others)
