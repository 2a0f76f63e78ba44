"""Crash points: an agent is killed before it performs an effect, or after it and before the result arrives."""

from typing import Final, Literal, get_args

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
Recovery = Literal["restart", "takeover"]

SHARING: Final = frozenset({"RenewPresence", "LeavePresence", "FollowReports"})
"""Effects of agents that share the models, which the scenario does not; see test_shared_models.py."""
KINDS = tuple(kind.__name__ for kind in get_args(AnyEffect) if kind.__name__ not in SHARING)
SIDES: tuple[Side, ...] = get_args(Side)
RECOVERIES: tuple[Recovery, ...] = get_args(Recovery)
BASE_MS = 150_000.0
CALM_MS = 120_000.0
RESTART_MS = 300.0
TRAFFIC_MS = 1_000.0


def crash_settings(agent: str, plan: FaultPlan) -> Settings:
    """Return the settings of the chaos world with a third model, whose planner requests forecasts every 10 s."""
    base = chaos_settings(agent, plan)
    pool = PoolKnobs("both", "aggregated", 1, 1, 3, start_deadline_ms=30_000)
    knobs = ThroughputKnobs(throughput_adjustment_interval_ms=10_000, forecast=ForecastKnobs("constant"))
    forecasting = ModelKnobs(
        "ahead",
        (pool,),
        planner="throughput",
        planner_knobs={"throughput": knobs},
        guardrails=base.models[0].guardrails,
    )
    linear = LinearKnobs(alpha=10.0, beta=0.1, gamma=5.0, delta=0.05, max_kv_tokens=16_000.0)
    profiles = {"ahead": {"both": EngineProfile(linear=linear)}}
    return replace(base, models=(*base.models, forecasting), profiles=profiles)


class Scenario(TurnObserver):
    """Short run with scale-up, scale-down, drains, a worker that never answers, a pause and a change of leader.

    ``target`` and ``recovery`` select the effect at which an agent is killed, and how the run continues.
    """

    def __init__(self, agents: int) -> None:
        self.world = ChaosWorld(FaultPlan(seed=1, agents=agents, gpus=12), crash_settings)
        self._traffic = 0
        self.checker = InvariantChecker(self.world)
        self.seen: dict[str, int] = {}
        """Number of effects by kind."""
        self._numbers: dict[int, tuple[int, AnyEffect]] = {}
        """Number of each effect by identity; it holds the effect, since the identity of a freed object is reused."""
        self.target: tuple[str, Side, int] | None = None
        self.recovery: Recovery = "restart"
        self.killed = False
        self._script()
        self.world.observers.append(self)

    def run(self) -> Violation | None:
        """Run to the end of a calm phase; return the first violation."""
        timeline = self.world.timeline
        self.world.start()
        timeline.call_at(BASE_MS + CALM_MS, lambda: liveness.check_calm_end(self.world, self.checker.report))
        timeline.run_until(BASE_MS + CALM_MS)
        for agent in list(self.world.agents.values()):
            self.world.kill_agent(agent)
        for worker in list(self.world.workers.values()):
            worker.kill()
        return self.checker.findings.first

    def _script(self) -> None:
        world, at = self.world, self.world.timeline.call_at
        at(0.0, self._report_traffic)
        at(0.0, lambda: world.demand.update({("ahead", "both"): 0.8}))  # one worker is enough
        both, decode, prefill = ("whole", "both"), ("split", "decode"), ("split", "prefill")
        at(15_000.0, lambda: world.demand.update({both: 6.0, decode: 3.5}))
        at(55_000.0, lambda: world.demand.update({both: 1.5, decode: 1.5, prefill: 2.5}))
        at(90_000.0, self._partition_one)
        at(110_000.0, lambda: self._send_to_all(PauseRequested("split", paused=True, by="operator")))
        at(118_000.0, lambda: self._send_to_all(PauseRequested("split", paused=False, by="operator")))
        at(125_000.0, self._stop_leader)
        at(BASE_MS, lambda: world.store.commit([], [Write(Keys("default").pause("split"), None)]))

    def _report_traffic(self) -> None:
        """Report one request per second of the forecasting model."""
        self._traffic += 1
        sample = TrafficSample(
            self._traffic, int(TRAFFIC_MS), arrivals=1, completed=1, isl_tokens=100.0, osl_tokens=10.0
        )
        report = TrafficReport("ahead", "frontend", START_MS, sample)
        self.world.rogue.publish_now(Subjects("loadline").traffic("ahead", "frontend"), encode(report))
        self.world.timeline.call_later(TRAFFIC_MS, self._report_traffic)

    def _send_to_all(self, event: AnyEvent) -> None:
        for agent in self.world.agents.values():
            agent.inbox.put(event)

    def _partition_one(self) -> None:
        """Request a drain of a worker that is partitioned from the bus, so that its key is removed."""
        worker = next(iter(self.world.workers_of(("whole", "both"))))
        worker.bus.set_partitioned(partitioned=True)
        record = worker.record
        self._send_to_all(DrainRequested(record.model, record.pool, record.worker, "operator"))
        self.world.timeline.call_later(40_000.0, worker.kill)

    def _stop_leader(self) -> None:
        leader = self.world.leader
        if leader is not None:
            self.world.stop_agent(leader)
            self.world.timeline.call_later(12_000.0, lambda: self.world.restart_agent(leader.name))

    # -- observer ------------------------------------------------------------------------------------------------------

    def before_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Count the effect and kill the agent at the selected one; effects of the calm phase do not count."""
        kind = type(effect).__name__
        if self.world.timeline.now_ms < BASE_MS:
            self.seen[kind] = self.seen.get(kind, 0) + 1
            self._numbers[id(effect)] = self.seen[kind], effect
            self._kill_at_target(agent, effect, "before")

    def after_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Kill the agent at the selected effect."""
        self._kill_at_target(agent, effect, "after")

    def _kill_at_target(self, agent: SimulatedAgent, effect: AnyEffect, side: Side) -> None:
        number, _ = self._numbers.get(id(effect), (0, effect))
        place = type(effect).__name__, side, number
        if self.killed or self.target != place or not agent.alive:
            return
        self.killed = True
        self.world.kill_agent(agent)
        # Restarted at once, it finds its own lease; with a takeover it returns after another agent leads.
        wait_ms = RESTART_MS if self.recovery == "restart" else 20_000.0
        self.world.timeline.call_later(wait_ms, lambda: self.world.restart_agent(agent.name))


def occurrences(recovery: Recovery) -> dict[str, int]:
    """Return the number of effects by kind in a run without a crash."""
    scenario = Scenario(_agents(recovery))
    found = scenario.run()
    assert found is None, str(found)
    return scenario.seen


def crash(kind: str, side: Side, recovery: Recovery, occurrence: int) -> Violation | None:
    """Return the first violation of a run in which an agent is killed before or after its effect number ``occurrence``
    of a kind.
    """
    scenario = Scenario(_agents(recovery))
    scenario.target, scenario.recovery = (kind, side, occurrence), recovery
    found = scenario.run()
    assert scenario.killed, f"the run has no {kind} number {occurrence}"
    return found


def _agents(recovery: Recovery) -> int:
    return 1 if recovery == "restart" else 2
