"""How the engines differ from their profiles, by what requests have seen.

In a ramp the fleet is not what it was when requests waited, and the factors would chase it. So they are learned only
from intervals in which no pool changed, no worker was on its way and the load was that of the interval before, by half
a step at a time, and within bounds.
"""

import contextlib
import math
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct

from loadline.core.engines.lengths import computed_isl
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.sizing import replicas

MOST: Final = 4.0
"""A profile that is further off is of another engine."""
_STEADY: Final = 0.05
"""The load of two intervals is the same if it differs by this share of it, or by no more than chance explains."""
_SIGMAS: Final = 2.0
_DIGITS: Final = 3
"""What is kept beyond an agent is not written anew for less than this."""
_Factor = Annotated[float, Meta(ge=1.0 / MOST, le=MOST)]


class _Factors(Struct, frozen=True):
    prefill: _Factor
    decode: _Factor


class Correction(Struct):
    """Observed latency by the profile's; 1 where nothing was learned."""

    prefill: float = 1.0
    decode: float = 1.0
    arrivals: int = 0
    """Of the interval before."""

    def export_learned(self) -> bytes | None:
        """What is worth keeping of it; None where nothing was learned."""
        factors = _Factors(round(self.prefill, _DIGITS), round(self.decode, _DIGITS))
        return None if factors == _Factors(1.0, 1.0) else msgspec.json.encode(factors)

    def import_learned(self, data: bytes) -> None:
        """Go on from what another one has learned; what cannot be read says nothing."""
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            factors = msgspec.json.decode(data, type=_Factors)
            self.prefill, self.decode = factors.prefill, factors.decode

    def note(self, model: Model, had: TrafficTotals, interval_ms: int, now: int) -> None:
        """Learn from an interval, where it can be learned from."""
        pools = list(model.pools.values())
        before, self.arrivals = self.arrivals, had.arrivals
        most, chance = max(before, had.arrivals), _SIGMAS * math.sqrt(before + had.arrivals)
        if abs(had.arrivals - before) > max(_STEADY * most, chance):
            return
        if any(_unsteady(pool, now - interval_ms, now) for pool in pools):
            return
        prefill = [pool for pool in pools if pool.knobs.role != "decode"]
        decode = [pool for pool in pools if pool.knobs.role != "prefill"]
        # Requests go to all workers of a role: one factor for them, learned once.
        ready = sum(pool.ready for pool in decode)
        ttft_ms = [(pool.ready, _ttft_ms(pool, had)) for pool in prefill]
        itl_ms = [(pool.ready, _itl_ms(pool, had, ready, interval_ms)) for pool in decode]
        self.prefill = _halfway(self.prefill, had.ttft_ms.value, ttft_ms)
        self.decode = _halfway(self.decode, had.itl_ms.value, itl_ms)


def _unsteady(pool: Pool, since_ms: int, now: int) -> bool:
    supply = pool.worker_counts(now)
    changed_ms = max(pool.scaled_up_at_ms, pool.scaled_down_at_ms, pool.ready_changed_at_ms)
    return changed_ms >= since_ms or supply.starting + supply.pending > 0


def _halfway(before: float, observed_ms: float | None, profiled: list[tuple[int, float | None]]) -> float:
    """Half of the way to what is observed by what is profiled: pairs of ready workers and of their latency in ms."""
    known = [(ready, ms) for ready, ms in profiled if ms is not None]
    workers = sum(ready for ready, _ in known)
    if observed_ms is None or workers == 0:
        seen = 1.0
    else:
        seen = replicas.correction(observed_ms, sum(ready * ms for ready, ms in known) / workers)
    return before + (min(max(seen, 1.0 / MOST), MOST) - before) / 2.0


def _ttft_ms(pool: Pool, had: TrafficTotals) -> float | None:
    """What the profile says of prompts as they were; None where it is not known."""
    model, isl = pool.engine.prefill_model(pool.knobs.gpus_per_worker), had.isl_tokens.value
    if model is None or isl is None:
        return None
    return float(model.ttft_ms(np.asarray(computed_isl(isl, had.kv_hit_rate))))


def _itl_ms(pool: Pool, had: TrafficTotals, ready: int, interval_ms: int) -> float | None:
    """What the profile says of the batch that each of ``ready`` workers had; None where it is not known."""
    model, isl, osl = pool.engine.decode_model(pool.knobs.gpus_per_worker), had.isl_tokens.value, had.osl_tokens.value
    if model is None or isl is None or osl is None or had.itl_ms.value is None:
        return None
    context = isl + osl / 2.0
    batch = replicas.concurrency(had.arrivals, ready, osl * had.itl_ms.value, interval_ms)
    usage = np.asarray(min(1.0, batch * context / model.max_kv_tokens))
    return float(model.itl_ms(usage, np.asarray(context)))
