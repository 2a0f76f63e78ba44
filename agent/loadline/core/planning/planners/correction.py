"""How the engines differ from their profiles, by what requests have seen.

In a ramp the fleet is not what it was when requests waited, and the factors would chase it. So they are learned only
from intervals in which no pool changed, no worker was on its way and the load was that of the interval before, by half
a step at a time, and within bounds.
"""

import math
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.belief.fleet import Model
from loadline.core.belief.pool import Pool
from loadline.core.belief.totals import Totals
from loadline.core.models import replicas

MOST: Final = 4.0
"""A profile that is further off is of another engine."""
_STEADY: Final = 0.05
"""The load of two intervals is the same if it differs by this share of it, or by no more than chance explains."""
_SIGMAS: Final = 2.0


class Correction(Struct):
    """Observed latency by the profile's; 1 where nothing was learned."""

    prefill: float = 1.0
    decode: float = 1.0
    arrivals: int = 0
    """Of the interval before."""

    def note(self, model: Model, had: Totals, interval_ms: int, now: int) -> None:
        """Learn from an interval, where it can be learned from."""
        pools = list(model.pools.values())
        before, self.arrivals = self.arrivals, had.arrivals
        most, chance = max(before, had.arrivals), _SIGMAS * math.sqrt(before + had.arrivals)
        if abs(had.arrivals - before) > max(_STEADY * most, chance):
            return
        if any(_unsteady(pool, now - interval_ms, now) for pool in pools):
            return
        for pool in pools:
            if pool.knobs.role != "decode":
                self.prefill = _halfway(self.prefill, _prefill(pool, had))
            if pool.knobs.role != "prefill":
                self.decode = _halfway(self.decode, _decode(pool, had, interval_ms))


def _unsteady(pool: Pool, since_ms: int, now: int) -> bool:
    supply = pool.supply(now)
    changed_ms = max(pool.grown_at_ms, pool.shrunk_at_ms, pool.ready_changed_at_ms)
    return changed_ms >= since_ms or supply.starting + supply.pending > 0


def _halfway(before: float, seen: float) -> float:
    return before + (min(max(seen, 1.0 / MOST), MOST) - before) / 2.0


def _prefill(pool: Pool, had: Totals) -> float:
    model, isl, ttft_ms = pool.engine.prefill_model(pool.knobs.gpus_per_worker), had.isl_tokens.value, had.ttft_ms.value
    if model is None or isl is None or ttft_ms is None:
        return 1.0
    computed = replicas.computed_isl(isl, had.kv_hit_rate)
    return replicas.correction(ttft_ms, float(model.ttft_ms(np.asarray(computed))))


def _decode(pool: Pool, had: Totals, interval_ms: int) -> float:
    model, isl, osl = pool.engine.decode_model(pool.knobs.gpus_per_worker), had.isl_tokens.value, had.osl_tokens.value
    itl_ms = had.itl_ms.value
    if model is None or isl is None or osl is None or itl_ms is None:
        return 1.0
    context = isl + osl / 2.0
    batch = replicas.concurrency(had.arrivals, pool.ready, osl * itl_ms, interval_ms)
    usage = np.asarray(min(1.0, batch * context / model.max_kv_tokens))
    return replicas.correction(itl_ms, float(model.itl_ms(usage, np.asarray(context))))
