"""Correction factors: deviation of the engines from their profiles, learned from the latencies of requests.

During a ramp requests wait for workers that start, and the factors would follow these waits. So they are learned only
from intervals in which no pool changed, no worker was pending and the load was that of the interval before. Each step
is half of the way, and factors are bounded.
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

FACTOR_MAX: Final = 4.0
"""Largest factor, and inverse of the smallest: a profile with a larger deviation is of another engine."""
_STEADY_SHARE: Final = 0.05
"""Relative difference up to which the loads of two intervals count as equal."""
_STEADY_DEVIATIONS: Final = 2.0
"""The same in standard deviations of the number of arrivals, for low loads."""
_DIGITS: Final = 3
"""Decimals of exported factors, so that small changes are not written again."""
_Factor = Annotated[float, Meta(ge=1.0 / FACTOR_MAX, le=FACTOR_MAX)]


class _Factors(Struct, frozen=True):
    prefill: _Factor
    decode: _Factor


class Correction(Struct):
    """Observed latencies divided by the profiled ones; 1 if nothing was learned."""

    prefill: float = 1.0
    decode: float = 1.0
    arrivals: int = 0
    """Arrivals in the previous interval."""

    @property
    def by_role(self) -> dict[str, float]:
        """The factors by role."""
        return {"prefill": self.prefill, "decode": self.decode}

    def export_learned(self) -> bytes | None:
        """Return the rounded factors; None if nothing was learned."""
        factors = _Factors(round(self.prefill, _DIGITS), round(self.decode, _DIGITS))
        return None if factors == _Factors(1.0, 1.0) else msgspec.json.encode(factors)

    def import_learned(self, data: bytes) -> None:
        """Start with exported factors; unreadable ones are ignored."""
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            factors = msgspec.json.decode(data, type=_Factors)
            self.prefill, self.decode = factors.prefill, factors.decode

    def learn(self, model: Model, totals: TrafficTotals, interval_ms: int, now: int) -> None:
        """Learn from the traffic of an interval if load and pools were steady."""
        pools = list(model.pools.values())
        previous, self.arrivals = self.arrivals, totals.arrivals
        highest, deviation = max(previous, totals.arrivals), _STEADY_DEVIATIONS * math.sqrt(previous + totals.arrivals)
        if abs(totals.arrivals - previous) > max(_STEADY_SHARE * highest, deviation):
            return
        if any(_is_changing(pool, now - interval_ms, now) for pool in pools):
            return
        prefill = [pool for pool in pools if pool.knobs.role != "decode"]
        decode = [pool for pool in pools if pool.knobs.role != "prefill"]
        # Requests go to all workers of a role: one factor for them, learned once.
        ready = sum(pool.ready for pool in decode)
        ttft_ms = [(pool.ready, _profiled_ttft_ms(pool, totals)) for pool in prefill]
        itl_ms = [(pool.ready, _profiled_itl_ms(pool, totals, ready, interval_ms)) for pool in decode]
        self.prefill = _updated(self.prefill, totals.ttft_ms.value, ttft_ms)
        self.decode = _updated(self.decode, totals.itl_ms.value, itl_ms)


def _is_changing(pool: Pool, since_ms: int, now: int) -> bool:
    counts = pool.worker_counts(now)
    changed_ms = max(pool.scaled_up_at_ms, pool.scaled_down_at_ms, pool.ready_changed_at_ms)
    return changed_ms >= since_ms or counts.starting + counts.pending > 0


def _updated(factor: float, observed_ms: float | None, profiled: list[tuple[int, float | None]]) -> float:
    """Return the factor, moved half of the way to the observed one; unchanged if nothing was observed.

    Args:
        factor: Present factor.
        observed_ms: Observed latency.
        profiled: Ready workers and profiled latency in ms of each pool.
    """
    known = [(ready, ms) for ready, ms in profiled if ms is not None]
    workers = sum(ready for ready, _ in known)
    if observed_ms is None or workers == 0:
        return factor  # half an hour without a request says nothing of the engines
    observed = replicas.correction_factor(observed_ms, sum(ready * ms for ready, ms in known) / workers)
    return factor + (min(max(observed, 1.0 / FACTOR_MAX), FACTOR_MAX) - factor) / 2.0


def _profiled_ttft_ms(pool: Pool, totals: TrafficTotals) -> float | None:
    """Return the profiled TTFT of the prompts of an interval; None if unknown."""
    model, isl = pool.engine.prefill_model(pool.knobs.gpus_per_worker), totals.isl_tokens.value
    if model is None or isl is None:
        return None
    return float(model.ttft_ms(np.asarray(computed_isl(isl, totals.kv_hit_rate))))


def _profiled_itl_ms(pool: Pool, totals: TrafficTotals, ready: int, interval_ms: int) -> float | None:
    """Return the profiled ITL at the mean batch of ``ready`` workers in an interval; None if unknown."""
    model = pool.engine.decode_model(pool.knobs.gpus_per_worker)
    isl, osl = totals.isl_tokens.value, totals.osl_tokens.value
    if model is None or isl is None or osl is None or totals.itl_ms.value is None:
        return None
    context = isl + osl / 2.0
    batch = replicas.concurrency(totals.arrivals, ready, osl * totals.itl_ms.value, interval_ms)
    usage = np.asarray(min(1.0, batch * context / model.max_kv_tokens))
    return float(model.itl_ms(usage, np.asarray(context)))
