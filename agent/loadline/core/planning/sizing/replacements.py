"""Workers that stay until those of other pools that are to replace them are ready."""

from collections.abc import Mapping
from math import ceil

from loadline.core.fleet.pool import Pool
from loadline.core.vocabulary.reasons import RoleDemand


def kept_of(pools: Mapping[str, Pool], need: RoleDemand, granted: Mapping[str, int], now: int) -> dict[str, int]:
    """Workers that the pools of a role keep at ``now`` (ms), so that no less is served than will be once all are ready.

    A pool that shrinks counts the ready workers of the others, though no more of them than they are to have: two that
    shrink do not count on each other. Nor does any count on more than there may be of another. What a pool serves that
    is not in the need is not known: it stays whole until the others carry the load.

    Args:
        pools: All of the model.
        need: What is demanded of the role.
        granted: Counts that its pools are to have.
        now: In ms.
    """
    ours = [pool for pool in pools.values() if pool.knobs.role == need.role]
    most = {pool.name: min(granted[pool.name], pool.knobs.replicas_max) for pool in ours}
    rates = {pool.name: need.capacities.get(pool.name, 0.0) for pool in ours}
    ready = {pool.name: min(pool.ready, most[pool.name]) * rates[pool.name] for pool in ours}
    served = min(need.demand, sum(most[name] * each for name, each in rates.items()))
    found: dict[str, int] = {}
    for pool in ours:
        stands, each = pool.effective_target(now), rates[pool.name]
        lacking = served - sum(other for name, other in ready.items() if name != pool.name)
        if lacking > 0.0:
            kept = min(stands, ceil(lacking / each - 1e-9)) if each else stands
            if granted[pool.name] < kept:
                found[pool.name] = kept
    return found
