"""The SLA planner: the throughput planner sets the floor, the load planner works above it.

The floor is what the traffic to come needs by the profiles; it comes early and in one step. What the profiles or the
forecast got wrong shows in the loads of the workers, and the load planner answers it. Nothing goes below the
floor, and nothing shrinks while it is not known. A floor that cannot be reached, because workers do not come, is
reported and not waited for: the load planner goes on from the workers that there are.
"""

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.composite import CompositePlanner
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.planner import Needs
from loadline.core.planning.planners.load import LoadKnobs, LoadPlanner
from loadline.core.planning.planners.throughput import ThroughputKnobs, ThroughputPlanner
from loadline.core.planning.recommendation import PoolRecommendation, recommend
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation


class SlaKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of the SLA planner: those of its two parts."""

    throughput: ThroughputKnobs = ThroughputKnobs()
    load: LoadKnobs = LoadKnobs()


class Parts(Struct):
    """The two planners."""

    throughput: ThroughputPlanner
    load: LoadPlanner


class SlaPlanner(CompositePlanner):
    """See the module."""

    name = "sla"
    summary = "Dynamo's SLA planner: the throughput planner sets a floor, the load planner works above it."
    Knobs = SlaKnobs
    needs = Needs(
        traffic=True,
        history=True,
        profiles="required",
        objectives=frozenset({"ttft_ms", "itl_ms"}),
        shares_role_load=True,
    )
    composed_of = (ThroughputPlanner, LoadPlanner)
    first = "throughput"

    knobs: SlaKnobs
    parts: Parts | None = field(default=None)

    @classmethod
    def traffic_knobs(cls, knobs: SlaKnobs) -> TrafficKnobs:
        """Return those of the throughput planner."""
        return knobs.throughput

    def __post_init__(self) -> None:
        if self.parts is None:
            self.parts = Parts(ThroughputPlanner(self.knobs.throughput), LoadPlanner(self.knobs.load))

    @property
    def _parts(self) -> Parts:
        assert self.parts is not None  # noqa: S101 - set when it is made
        return self.parts

    def plan(self, model: Model, now: int) -> Recommendation:
        """Both parts look; of each pool the higher count counts."""
        parts = self._parts
        parts.throughput.observe(model, now)
        parts.load.observe(model, now)
        said = {name: self._say(model, pool, now) for name, pool in model.pools.items()}
        inputs = parts.throughput.inputs() | parts.load.inputs(model)
        found = recommend(self.name, model, said, inputs, now)
        return Recommendation(found.planner, found.targets, (*found.reasons, *parts.throughput.remarks()), found.inputs)

    def _say(self, model: Model, pool: Pool, now: int) -> PoolRecommendation:
        """The load planner's step, but not below the floor."""
        throughput, load = self._parts.throughput, self._parts.load
        blind = throughput.blind(model, pool, now)
        if blind is not None and blind.code is not ReasonCode.TRAFFIC_UNKNOWN:
            return PoolRecommendation(None, (blind,))
        verdict = load.judge(model, pool, now)
        base, standing = pool.scaling_base(now), pool.effective_target(now)
        reasons = [verdict.reason]
        if blind is not None:
            wanted = base + verdict.step if verdict.step > 0 else standing
            reasons.insert(0, blind)
        else:
            floor = throughput.sized[pool.name]
            wanted = base + verdict.step if verdict.step else max(standing, floor.replicas)
            if verdict.step < 0 and not model.traffic.is_complete(now):
                wanted, reasons = standing, [Reason(ReasonCode.TRAFFIC_INCOMPLETE, pool.name), *reasons]
            if wanted <= floor.replicas:
                reasons = [floor.reason, *reasons]
            if wanted < floor.replicas:
                numbers = {"wanted": wanted, "allowed": floor.replicas}
                wanted, reasons = (
                    floor.replicas,
                    [Reason.of(ReasonCode.THROUGHPUT_FLOOR, pool.name, **numbers), *reasons],
                )
        missing = pool.overdue_workers(now)
        if missing and base < wanted:
            reasons.append(Reason.of(ReasonCode.PENDING_UNREACHED, pool.name, missing=missing))
        return PoolRecommendation(None if wanted == standing else wanted, tuple(reasons))
