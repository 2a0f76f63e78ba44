"""Replacement minimum: workers that must stay until those of another pool are ready."""

from collections.abc import Mapping
from math import ceil

from loadline.core.fleet.pool import Pool
from loadline.core.vocabulary.reasons import RoleDemand


def replacement_minimums(
    pools: Mapping[str, Pool], demand: RoleDemand, granted: Mapping[str, int], now: int
) -> dict[str, int]:
    """Return the minimum counts of the pools of a role that would otherwise shrink before their replacements are ready.

    With these counts, the ready workers serve as much as the granted counts will. A shrinking pool counts the ready
    workers of other pools, up to their granted counts, so two pools do not shrink in reliance on each other. A pool
    with an unknown capacity keeps all its workers until the others serve the demand.

    Args:
        pools: All pools of the model.
        demand: Demand of the role, and the capacity of one worker of each pool.
        granted: Granted counts by pool.
        now: Time in ms.
    """
    of_role = [pool for pool in pools.values() if pool.knobs.role == demand.role]
    final = {pool.name: min(granted[pool.name], pool.knobs.replicas_max) for pool in of_role}
    rates = {pool.name: demand.capacities.get(pool.name, 0.0) for pool in of_role}
    ready = {pool.name: min(pool.ready, final[pool.name]) * rates[pool.name] for pool in of_role}
    served = min(demand.demand, sum(final[name] * rate for name, rate in rates.items()))
    minimums: dict[str, int] = {}
    for pool in of_role:
        current, rate = pool.effective_target(now), rates[pool.name]
        missing = served - sum(other for name, other in ready.items() if name != pool.name)
        if missing > 0.0:
            minimum = min(current, ceil(missing / rate - 1e-9)) if rate else current
            if granted[pool.name] < minimum:
                minimums[pool.name] = minimum
    return minimums
