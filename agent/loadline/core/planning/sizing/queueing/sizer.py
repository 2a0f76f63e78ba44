"""Pools sized together by the cost of serving their role's demand, each worker as a queue."""

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.demand.backlog import Backlog
from loadline.core.planning.demand.outlook import TrafficLoad
from loadline.core.planning.demand.tracker import DemandUpdate
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.planning.sizing.profile.correction import Correction
from loadline.core.planning.sizing.profile.counts import Demand, Sizing, profile_problem
from loadline.core.planning.sizing.profile.pool_sizes import PoolSizes
from loadline.core.planning.sizing.profile.sizer import demand_of
from loadline.core.planning.sizing.queueing.online_fits import EngineFits, EngineLines
from loadline.core.planning.sizing.queueing.rates import WorkerThroughput, throughputs_of
from loadline.core.planning.sizing.queueing.role_shares import RoleShare
from loadline.core.vocabulary.reasons import Reason, ReasonCode, RoleDemand
from loadline.core.vocabulary.scalars import Role
from loadline.core.vocabulary.status import PoolEstimate


class LearnedEngines(Struct, frozen=True):
    """Exported state of the engines, which outlives an agent."""

    lines: dict[str, EngineLines]
    correction: bytes | None = None


class QueueSizer(Struct):
    """Sizes of the pools of a model by a queueing model of their workers."""

    sizes: PoolSizes = field(default_factory=PoolSizes)
    correction: Correction = field(default_factory=Correction)
    engines: EngineFits = field(default_factory=EngineFits)
    backlog: Backlog = field(default_factory=Backlog)
    throughputs: dict[str, WorkerThroughput] = field(default_factory=dict)
    """Rate that one worker of each pool serves, as of the last sizing."""
    demands: dict[Role, RoleDemand] = field(default_factory=dict)
    """Demand of each role, as of the last sizing."""
    backlog_requests_per_s: dict[Role, float] = field(default_factory=dict)
    """Part of each demand that serves the backlog."""

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool; it serves no demand any more."""
        self.sizes.forget_pool(pool)
        self.engines.forget_pool(pool)
        self.throughputs.pop(pool, None)
        for role, demand in self.demands.items():
            capacities = {name: rate for name, rate in demand.capacities.items() if name != pool}
            self.demands[role] = replace(demand, capacities=capacities)

    def apply(self, update: DemandUpdate, model: Model, knobs: QueueingKnobs, now: int) -> None:
        """Learn from an interval that has ended, and size the pools for a new load."""
        if update.ended is not None and not knobs.no_correction:
            self.correction.learn(model, update.ended, knobs.throughput_adjustment_interval_ms, now)
        if update.is_new_forecast:
            self.sizes.start_forecast(model, now)
        if update.load is not None:
            self.resize(model, update.load, knobs, now)

    def resize(self, model: Model, load: TrafficLoad, knobs: QueueingKnobs, now: int) -> None:
        """Size all pools for a load."""
        sizing = self._sizing(model, load, knobs)
        self.sizes.resize(model, load, sizing, self._reason, step_max=knobs.replicas_step_max, now=now)

    def learns(self, pool: Pool, knobs: QueueingKnobs) -> bool:
        """Return True if the latency lines of a pool are learned from the iterations of its workers."""
        return knobs.fitted == "always" or (knobs.fitted == "unprofiled" and profile_problem(pool) is not None)

    def is_short(self, objectives: ObjectiveKnobs, drain_ms: int) -> bool:
        """Return True if a backlog needs more workers than the pools are sized to."""
        return any(self._is_short(demand, objectives, drain_ms) for demand in self.demands.values())

    def hold_reason(self, model: Model, pool: Pool, now: int) -> Reason | None:
        """Return the reason why a pool has no size; None if it has one."""
        problem = self.sizes.problems.get(pool.name)
        if problem is not None:
            learning = self.engines.learning_problem(pool)
            return problem if learning is None else Reason(ReasonCode.ENGINE_LEARNING, pool.name, detail=learning)
        if not model.traffic.is_reporting(now) or pool.name not in self.sizes.sized:
            return Reason(ReasonCode.TRAFFIC_UNKNOWN, pool.name, detail=model.traffic.missing_input(now))
        return None

    def corrections(self, knobs: QueueingKnobs) -> dict[str, float]:
        """Return the correction factors by role; none if the profiles are used as they are."""
        return {} if knobs.no_correction else self.correction.by_role

    def export_learned(self, knobs: QueueingKnobs) -> bytes | None:
        """Return the latency lines and the correction factors; None if nothing was learned."""
        correction = None if knobs.no_correction else self.correction.export_learned()
        learned = LearnedEngines(dict(sorted(self.engines.lines.items())), correction)
        return msgspec.json.encode(learned) if learned.lines or learned.correction else None

    def import_learned(self, data: bytes, knobs: QueueingKnobs) -> None:
        """Start with exported lines, until iterations give new ones; implausible ones are ignored."""
        try:
            learned = msgspec.json.decode(data, type=LearnedEngines)
        except msgspec.MsgspecError:
            return
        if not all(lines.are_plausible() for lines in learned.lines.values()):
            return
        self.engines.lines = dict(learned.lines)
        if learned.correction is not None and not knobs.no_correction:
            self.correction.import_learned(learned.correction)

    def estimates(self, model: Model) -> dict[str, PoolEstimate]:
        """Return what a worker of each pool serves, and the latencies of the expected load with the ready workers."""
        found: dict[str, PoolEstimate] = {}
        for role, demand in self.demands.items():
            ready = {name: model.pools[name].ready for name in demand.capacities}
            served = sum(rate * ready[name] for name, rate in demand.capacities.items())
            arriving = demand.demand - self.backlog_requests_per_s[role]
            for name, rate in demand.capacities.items():
                engine = self.throughputs[name].engine
                taken = arriving * rate * ready[name] / served if served else 0.0
                one = None if engine is None else engine.predict(role, taken, ready[name])
                found[name] = (
                    PoolEstimate(rate) if one is None else PoolEstimate(rate, one.ttft_ms, one.itl_ms, one.utilisation)
                )
        return found

    def _sizing(self, model: Model, load: TrafficLoad, knobs: QueueingKnobs) -> Sizing:
        objectives, pools = model.objectives, list(model.pools.values())
        attainment = knobs.attainment if objectives.attainment is None else objectives.attainment
        demand, shares = demand_of(load, attainment, self.correction), []
        for role in {pool.knobs.role: None for pool in pools}:
            arriving = _arriving(role, objectives, demand)
            rate = self.backlog.requests_per_s(role, arriving, objectives.ttft_ms, knobs.drain_ms)
            self.backlog_requests_per_s[role] = rate
            total, of_role = arriving + rate, [pool for pool in pools if pool.knobs.role == role]
            self.throughputs |= throughputs_of(of_role, objectives, demand, total, self.engines.lines)
            shares.append(RoleShare(role, of_role, self.throughputs, total))
        self.demands = {share.role: share.demand for share in shares}
        hours = knobs.switching_cost_hours
        return lambda factor: {name: size for share in shares for name, size in share.sizes(factor, hours).items()}

    def _reason(self, pool: Pool, numbers: dict[str, float], _code: ReasonCode) -> Reason:
        """Return the demand of the role, the pool's part of it, and the rate of a worker with its bound."""
        throughput, role = self.throughputs[pool.name], pool.knobs.role
        more = {
            "requests_per_s": self.demands[role].demand - self.backlog_requests_per_s[role],
            "backlog_requests_per_s": self.backlog_requests_per_s[role],
            "takes": numbers["busy"] * throughput.saturated_requests_per_s,
            "serves": throughput.requests_per_s,
        }
        detail = f"bound by {throughput.bound}"
        return Reason(ReasonCode.QUEUEING_TARGET, pool.name, numbers | more, detail=detail)

    def _is_short(self, demand: RoleDemand, objectives: ObjectiveKnobs, drain_ms: int) -> bool:
        arriving, sized = demand.demand - self.backlog_requests_per_s[demand.role], self.sizes.sized
        backlog = self.backlog.requests_per_s(demand.role, arriving, objectives.ttft_ms, drain_ms)
        capacity = sum(rate * sized[name].replicas for name, rate in demand.capacities.items() if name in sized)
        return backlog > 0.0 and arriving + backlog > capacity


def _arriving(role: Role, objectives: ObjectiveKnobs, demand: Demand) -> float:
    """Return the arrivals (1/s) at a role; with an objective of tokens per second, the requests with so many tokens."""
    if objectives.tokens_per_s:
        return objectives.tokens_per_s / max(1.0, demand.osl.mean)
    if role == "decode":  # the queueing model includes the variation of arrivals
        return demand.requests_per_s * demand.decode_share / demand.decode_peak
    return demand.requests_per_s
