"""Guardrails of a model that limit a scale-down to the workers that its platforms can remove."""

from collections.abc import Mapping

from loadline.core.fleet.pool import DRAINS_MAX, Pool
from loadline.core.fleet.worker import staying
from loadline.core.planning.guardrails.proposal import ModelProposal
from loadline.core.vocabulary.reasons import ReasonCode


def drain_limit(model: ModelProposal) -> None:
    """Shrink no further than ``DRAINS_MAX`` open drains allow; the rest of a scale-down follows as drains end.

    A scaler ends workers in excess of the target that are no victims, so the target waits for the victims. The GPUs of
    workers count until they have left, so that the wait exceeds no budget.
    """
    for name, pool in model.model.pools.items():
        target, room = model.proposal.targets[name], max(0, DRAINS_MAX - model.constraints.draining.get(name, 0))
        if target >= len(pool.workers) - room:
            continue  # even if all workers stay, so they need no count: a pool may have 10,000
        current = pool.effective_target(model.now)
        if target >= current:
            continue
        lowest = min(current, len(staying(pool.workers)) - room)
        if target < lowest:
            _keep(model, ReasonCode.DRAIN_LIMIT, name, lowest, drains_max=DRAINS_MAX)


def unnumbered_workers(model: ModelProposal) -> None:
    """Do not shrink a pool whose platform removes the highest number while a worker has no number in its name.

    Any worker could then be the one that is removed, so none could be drained before.
    """
    for name, pool in model.model.pools.items():
        if pool.victim_rule != "highest_ordinal":
            continue
        target, current = model.proposal.targets[name], pool.effective_target(model.now)
        if target < current:
            worker = min((name for name, worker in pool.workers.items() if worker.ordinal is None), default="")
            if worker:
                _keep(model, ReasonCode.UNNUMBERED_WORKER, name, current, worker)


def moved_workers(model: ModelProposal) -> None:
    """Do not remove a worker that serves in another pool than the one that shrinks.

    A platform with a rule of its own could remove a worker of the pool that serves in another one; and where it has
    started workers that serve here, it is not told to remove one of them.
    """
    pools = model.model.pools
    for name, pool in pools.items():
        if not (pool.moved_in or pool.moved_out):
            continue
        target, current = model.proposal.targets[name], pool.effective_target(model.now)
        if target >= current:
            continue
        lowest = current if pool.moved_out and pool.victim_rule in {"newest", "highest_ordinal"} else _kept(pool, pools)
        if target < min(lowest, current):
            _keep(model, ReasonCode.MOVED_WORKER, name, min(lowest, current))


def _kept(pool: Pool, pools: Mapping[str, Pool]) -> int:
    """Count the moved workers that a pool keeps, since a smaller count of it cannot remove them."""
    arrived = [worker for worker in pool.workers.values() if worker.counted_from]
    if not pool.can_name_victims:
        return len(arrived)
    return sum(not pools[worker.counted_from].can_name_victims for worker in arrived)


def _keep(model: ModelProposal, code: ReasonCode, pool: str, lowest: int, detail: str = "", **numbers: float) -> None:
    model.proposal.limit(code, pool, lowest, detail, **numbers)
    model.proposal.wanted[pool] = lowest
