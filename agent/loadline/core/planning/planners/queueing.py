"""The queueing planner: as many workers as serve the requests that arrive within their objectives, as queues.

It is the model-based path of llm-d's Workload Variant Autoscaler, and looks at the traffic as the throughput planner
does: what arrives, forecast until workers come. What one worker of each pool serves within TTFT and ITL follows from a
queueing model. What differs from the original:

- demand is what arrives and what waits, not what completes, which is no more than there are workers for;
- the objectives are those of a share of the requests, not of their mean;
- the pools of a role share its demand; there, each is sized for all of it;
- growth is one step, and a shrink waits until nothing has called for the workers for as long as workers take to come;
- a pool that others replace shrinks as they become ready;
- engines that nobody has profiled are fitted to the iterations that their workers report.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from loadline.core.engines.lengths import LengthDistribution
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.windows import RollingMax
from loadline.core.planning.demand.intervals import Outlook
from loadline.core.planning.planner import ModelSettings, Needs
from loadline.core.planning.planners.throughput import ThroughputKnobs, ThroughputPlanner
from loadline.core.planning.recommendation import PoolRecommendation
from loadline.core.planning.sizing.online_fits import NO_LINES, EngineLines, PoolFit
from loadline.core.planning.sizing.replacements import kept_of
from loadline.core.planning.sizing.role_shares import RoleShare
from loadline.core.planning.sizing.sizing_by_profile import Demand, Sizing, profile_problem
from loadline.core.planning.sizing.sizing_by_queue import WorkerThroughput, served_by
from loadline.core.vocabulary.durations import duration
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from loadline.core.vocabulary.scalars import Role


class QueueingKnobs(ThroughputKnobs, frozen=True, forbid_unknown_fields=True):
    """Knobs of the queueing planner: those of the throughput planner, by which it looks at the traffic, and its own."""

    drain_ms: Annotated[
        int, Meta(ge=1_000, le=3_600_000, description="Requests that wait too long are to be served within this time.")
    ] = 60_000
    switching_cost_hours: Annotated[
        float,
        Meta(ge=0, le=1_000, description="What a worker that starts or goes costs, in hours of it: for mixed fleets."),
    ] = 0.1
    fitted: Annotated[
        Literal["never", "unprofiled", "always"],
        Meta(
            description="Which engines are fitted to the iterations that their workers report, in the place of a"
            " profile."
        ),
    ] = "unprofiled"


class Taught(Struct, frozen=True):
    """What is kept beyond an agent."""

    lines: dict[str, EngineLines]
    correction: bytes | None = None


class QueueingPlanner(ThroughputPlanner):
    """See the module."""

    name = "queueing"
    summary = "Forecasts the traffic and sizes each role at least cost by a queueing model of its engines."
    Knobs = QueueingKnobs
    needs = Needs(
        traffic=True,
        history=True,
        profiles="optional",
        objectives=frozenset({"ttft_ms", "itl_ms", "tokens_per_s", "attainment"}),
        shares_role_load=True,
    )
    pool_fields: ClassVar[tuple[str, ...]] = (*ThroughputPlanner.pool_fields, "served", "highest", "fits", "lines")

    knobs: QueueingKnobs
    served: dict[str, WorkerThroughput] = field(default_factory=dict)
    """What one worker of each pool serves, since the last sizing."""
    role_needs: dict[Role, RoleDemand] = field(default_factory=dict)
    fits: dict[str, PoolFit] = field(default_factory=dict)
    lines: dict[str, EngineLines] = field(default_factory=dict)
    """What was learned of the engines of each pool, here or before."""
    waiting: dict[Role, int] = field(default_factory=dict)
    """Requests that wait at the workers of each role, or for any."""
    backlogs: dict[Role, float] = field(default_factory=dict)
    """Requests a second, of the needs, for what waited at the last sizing."""
    behind_at_ms: int = 0
    """When it may next be sized for what waits alone."""
    highest: dict[str, RollingMax] = field(default_factory=dict)
    """What each pool was sized to of late."""

    @classmethod
    def describe(cls, knobs: QueueingKnobs, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:  # type: ignore[override]
        """Yield the objective that a pool is sized for, how often, and what becomes of a backlog."""
        yield from super().describe(knobs, model, pool)
        yield (
            "Chooses the cheapest mix of the pools of a role, with enough workers to serve a backlog within "
            f"{duration(knobs.drain_ms)}."
        )

    def forget_pool(self, pool: str) -> None:
        """It serves of no demand any more."""
        super().forget_pool(pool)
        for role, need in self.role_needs.items():
            capacities = {name: rate for name, rate in need.capacities.items() if name != pool}
            self.role_needs[role] = replace(need, capacities=capacities)

    def export_learned(self) -> bytes | None:
        """The times of the engines, and how they differ from their profiles."""
        taught = Taught(dict(sorted(self.lines.items())), super().export_learned())
        return msgspec.json.encode(taught) if taught.lines or taught.correction else None

    def import_learned(self, data: bytes) -> None:
        """Go by them until the iterations say something else."""
        try:
            taught = msgspec.json.decode(data, type=Taught)
        except msgspec.MsgspecError:
            return
        if not all(lines.plausible() for lines in taught.lines.values()):
            return
        self.lines = dict(taught.lines)
        if taught.correction is not None:
            super().import_learned(taught.correction)

    def plan(self, model: Model, now: int) -> Recommendation:
        """As the throughput planner; and what is demanded of each role."""
        found = super().plan(model, now)
        needs = [_standing(need, model, now) if self.is_over(model, now) else need for need in self.role_needs.values()]
        return replace(found, demands=tuple(needs))

    def observe(self, model: Model, now: int) -> None:
        """Take note of what has happened; size anew, too, where what waits calls for more than was asked for.

        That, not at every look: where there are as many workers as there may be, it would change nothing.
        """
        self.waiting = _waiting(model, now)
        for pool in model.pools.values() if self.knobs.fitted != "never" else ():
            if self.knobs.fitted == "always" or profile_problem(pool) is not None:
                self._fit(pool, now)
        super().observe(model, now)
        if self.outlook is None or now < self.behind_at_ms or not model.traffic.is_reporting(now):
            return
        if any(self._is_behind(model, need) for need in self.role_needs.values()):
            self.behind_at_ms = now + self.knobs.surge_window_ms
            self._size(self.outlook, model, now, surge=True)

    def inputs(self) -> dict[str, float]:
        """What the pools are sized for."""
        return super().inputs() | {f"{role}_backlog_requests_per_s": rate for role, rate in self.backlogs.items()}

    def reason(self, pool: Pool, numbers: dict[str, float], *, surge: bool) -> Reason:  # noqa: ARG002 - one for both
        """What is demanded of the role, what the pool takes of it, what a worker serves, and what bounds that."""
        one, role = self.served[pool.name], pool.knobs.role
        more = {
            "requests_per_s": self.role_needs[role].demand - self.backlogs[role],
            "backlog_requests_per_s": self.backlogs[role],
            "takes": numbers["busy"] * one.saturated_requests_per_s,
            "serves": one.requests_per_s,
        }
        return Reason(ReasonCode.QUEUEING_TARGET, pool.name, numbers | more, detail=f"bound by {one.bound}")

    def blind(self, model: Model, pool: Pool, now: int) -> Reason | None:
        """Why nothing can be said of a pool; None where it was sized."""
        if pool.name in self.problems:
            fit, lines = self.fits.get(pool.name), self.lines.get(pool.name, NO_LINES)
            if fit is None or pool.engine.problem or lines.known(pool.knobs.role):
                return self.problems[pool.name]
            return Reason(ReasonCode.ENGINE_LEARNING, pool.name, detail=fit.problem(pool))
        if not model.traffic.is_reporting(now) or pool.name not in self.sized:
            return Reason(ReasonCode.TRAFFIC_UNKNOWN, pool.name, detail=model.traffic.missing_input(now))
        return None

    def is_over(self, model: Model, now: int) -> bool:
        """Nor is a peak over of which requests still wait, nor a demand that is not of what arrives."""
        forecast_request = any(self.waiting.values()) or model.objectives.tokens_per_s
        return not forecast_request and super().is_over(model, now)

    def _say(self, model: Model, pool: Pool, now: int) -> PoolRecommendation:
        """A shrink waits for what was needed of late, and for the pools that take over."""
        said, standing = super()._say(model, pool, now), pool.effective_target(now)
        if pool.name not in self.sized:
            return said
        highest = self.highest.setdefault(pool.name, RollingMax(0))
        highest.window_ms = pool.start_up_ms(self.knobs.start_up_ms)
        highest.push(now, self.sized[pool.name].replicas)
        wanted = said.replicas
        if wanted is None or wanted >= standing:
            return said
        reasons = list(said.reasons)
        needed = min(standing, highest.max(now) or 0)
        if needed > wanted:
            numbers = {"wanted": wanted, "allowed": needed, "window_ms": highest.window_ms}
            reasons.append(Reason.of(ReasonCode.HIGHEST_RECOMMENDATION, pool.name, **numbers))
            wanted = needed
        kept = self._kept(model, pool, wanted, now)
        if kept > wanted:
            reasons.append(Reason.of(ReasonCode.REPLACEMENT_NOT_READY, pool.name, wanted=wanted, allowed=kept))
            wanted = kept
        return PoolRecommendation(None if wanted == standing else wanted, tuple(reasons))

    def _kept(self, model: Model, pool: Pool, wanted: int, now: int) -> int:
        """Workers that stay because those of the other pools of the role that are ready do not carry its load alone."""
        counts = {name: self.sized[name].replicas if name in self.sized else 0 for name in model.pools}
        kept = kept_of(model.pools, self.role_needs[pool.knobs.role], counts | {pool.name: wanted}, now)
        return kept.get(pool.name, wanted)

    def _fit(self, pool: Pool, now: int) -> None:
        """Learn from what the workers of a pool have just said."""
        fit = self.fits.get(pool.name)
        if fit is not None and not fit.fits(pool):
            self.forget_pool(pool.name)  # it is another pool now, whatever its name
            fit = None
        if fit is None:
            fit = self.fits[pool.name] = PoolFit.of(pool, self.lines.pop(pool.name, NO_LINES))
        fit.look(pool, now)
        lines = fit.lines()
        if lines.decode is not None or lines.prefill is not None:
            self.lines[pool.name] = lines

    def _is_behind(self, model: Model, need: RoleDemand) -> bool:
        """Whether more waits than the workers that were asked for can serve in time."""
        arriving = need.demand - self.backlogs[need.role]
        backlog = self._backlog(need.role, arriving, model.objectives)
        forecast_request = sum(
            rate * self.sized[name].replicas for name, rate in need.capacities.items() if name in self.sized
        )
        return backlog > 0.0 and arriving + backlog > forecast_request

    def _backlog(self, role: Role, arriving: float, objectives: ObjectiveKnobs) -> float:
        """Requests a second to serve beside those that arrive.

        As many as arrive within the TTFT may wait: each of them waits no longer than that.
        """
        late = self.waiting.get(role, 0) - arriving * objectives.ttft_ms / 1_000.0
        return max(0.0, late) * 1_000.0 / self.knobs.drain_ms

    def _sizing(self, outlook: Outlook, lengths: tuple[LengthDistribution, LengthDistribution], model: Model) -> Sizing:
        objectives, pools = model.objectives, list(model.pools.values())
        demand = self.demand(outlook, lengths)
        if objectives.attainment is not None:
            demand = replace(demand, attainment=objectives.attainment)
        shares = []
        for role in {pool.knobs.role: None for pool in pools}:
            arriving = _arriving(role, objectives, demand)
            self.backlogs[role] = self._backlog(role, arriving, objectives)
            whole, ours = arriving + self.backlogs[role], [pool for pool in pools if pool.knobs.role == role]
            self.served |= served_by(ours, objectives, demand, whole, self.lines)
            shares.append(RoleShare(role, ours, self.served, whole))
        self.role_needs = {share.role: share.need for share in shares}
        hours = self.knobs.switching_cost_hours
        return lambda times: {name: size for share in shares for name, size in share.sizes(times, hours).items()}


def _standing(need: RoleDemand, model: Model, now: int) -> RoleDemand:
    """No more than the workers serve that stand."""
    served = sum(rate * model.pools[name].effective_target(now) for name, rate in need.capacities.items())
    return replace(need, demand=min(need.demand, served))


def _waiting(model: Model, now: int) -> dict[Role, int]:
    """By role; what no worker has taken yet waits for prompts to be computed, where that is a role."""
    waiting: dict[Role, int] = {}
    for pool in model.pools.values():
        waiting[pool.knobs.role] = waiting.get(pool.knobs.role, 0) + pool.load.waiting
    first: Role = next((role for role in waiting if role != "decode"), "decode")
    waiting[first] += model.traffic.queued(now)
    return waiting


def _arriving(role: Role, objectives: ObjectiveKnobs, demand: Demand) -> float:
    """Requests a second of a role; where an objective says how many tokens are to be served, of as many tokens."""
    if objectives.tokens_per_s:
        return objectives.tokens_per_s / max(1.0, demand.osl.mean)
    if role == "decode":  # what swings by chance is in the queue
        return demand.requests_per_s * demand.decode_share / demand.decode_peak
    return demand.requests_per_s
