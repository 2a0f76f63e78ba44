"""Hybrid planner: the queueing planner leads, the saturation planner has a veto.

The queueing planner computes the workers that the expected requests need for their objectives, if the engines are
known. The saturation planner evaluates the measured load of the workers, without a model of the engines. ``arbitrate``
chooses the count of each pool, with the reasons of both. Differences from the original, apart from both planners:

- A planner without data has no recommendation. In the original its count is 0, which is a request to shrink.
- If both recommend growth, the higher count applies. In the original it is that of queueing, which may be the lower
  one, so that more load could lead to fewer workers.
- A scale-down by queueing is limited to what saturation knows to be safe: one worker, or as many as saturation itself
  would remove. In the original, a step that is safe for one worker may remove all.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field, json
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.arbitration import Arbitration, arbitrate
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.planner import Finding, ForecastRequest, KnobProblem, ModelSettings, Needs, Planner
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.planners.saturation import SaturationKnobs, SaturationPlanner
from loadline.core.planning.recommendation import PoolRecommendation, recommend
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import History
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from loadline.core.vocabulary.status import Estimates

_WITHOUT_DATA: Final = {ReasonCode.NO_WORKERS, ReasonCode.NO_DATA}


class HybridKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the hybrid planner: those of both combined planners."""

    queueing: QueueingKnobs = QueueingKnobs()
    saturation: SaturationKnobs = SaturationKnobs()


class HybridPlanner(Planner):
    """Planner that arbitrates between the recommendations of two others."""

    name = "hybrid"
    summary = "The queueing planner leads; the saturation planner vetoes unsafe scale-downs."
    group = "compatible"
    Knobs = HybridKnobs
    needs = Needs(
        traffic="required",
        history=True,
        profiles="optional",
        objectives=frozenset({"ttft_ms", "itl_ms", "tokens_per_s", "attainment"}),
        shares_role_load=True,
    )
    composed_of = (QueueingPlanner, SaturationPlanner)

    knobs: HybridKnobs
    queueing: QueueingPlanner = field(default_factory=lambda: QueueingPlanner(QueueingKnobs()))
    saturation: SaturationPlanner = field(default_factory=lambda: SaturationPlanner(SaturationKnobs()))

    def __post_init__(self) -> None:
        self.queueing.apply_settings(self.knobs.queueing)
        self.saturation.apply_settings(self.knobs.saturation)

    @classmethod
    def check(cls, knobs: HybridKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield the findings of both planners, and a saturation profile that cannot be combined."""
        yield from super().check(knobs, model, place)
        if knobs.saturation.profile == "upstream":
            yield KnobProblem(
                f"{place}.saturation.profile",
                '"upstream" does not determine if a scale-down is safe',
                'Remove the key, or set planner = "saturation".',
            )

    @classmethod
    def describe(cls, knobs: HybridKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield the sentences of both planners, and one on their combination."""
        yield from super().describe(knobs, model, pool)
        yield (
            "The queueing planner leads; the saturation planner adds workers where queueing adds none, and vetoes an "
            "unsafe scale-down."
        )

    @classmethod
    def traffic_knobs(cls, knobs: HybridKnobs) -> TrafficKnobs:
        """Return the knobs of the queueing planner."""
        return knobs.queueing

    def on_settings_change(self, before: HybridKnobs) -> None:  # noqa: ARG002 - each planner compares its own
        """Apply the knobs to both planners."""
        self.queueing.apply_settings(self.knobs.queueing)
        self.saturation.apply_settings(self.knobs.saturation)

    def forget_pool(self, pool: str) -> None:
        """Discard the state of a pool in both planners."""
        self.queueing.forget_pool(pool)
        self.saturation.forget_pool(pool)

    def next_wake(self) -> int:
        """Return the earlier wake of both planners."""
        return min(self.queueing.next_wake(), self.saturation.next_wake())

    def warm_up(self, history: History) -> None:
        """Warm up the queueing planner."""
        self.queueing.warm_up(history)

    def resume_requests_from(self, requests: int) -> None:
        """Number requests of the queueing planner after those of an earlier planner."""
        self.queueing.resume_requests_from(requests)

    def forecast_request(self) -> ForecastRequest | None:
        """Return the request of the queueing planner."""
        return self.queueing.forecast_request()

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        """Hand the answer to the queueing planner."""
        self.queueing.ingest_forecast(answer)

    def estimates(self, model: Model) -> Estimates:
        """Return the estimates of the queueing planner."""
        return self.queueing.estimates(model)

    def export_learned(self) -> bytes | None:
        """Return the learned parameters of both planners, by their names."""
        learned = {part.name: data for part in self._parts if (data := part.export_learned()) is not None}
        return json.encode(learned) if learned else None

    def import_learned(self, data: bytes) -> None:
        """Pass learned parameters to both planners, by their names."""
        learned = json.decode(data, type=dict[str, bytes])
        for part in self._parts:
            if part.name in learned:
                part.import_learned(learned[part.name])

    def plan(self, model: Model, now: int) -> Recommendation:
        """Arbitrate between both planners for each pool."""
        queueing, saturation = self.queueing.plan(model, now), self.saturation.plan(model, now)
        pools = {name: self._recommend(model, pool, queueing, saturation, now) for name, pool in model.pools.items()}
        found = recommend(self.name, model, pools, queueing.inputs | saturation.inputs, now)
        reasons = (*found.reasons, *_notes(queueing), *_notes(saturation))
        return replace(found, reasons=reasons, demands=_demands(model, found, queueing, saturation, now))

    @property
    def _parts(self) -> tuple[Planner, ...]:
        return self.queueing, self.saturation

    def _recommend(
        self, model: Model, pool: Pool, queueing: Recommendation, saturation: Recommendation, now: int
    ) -> PoolRecommendation:
        current, name = pool.effective_target(now), pool.name
        saturation_reasons = [reason for reason in saturation.reasons if reason.pool == name]
        queueing_reasons = [reason for reason in queueing.reasons if reason.pool == name]
        held = self.queueing.hold_reason(model, pool, now)
        by_queueing = queueing.targets.get(name, None if held else current)
        by_saturation = saturation.targets.get(name)
        if by_saturation is None and not any(reason.code in _WITHOUT_DATA for reason in saturation_reasons):
            by_saturation = current
        found = arbitrate(current, by_saturation, by_queueing, shrink_safe=self.saturation.can_remove_one(name))
        if by_saturation is not None and current < found.target < by_saturation:
            found = Arbitration(by_saturation, ReasonCode.SATURATION_LEADS)
        counts = (("saturation", by_saturation), ("queueing", by_queueing))
        numbers = {key: count for key, count in counts if count is not None}
        reasons = [Reason.of(found.code, name, **numbers), *queueing_reasons, *saturation_reasons]
        if found.code is ReasonCode.QUEUEING_LEADS and by_saturation is not None:
            safe = min(current - 1, by_saturation)
            if found.target < safe:
                reasons.insert(0, Reason.of(ReasonCode.SHRINK_STEPWISE, name, wanted=found.target, allowed=safe))
                found = Arbitration(safe, found.code)
        return PoolRecommendation(found.target, tuple(reasons))


def _notes(found: Recommendation) -> list[Reason]:
    """Return the reasons that apply to the whole model."""
    return [reason for reason in found.reasons if not reason.pool]


def _demands(
    model: Model, found: Recommendation, queueing: Recommendation, saturation: Recommendation, now: int
) -> tuple[RoleDemand, ...]:
    """Return the demand of each role: that of the planner whose counts apply, or else the capacity of the counts."""
    known = {demand.role: (part, demand) for part in (saturation, queueing) for demand in part.demands}
    demands: list[RoleDemand] = []
    for role, (part, demand) in known.items():
        pools = [pool for pool in model.pools.values() if pool.knobs.role == role]
        if all(found.targets.get(pool.name) == part.targets.get(pool.name) for pool in pools):
            demands.append(demand)
            continue
        counts = {pool.name: found.targets.get(pool.name, pool.effective_target(now)) for pool in pools}
        served = sum((counts[name] * rate for name, rate in demand.capacities.items()), 0.0)
        demands.append(replace(demand, demand=served))
    return tuple(demands)
