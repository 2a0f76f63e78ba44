"""Pools sized by the profiles of their engines, corrected by observed latencies."""

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.demand.outlook import TrafficLoad
from loadline.core.planning.demand.tracker import DemandUpdate
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.planning.sizing.profile.correction import Correction
from loadline.core.planning.sizing.profile.counts import Demand, profile_problem, sizing
from loadline.core.planning.sizing.profile.pool_sizes import PoolSizes
from loadline.core.vocabulary.reasons import Reason, ReasonCode


class ProfileSizer(Struct):
    """Sizes of the pools of a model by the profiles of their engines."""

    sizes: PoolSizes = field(default_factory=PoolSizes)
    correction: Correction = field(default_factory=Correction)

    def apply(self, update: DemandUpdate, model: Model, knobs: ThroughputKnobs, now: int) -> None:
        """Learn from an interval that has ended, and size the pools for a new load."""
        if update.ended is not None and not knobs.no_correction:
            self.correction.learn(model, update.ended, knobs.throughput_adjustment_interval_ms, now)
        if update.is_new_forecast:
            self.sizes.start_forecast(model, now)
        if update.load is not None:
            sized = sizing(model, demand_of(update.load, knobs.attainment, self.correction))
            self.sizes.resize(model, update.load, sized, _reason, step_max=knobs.replicas_step_max, now=now)

    def hold_reason(self, model: Model, pool: Pool, now: int) -> Reason | None:
        """Return the reason why a pool has no size; None if it has one."""
        problem = profile_problem(pool) or self.sizes.problems.get(pool.name)
        if problem is not None:
            return problem
        if not model.traffic.is_reporting(now) or pool.name not in self.sizes.sized:
            return Reason(ReasonCode.TRAFFIC_UNKNOWN, pool.name, detail=model.traffic.missing_input(now))
        return None

    def corrections(self, knobs: ThroughputKnobs) -> dict[str, float]:
        """Return the correction factors by role; none if the profiles are used as they are."""
        return {} if knobs.no_correction else self.correction.by_role

    def export_learned(self, knobs: ThroughputKnobs) -> bytes | None:
        """Return the correction factors; None without correction."""
        return None if knobs.no_correction else self.correction.export_learned()

    def import_learned(self, data: bytes, knobs: ThroughputKnobs) -> None:
        """Start with exported correction factors."""
        if not knobs.no_correction:
            self.correction.import_learned(data)


def demand_of(load: TrafficLoad, attainment: float, correction: Correction) -> Demand:
    """Return the demand of a load, with the correction factors of the engines."""
    outlook = load.outlook
    return Demand(
        outlook.requests_per_s,
        load.isl,
        load.osl,
        attainment,
        correction.prefill,
        correction.decode,
        outlook.kv_hit_rate,
        outlook.decode_share,
        outlook.decode_peak,
    )


def _reason(pool: Pool, numbers: dict[str, float], code: ReasonCode) -> Reason:
    return Reason(code, pool.name, numbers)
