"""Pools that a reload removes: their counts and drains go on if they are configured again within their start deadline.

A role that changes removes a pool and configures it again at once. The scaler of a removed pool keeps its replicas:
decided on the workers that are ready, the pool would be cut to these, and workers that drain would count as ready.
"""

from loadline.core.fleet.pool import Pool
from loadline.core.handlers import decisions, drains
from loadline.core.handlers.turn import Turn
from loadline.core.state.agent_state import AgentState
from loadline.core.state.model_state import ModelState, RemovedPool
from loadline.core.vocabulary.decisions import Victim


def keep(turn: Turn, model: ModelState, pool: Pool) -> None:
    """Keep the count and the drains of a pool that is removed; a pool without a decision has none."""
    state = turn.state
    if pool.decided is None:
        return
    begun = [
        drain
        for drain in state.drains.open.values()
        if (drain.model, drain.pool) == (model.name, pool.name) and not drain.held
    ]
    until_ms = turn.now + pool.knobs.start_deadline_ms
    replicas = _replicas(state, model, pool)
    model.removed_pools[pool.name] = RemovedPool(replicas, begun, until_ms, state.leadership.epoch)


def restore(turn: Turn) -> None:
    """Restore the pools that are configured again; forget the others after their start deadlines.

    Only on the leader: others do not know whether the counts are the present ones until they read the decisions.
    Victims of the decision in force whose pool was not configured, or had another role, drain on, too.
    """
    state = turn.state
    if not (state.leading and state.decisions_read):
        return
    for model in state.fleet.models.values():
        removed, model.removed_pools = model.removed_pools, {}
        for name, one in removed.items():
            pool = model.pools.get(name)
            if turn.now < one.until_ms and pool is None:
                model.removed_pools[name] = one
            elif turn.now < one.until_ms and pool is not None and pool.decided is None:
                _restore(turn, model, pool, one)
        decisions.adopt_in_new_pools(turn, model.name)  # those that another leader has decided on
    drains.resume_drains(turn)


def forget(model: ModelState, epoch: int) -> None:
    """Forget the removed pools of a model for which another leader has decided since, in a term of its own."""
    model.removed_pools = {name: one for name, one in model.removed_pools.items() if one.epoch == epoch}


def _restore(turn: Turn, model: ModelState, pool: Pool, removed: RemovedPool) -> None:
    state = turn.state
    pool.reset_decided(removed.replicas, turn.now)
    model.reconcile = True  # a decision without the pool may be in force, and the next leader knows that only
    for drain in removed.drains:
        victim = Victim(drain.worker, drain.incarnation)
        state.drains.start(state.fleet, model.name, pool.name, victim, drain.drain_id, turn.now)


def _replicas(state: AgentState, model: ModelState, pool: Pool) -> int:
    """Return the count that the scaler of a pool keeps: before a decision is accepted, it may be the former one."""
    entry, decided = state.ledger.entries.get(model.name), pool.decided or 0
    if entry is None or entry.decision is None or entry.state != "committed":
        return decided
    return max([decided, *(target.previous for target in entry.decision.targets if target.pool == pool.name)])
