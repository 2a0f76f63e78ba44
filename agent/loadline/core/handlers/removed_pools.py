"""Pools that a reload removes: their counts and drains go on if they are configured again within their start deadline.

A role that changes removes a pool and configures it again at once. The scaler of a removed pool keeps its replicas:
decided on the workers that are ready, the pool would be cut to these, and workers that drain would count as ready.
"""

from loadline.core.fleet.pool import Pool
from loadline.core.handlers.turn import Turn
from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import ModelState, RemovedPool
from loadline.core.vocabulary.decisions import Victim


def keep(turn: Turn, model: ModelState, pool: Pool) -> None:
    """Keep the count and the drains of a pool that is removed; a pool without a decision has none."""
    if pool.desired is not None:
        drains = [
            drain
            for drain in turn.state.drains.open.values()
            if (drain.model, drain.pool) == (model.name, pool.name) and not drain.held
        ]
        until_ms = turn.now + pool.knobs.start_deadline_ms
        model.removed_pools[pool.name] = RemovedPool(_replicas(turn.state, model, pool), drains, until_ms)


def restore(turn: Turn, model: ModelState) -> None:
    """Restore the pools that are configured again; the others are forgotten after their start deadlines."""
    state, removed, model.removed_pools = turn.state, model.removed_pools, {}
    for name, one in removed.items():
        pool = model.pools.get(name)
        if turn.now >= one.until_ms:
            continue
        if pool is None:
            model.removed_pools[name] = one
            continue
        pool.reset_desired(one.replicas, turn.now)
        model.reconcile = True  # a decision without the pool may be in force, and the next leader knows that only
        for drain in one.drains if state.leading else ():
            victim = Victim(drain.worker, drain.incarnation)
            state.drains.start(state.fleet, model.name, name, victim, drain.drain_id, turn.now)


def _replicas(state: AgentState, model: ModelState, pool: Pool) -> int:
    """Return the count that the scaler of a pool keeps: before a decision is accepted, it may be the former one."""
    entry, desired = state.ledger.entries.get(model.name), pool.desired or 0
    if entry is None or entry.decision is None or entry.state != "committed":
        return desired
    return max([desired, *(target.previous for target in entry.decision.targets if target.pool == pool.name)])
