"""Counts of the workers that serve in another pool than the one whose scaler started them.

A decision has the count of each scaler: the workers that were started in a pool, wherever they serve. So a worker that
moves changes no decision, and one that ends is replaced where it was started; the targets of both pools follow it.
"""

from collections import Counter
from collections.abc import Mapping

from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.decisions import Decision, Victim


def count_moved(pools: Mapping[str, Pool], pool: Pool, worker: WorkerState, home: str) -> list[Pool]:
    """Count a worker of ``pool`` as moved from its pool ``home``; empty, or not configured: as one that has not.

    Returns:
        The pools whose target has changed. Call ``update_requests`` of each once its workers are counted too: where
        both change in one step, there is no surplus and no missing worker for a moment.
    """
    home = home if home in pools else ""
    before, worker.counted_from = worker.counted_from, home
    changed = {name: step for name, step in ((before, -1), (home, 1)) if name and home != before}
    for name, step in changed.items():
        pool.moved_in += step
        pools[name].moved_out += step
    return [pool, *(pools[name] for name in changed)] if changed else []


def recount_moved(pools: Mapping[str, Pool], now: int) -> None:
    """Count all moved workers again, after pools were added or removed."""
    for pool in pools.values():
        pool.moved_in = pool.moved_out = 0
        for worker in pool.workers.values():
            worker.counted_from = ""
    for pool in pools.values():
        for worker in pool.workers.values():
            count_moved(pools, pool, worker, worker.moved_from)
    for pool in pools.values():
        pool.update_requests(now)


def moves_ended_by(decision: Decision, pools: Mapping[str, Pool]) -> Counter[str]:
    """Return the changes of ``Pool.moved`` by pool as the victims of a decision begin to drain."""
    changes: Counter[str] = Counter()
    arrived = [worker for pool in pools.values() if pool.moved_in for worker in pool.workers.values()]
    victims = {(target.pool, victim) for target in decision.targets for victim in target.victims if arrived}
    for worker in arrived:
        record = worker.record
        if (worker.counted_from, Victim(record.worker, record.incarnation)) in victims:
            changes[worker.counted_from] += 1
            changes[record.pool] -= 1
    return changes


def home_of(pools: Mapping[str, Pool], worker: WorkerState) -> str:
    """Return the pool whose scaler started a worker; the pool in which it serves if that one is not configured."""
    record = worker.record
    return record.home if record.home in pools else record.pool


def started_in(pools: Mapping[str, Pool], name: str) -> list[WorkerState]:
    """Return the workers that the scaler of a pool started, wherever they serve."""
    return [worker for pool in pools.values() for worker in pool.workers.values() if home_of(pools, worker) == name]
