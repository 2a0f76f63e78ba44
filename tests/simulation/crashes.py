"""Crash points: an agent dies before it performs an effect, or after it and before it hears of the result."""

from typing import Literal, get_args

from msgspec.structs import replace

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import AnyEvent, DrainRequested, PauseRequested
from loadline.core.vocabulary.forecasts import ForecastKnobs
from loadline.core.vocabulary.samples import TrafficSample
from loadline.ports import Write
from loadline.sim.chaos import liveness
from loadline.sim.chaos.checker import InvariantChecker
from loadline.sim.chaos.invariants import Violation
from loadline.sim.chaos.plan import FaultPlan
from loadline.sim.chaos.settings import chaos_settings
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent, TurnObserver
from loadline.sim.world.timeline import START_MS
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects

Side = Literal["before", "after"]
Way = Literal["restart", "takeover"]

KINDS = tuple(kind.__name__ for kind in get_args(AnyEffect))
SIDES: tuple[Side, ...] = get_args(Side)
WAYS: tuple[Way, ...] = get_args(Way)
BASE_MS = 150_000.0
CALM_MS = 120_000.0
RESTART_MS = 300.0
TRAFFIC_MS = 1_000.0


def told(agent: str, gpus: int | None) -> Settings:
    """The settings of the fault world, and a third model, whose planner asks for forecasts every 10 s."""
    base = chaos_settings(agent, gpus)
    pool = PoolKnobs("both", "aggregated", 1, 1, 3, start_deadline_ms=30_000)
    knobs = ThroughputKnobs(throughput_adjustment_interval_ms=10_000, forecast=ForecastKnobs("constant"))
    ahead = ModelKnobs(
        "ahead",
        (pool,),
        planner="throughput",
        planner_knobs={"throughput": knobs},
        guardrails=base.models[0].guardrails,
    )
    linear = LinearKnobs(alpha=10.0, beta=0.1, gamma=5.0, delta=0.05, max_kv_tokens=16_000.0)
    profiles = {"ahead": {"both": EngineProfile(linear=linear)}}
    return replace(base, models=(*base.models, ahead), profiles=profiles)


class Scenario(TurnObserver):
    """A short life with everything in it: growth, shrink, drains, a worker that never answers, a pause, a hand-over.

    ``kill`` is asked at every effect, before and after it, and tells whether the agent dies there.
    """

    def __init__(self, agents: int) -> None:
        self.world = ChaosWorld(FaultPlan(seed=1, agents=agents, gpus=12), told)
        self._traffic = 0
        self.judge = InvariantChecker(self.world)
        self.seen: dict[str, int] = {}
        """How many effects of each kind there were."""
        self._numbers: dict[int, tuple[int, AnyEffect]] = {}
        """By identity; the effect is held, as the identity of one that is gone is given to another."""
        self.target: tuple[str, Side, int] | None = None
        self.way: Way = "restart"
        self.killed = False
        self._script()
        self.world.observers.append(self)

    def run(self) -> Violation | None:
        """Play it; then everything has to come right."""
        timeline = self.world.timeline
        self.world.start()
        timeline.call_at(BASE_MS + CALM_MS, lambda: liveness.check_calm_end(self.world, self.judge.report))
        timeline.run_until(BASE_MS + CALM_MS)
        for agent in list(self.world.agents.values()):
            self.world.kill_agent(agent)
        for worker in list(self.world.workers.values()):
            worker.kill()
        return self.judge.findings.first

    def _script(self) -> None:
        world, at = self.world, self.world.timeline.call_at
        at(0.0, self._arrive)
        at(0.0, lambda: world.demand.update({("ahead", "both"): 0.8}))  # one worker is enough
        both, decode, prefill = ("whole", "both"), ("split", "decode"), ("split", "prefill")
        at(15_000.0, lambda: world.demand.update({both: 6.0, decode: 3.5}))
        at(55_000.0, lambda: world.demand.update({both: 1.5, decode: 1.5, prefill: 2.5}))
        at(90_000.0, self._deafen_one)
        at(110_000.0, lambda: self._tell(PauseRequested("split", paused=True, by="operator")))
        at(118_000.0, lambda: self._tell(PauseRequested("split", paused=False, by="operator")))
        at(125_000.0, self._stop_leader)
        at(BASE_MS, lambda: world.store.commit([], [Write(Keys("default").pause("split"), None)]))

    def _arrive(self) -> None:
        """A frontend sees one request a second of the model that looks ahead."""
        self._traffic += 1
        sample = TrafficSample(
            self._traffic, int(TRAFFIC_MS), arrivals=1, completed=1, isl_tokens=100.0, osl_tokens=10.0
        )
        report = TrafficReport("ahead", "frontend", START_MS, sample)
        self.world.rogue.publish_now(Subjects("loadline").traffic("ahead", "frontend"), encode(report))
        self.world.timeline.call_later(TRAFFIC_MS, self._arrive)

    def _tell(self, event: AnyEvent) -> None:
        for agent in self.world.agents.values():
            agent.inbox.put(event)

    def _deafen_one(self) -> None:
        """A worker that is to leave hears nothing: its lease is revoked in the end."""
        worker = next(iter(self.world.workers_of(("whole", "both"))))
        worker.bus.set_partitioned(partitioned=True)
        record = worker.record
        self._tell(DrainRequested(record.model, record.pool, record.worker, "operator"))
        self.world.timeline.call_later(40_000.0, worker.kill)

    def _stop_leader(self) -> None:
        leader = self.world.leader
        if leader is not None:
            self.world.stop_agent(leader)
            self.world.timeline.call_later(12_000.0, lambda: self.world.restart_agent(leader.name))

    # -- as a watcher --------------------------------------------------------------------------------------------------

    def before_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Count it, and die there if it is the one; what comes too late to get over it counts for nothing."""
        kind = type(effect).__name__
        if self.world.timeline.now_ms < BASE_MS:
            self.seen[kind] = self.seen.get(kind, 0) + 1
            self._numbers[id(effect)] = self.seen[kind], effect
            self._die(agent, effect, "before")

    def after_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Die there if it is the one."""
        self._die(agent, effect, "after")

    def _die(self, agent: SimulatedAgent, effect: AnyEffect, side: Side) -> None:
        number, _ = self._numbers.get(id(effect), (0, effect))
        this = type(effect).__name__, side, number
        if self.killed or self.target != this or not agent.alive:
            return
        self.killed = True
        self.world.kill_agent(agent)
        # Restarted at once, it meets its own lease; where another takes over, it comes back when that has happened.
        wait_ms = RESTART_MS if self.way == "restart" else 20_000.0
        self.world.timeline.call_later(wait_ms, lambda: self.world.restart_agent(agent.name))


def occurrences(way: Way) -> dict[str, int]:
    """How many effects of each kind there are when nobody dies."""
    scenario = Scenario(_agents(way))
    found = scenario.run()
    assert found is None, str(found)
    return scenario.seen


def crash(kind: str, side: Side, way: Way, occurrence: int) -> Violation | None:
    """What breaks when an agent dies there."""
    scenario = Scenario(_agents(way))
    scenario.target, scenario.way = (kind, side, occurrence), way
    found = scenario.run()
    assert scenario.killed, f"there is no {kind} number {occurrence}"
    return found


def _agents(way: Way) -> int:
    return 1 if way == "restart" else 2
