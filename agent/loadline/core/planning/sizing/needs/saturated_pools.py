"""Growth of saturated pools whose engines are not known, by what their workers complete."""

from collections.abc import Container
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.demand.backlog import Backlog
from loadline.core.planning.recommendation import PoolRecommendation
from loadline.core.planning.sizing.evidence.saturation import SaturationEvidence, request_share
from loadline.core.planning.sizing.need import whole
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.reasons import ReasonCode

_SAMPLE_MS: Final = 1_000
_ARRIVALS_MS: Final = 10_000
_UNKNOWN_ENGINE: Final = frozenset({ReasonCode.ENGINE_LEARNING, ReasonCode.PROFILE_UNUSABLE})


class SaturatedPools(Struct):
    """Evidence of the pools that have no size."""

    pools: dict[str, SaturationEvidence] = field(default_factory=dict)
    lengths: Lengths = field(default_factory=Lengths)
    totals: TrafficTotals | None = None
    """Totals of the traffic at the last sample."""
    sampled_ms: int = -_SAMPLE_MS

    def forget_pool(self, pool: str) -> None:
        """Drop the evidence of a pool."""
        self.pools.pop(pool, None)

    def update(self, model: Model, sized: Container[str], now: int) -> None:
        """Record a second of the pools that are not ``sized``."""
        if now - self.sampled_ms < _SAMPLE_MS:
            return
        self.pools = {name: self.pools.get(name) or SaturationEvidence() for name in model.pools if name not in sized}
        if not self.pools:
            self.totals = None
            return
        totals = model.traffic.totals
        interval = totals.since(totals if self.totals is None else self.totals)
        self.totals, self.sampled_ms = totals, now
        self.lengths.add(interval)
        for name, evidence in self.pools.items():
            evidence.add(model, model.pools[name], interval, now)

    def grow(self, model: Model, pool: Pool, held: PoolRecommendation, drain_ms: int, now: int) -> PoolRecommendation:
        """Return the growth that a saturated pool needs whose engine is not known; otherwise the hold of the pool.

        Args:
            model: The model.
            pool: The pool.
            held: Hold of the pool, with its reasons.
            drain_ms: Time within which the requests that wait should be served.
            now: Unix time in ms.
        """
        evidence = self.pools.get(pool.name)
        unknown = any(reason.code in _UNKNOWN_ENGINE for reason in held.reasons)
        if evidence is None or not unknown:
            return held
        share = request_share(model, pool)
        arriving = model.traffic.recent_arrivals(_ARRIVALS_MS, now).requests_per_s
        backlog = Backlog.of(model, now).requests_per_s(pool.knobs.role, arriving, model.objectives.ttft_ms, drain_ms)
        need = evidence.need(model, pool, self.lengths, share * (arriving + backlog), now)
        wanted = 0 if need is None else whole(need.workers)
        if need is None or wanted <= pool.effective_target(now):
            return held
        detail = f"{share * backlog:.2f} requests/s of these are backlog" if backlog else ""
        reason = replace(need.reason, numbers=need.reason.numbers | {"wanted": float(wanted)}, detail=detail)
        return PoolRecommendation(wanted, (reason, *held.reasons))
