"""The hybrid planner: the queueing planner leads, the saturation planner has the veto.

Queues tell how many workers the requests to come need for their objectives, as far as the engines are known. Saturation
tells what the workers hold, whatever they are. ``arbitrate`` says whose count a pool gets, and the reasons are those of
both. What differs from the original, beside that both parts are others:

- a side that does not know has no opinion. There a count that is missing is 0, and so a wish to shrink;
- where both want more it is as many as the higher of them: by the rows alone it is what queueing wants, and more load
  could mean fewer workers;
- a shrink that queueing wants is made as far as saturation knows it to be safe: by one worker, or by as many as it
  would take itself. There it is safe for one, and goes down to 0.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.arbitration import Arbitration, arbitrate
from loadline.core.planning.composite import CompositePlanner
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.planner import Finding, KnobProblem, ModelSettings, Needs
from loadline.core.planning.planners.queueing import QueueingKnobs, QueueingPlanner
from loadline.core.planning.planners.saturation import SaturationKnobs, SaturationPlanner
from loadline.core.planning.recommendation import PoolRecommendation, recommend
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand

_BLIND: Final = {ReasonCode.NO_WORKERS, ReasonCode.NO_DATA}


class HybridKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the hybrid planner: those of its two parts."""

    queueing: QueueingKnobs = QueueingKnobs()
    saturation: SaturationKnobs = SaturationKnobs()


class Sides(Struct):
    """The two planners."""

    queueing: QueueingPlanner
    saturation: SaturationPlanner


class HybridPlanner(CompositePlanner):
    """See the module."""

    name = "hybrid"
    summary = "The queueing planner leads; the saturation planner vetoes shrinks that are not safe."
    Knobs = HybridKnobs
    needs = Needs(
        traffic=True,
        history=True,
        profiles="optional",
        objectives=frozenset({"ttft_ms", "itl_ms", "tokens_per_s", "attainment"}),
        shares_role_load=True,
    )
    composed_of = (QueueingPlanner, SaturationPlanner)
    first = "queueing"

    knobs: HybridKnobs
    parts: Sides | None = field(default=None)

    @classmethod
    def check(cls, knobs: HybridKnobs, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield findings of its parts, and rules that cannot tell whether a shrink is safe."""
        yield from super().check(knobs, model, place)
        if knobs.saturation.profile == "upstream":
            yield KnobProblem(
                f"{place}.saturation.profile",
                '"upstream" does not say whether a shrink is safe',
                'Leave it out, or set planner = "saturation".',
            )

    @classmethod
    def describe(cls, knobs: HybridKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield the sentences of its parts, and how they are combined."""
        yield from super().describe(knobs, model, pool)
        yield (
            "The queueing planner leads; the saturation planner adds workers where queueing adds none, and vetoes an "
            "unsafe scale-down."
        )

    @classmethod
    def traffic_knobs(cls, knobs: HybridKnobs) -> TrafficKnobs:
        """Return those of the queueing planner."""
        return knobs.queueing

    def __post_init__(self) -> None:
        if self.parts is None:
            self.parts = Sides(QueueingPlanner(self.knobs.queueing), SaturationPlanner(self.knobs.saturation))

    @property
    def _sides(self) -> Sides:
        assert self.parts is not None  # noqa: S101 - set when it is made
        return self.parts

    def plan(self, model: Model, now: int) -> Recommendation:
        """Ask both sides, and arbitrate for each pool."""
        queueing, saturation = self._sides.queueing.plan(model, now), self._sides.saturation.plan(model, now)
        said = {name: self._say(model, pool, queueing, saturation, now) for name, pool in model.pools.items()}
        found = recommend(self.name, model, said, queueing.inputs | saturation.inputs, now)
        reasons = (*found.reasons, *_remarks(queueing), *_remarks(saturation))
        return replace(found, reasons=reasons, demands=_needs(model, found, queueing, saturation, now))

    def _say(
        self, model: Model, pool: Pool, queueing: Recommendation, saturation: Recommendation, now: int
    ) -> PoolRecommendation:
        standing, name = pool.effective_target(now), pool.name
        ours = [reason for reason in saturation.reasons if reason.pool == name]
        theirs = [reason for reason in queueing.reasons if reason.pool == name]
        led = None if self._sides.queueing.blind(model, pool, now) else queueing.targets.get(name, standing)
        seen = saturation.targets.get(name)
        if seen is None and not any(reason.code in _BLIND for reason in ours):
            seen = standing
        found = arbitrate(standing, seen, led, shrink_safe=self._sides.saturation.safe.get(name, False))
        if found.code is ReasonCode.QUEUEING_LEADS and seen is not None and standing < found.target < seen:
            found = Arbitration(seen, ReasonCode.SATURATION_LEADS)
        numbers = {key: value for key, value in (("saturation", seen), ("queueing", led)) if value is not None}
        reasons = [Reason.of(found.code, name, **numbers), *theirs, *ours]
        if found.code is ReasonCode.QUEUEING_LEADS and seen is not None:
            known = min(standing - 1, seen)
            if found.target < known:
                reasons.insert(0, Reason.of(ReasonCode.SHRINK_STEPWISE, name, wanted=found.target, allowed=known))
                found = Arbitration(known, found.code)
        return PoolRecommendation(found.target, tuple(reasons))


def _remarks(side: Recommendation) -> list[Reason]:
    """What is said of the model, or of its forecasts."""
    return [reason for reason in side.reasons if not reason.pool]


def _needs(
    model: Model, found: Recommendation, queueing: Recommendation, saturation: Recommendation, now: int
) -> tuple[RoleDemand, ...]:
    """What is demanded of each role, by the side that knows; where its counts did not come out, what those serve."""
    sides = {need.role: (side, need) for side in (saturation, queueing) for need in side.demands}
    needs: list[RoleDemand] = []
    for role, (side, need) in sides.items():
        pools = [pool for pool in model.pools.values() if pool.knobs.role == role]
        if all(found.targets.get(pool.name) == side.targets.get(pool.name) for pool in pools):
            needs.append(need)
            continue
        counts = {pool.name: found.targets.get(pool.name, pool.effective_target(now)) for pool in pools}
        needs.append(replace(need, demand=sum(counts[name] * rate for name, rate in need.capacities.items())))
    return tuple(needs)
