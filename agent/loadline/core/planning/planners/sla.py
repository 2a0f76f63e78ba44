"""SLA planner: the sizes of the throughput planner as a minimum, and the steps of the load planner above it.

The minimum follows from the forecast and the engine profiles, so it rises early and in one step. The steps compensate
errors of forecast and profiles, which the loads of the workers show. No pool shrinks below its minimum, or while it is
unknown. A pool without a usable profile is held; if it is saturated, it grows by what its workers are seen to serve. If
workers do not start, the minimum is reported as not reached, and steps continue from the existing workers.
"""

from typing import Final

from msgspec import Struct, field, json
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.planner import Needs
from loadline.core.planning.planners.load import LoadPlanner
from loadline.core.planning.planners.throughput import ThroughputPlanner
from loadline.core.planning.recommendation import PoolRecommendation, recommend
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.planning.sizing.load.stepper import LoadKnobs, LoadStep, LoadStepper
from loadline.core.planning.sizing.needs.saturated_pools import SaturatedPools
from loadline.core.planning.sizing.profile.sizer import ProfileSizer
from loadline.core.planning.traffic_planner import TrafficPlanner
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.status import Estimates

_DRAIN_MS: Final = 60_000
"""Time within which a pool without a usable profile serves its backlog, as with the queueing planner."""


class SlaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the SLA planner: those of the throughput planner and those of the load planner."""

    throughput: ThroughputKnobs = ThroughputKnobs()
    load: LoadKnobs = LoadKnobs()


class SlaPlanner(TrafficPlanner):
    """Planner that composes a demand tracker, a profile sizer and a load stepper."""

    name = "sla"
    summary = "Dynamo's SLA planner: sizes of the throughput planner as a minimum, steps of the load planner above it."
    group = "compatible"
    Knobs = SlaKnobs
    needs = Needs(
        traffic="required",
        history=True,
        profiles="required",
        objectives=frozenset({"ttft_ms", "itl_ms"}),
        shares_role_load=True,
    )
    composed_of = (ThroughputPlanner, LoadPlanner)

    knobs: SlaKnobs
    sizer: ProfileSizer = field(default_factory=ProfileSizer)
    stepper: LoadStepper = field(default_factory=LoadStepper)
    saturated: SaturatedPools = field(default_factory=SaturatedPools)
    """Evidence of pools without a usable profile."""

    @classmethod
    def traffic_knobs(cls, knobs: SlaKnobs) -> TrafficKnobs:
        """Return the knobs of the throughput planner."""
        return knobs.throughput

    def on_settings_change(self, before: SlaKnobs) -> None:
        """Apply the knobs to the tracker and the stepper."""
        super().on_settings_change(before)
        self.stepper.apply_settings(self.knobs.load)

    def forget_pool(self, pool: str) -> None:
        """Discard the size and the loads of a pool."""
        self.sizer.sizes.forget_pool(pool)
        self.stepper.forget_pool(pool)
        self.saturated.forget_pool(pool)

    def export_learned(self) -> bytes | None:
        """Return the correction factors of the profiles."""
        learned = self.sizer.export_learned(self.knobs.throughput)
        return None if learned is None else json.encode({"throughput": learned})

    def import_learned(self, data: bytes) -> None:
        """Use correction factors from the first sizing on."""
        learned = json.decode(data, type=dict[str, bytes]).get("throughput")
        if learned is not None:
            self.sizer.import_learned(learned, self.knobs.throughput)

    def estimates(self, model: Model) -> Estimates:  # noqa: ARG002 - an interface
        """Return the forecast and the correction factors."""
        return Estimates(self.demand.record.status(), self.sizer.corrections(self.knobs.throughput))

    def plan(self, model: Model, now: int) -> Recommendation:
        """Size the pools if a sizing is due, and recommend the higher of size and step."""
        knobs = self.knobs
        self.sizer.apply(self.demand.update(model, knobs.throughput, now), model, knobs.throughput, now)
        self.stepper.update(model, knobs.load, now)
        self.saturated.update(model, self.sizer.sizes.sized, now)
        pools = {name: self._recommend(model, pool, now) for name, pool in model.pools.items()}
        found = recommend(self.name, model, pools, self.demand.inputs | self.stepper.inputs(model), now)
        notes = (*self.demand.forecast.notes, *self.sizer.sizes.infeasible.values())
        return replace(found, reasons=(*found.reasons, *notes))

    def _recommend(self, model: Model, pool: Pool, now: int) -> PoolRecommendation:
        """Recommend the step of a pool, but at least its size."""
        reason = self.sizer.hold_reason(model, pool, now)
        if reason is not None and reason.code is not ReasonCode.TRAFFIC_UNKNOWN:
            return self.saturated.grow(model, pool, PoolRecommendation(None, (reason,)), _DRAIN_MS, now)
        step, base, current = (
            self.stepper.step(model, pool, self.knobs.load, now),
            pool.scaling_base(now),
            pool.effective_target(now),
        )
        if reason is not None:
            wanted = base + step.step if step.step > 0 else current
            reasons = [reason, step.reason]
        else:
            wanted, reasons = self._at_least_size(model, pool, step, now)
        missing = pool.overdue_workers(now)
        if missing and base < wanted:
            reasons.append(Reason.of(ReasonCode.PENDING_UNREACHED, pool.name, missing=missing))
        return PoolRecommendation(None if wanted == current else wanted, tuple(reasons))

    def _at_least_size(self, model: Model, pool: Pool, step: LoadStep, now: int) -> tuple[int, list[Reason]]:
        """Return the count of a step, but at least the size of the pool, with the reasons."""
        size = self.sizer.sizes.sized[pool.name]
        current, reasons = pool.effective_target(now), [step.reason]
        wanted = pool.scaling_base(now) + step.step if step.step else max(current, size.replicas)
        if step.step < 0 and not model.traffic.is_complete(now):
            wanted, reasons = current, [Reason(ReasonCode.TRAFFIC_INCOMPLETE, pool.name), *reasons]
        if wanted > size.replicas:
            return wanted, reasons
        reasons = [*size.reasons(self.demand.next_sizing_ms, now), *reasons]
        if wanted < size.replicas:
            numbers = {"wanted": wanted, "allowed": size.replicas}
            reasons = [Reason.of(ReasonCode.THROUGHPUT_MINIMUM, pool.name, **numbers), *reasons]
        return size.replicas, reasons
