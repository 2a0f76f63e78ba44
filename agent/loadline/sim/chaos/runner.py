"""A play: a plan is carried out on a world, and every invariant is watched until the first one breaks."""

from functools import partial
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from loadline.ports import Write
from loadline.sim.chaos import liveness
from loadline.sim.chaos.checker import InvariantChecker
from loadline.sim.chaos.fault_injector import FaultInjector
from loadline.sim.chaos.faults import inject_fault
from loadline.sim.chaos.invariants import Violation
from loadline.sim.chaos.plan import CALM_MS, CYCLE_MS, FaultPlan, draw
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.bus import BusFaults
from loadline.sim.world.store import StoreFaults
from loadline.wire.keys import Keys

STEP_MS: Final = 1_000.0
"""How often it is asked whether anything was found."""
_PAUSES_OVER_MS: Final = 20_000.0
"""Until then a pause that was asked for before may still be written."""


class ChaosResult(Struct, frozen=True):
    """What came of a play."""

    seed: int
    hours: float
    """Simulated."""
    violation: Violation | None
    digest: str
    """Hash of all that was decided and done: the same for the same plan, always."""
    counts: dict[str, int]
    """What happened: turns, decisions, effects by kind, endings of drains."""
    struck: dict[str, int]
    """Faults that were carried out, by kind."""


class ChaosRun:
    """One play.

    Args:
        plan: What goes wrong.
    """

    def __init__(self, plan: FaultPlan) -> None:
        self.plan = plan
        self.world = ChaosWorld(plan)
        self.judge = InvariantChecker(self.world)
        self.nemesis = FaultInjector(self.world)
        timeline = self.world.timeline
        for one in plan.strikes:
            timeline.call_at(one.at_ms, partial(inject_fault, self.nemesis, one))
        cycle_ms = 0.0
        while cycle_ms < plan.ends_ms:
            timeline.call_at(cycle_ms, self._trouble)
            calm_ms = cycle_ms + CYCLE_MS - CALM_MS
            timeline.call_at(calm_ms, self._calm)
            timeline.call_at(
                calm_ms + liveness.LEADER_AFTER_MS, partial(liveness.check_leader, self.world, self.report)
            )
            timeline.call_at(calm_ms + _PAUSES_OVER_MS, self._unpause)
            cycle_ms += CYCLE_MS
            timeline.call_at(cycle_ms, partial(liveness.check_calm_end, self.world, self.report))

    def report(self, name: str, detail: str) -> None:
        """Something does not hold."""
        self.judge.report(name, detail)

    def run(self) -> ChaosResult:
        """Play until the end or the first violation."""
        timeline = self.world.timeline
        self.world.begin()
        try:
            while timeline.now_ms < self.plan.ends_ms and self.judge.findings.first is None:
                timeline.run_until(timeline.now_ms + STEP_MS)
        except Exception as error:  # noqa: BLE001 - whatever is raised is what the play is for to find
            self.report("X-raises", f"{type(error).__name__}: {error}")
        return self._verdict()

    def _trouble(self) -> None:
        self.world.bus.faults, self.world.store.faults = self.plan.bus, self.plan.store
        self.world.peers.faults = self.plan.peers

    def _calm(self) -> None:
        """Nothing fails from now on; who was away comes back."""
        self.nemesis.heal()
        self.world.bus.faults, self.world.store.faults = BusFaults(), StoreFaults()
        self.world.peers.faults = BusFaults()
        for number in range(self.plan.agents):
            self.world.join_again(f"agent-{number}")

    def _unpause(self) -> None:
        keys = Keys("default")
        self.world.store.commit([], [Write(keys.pause(model), None) for model in self.world.models])

    def _verdict(self) -> ChaosResult:
        world, judge = self.world, self.judge
        hours = round(world.timeline.now_ms / 3_600_000, 4)
        counts = {
            "decisions": len(judge.history),
            "samples_replayed": judge.samples,
            **judge.counts,
            **world.keeper.counts,
        }
        told = [judge.findings.first, list(judge.history.values()), sorted(world.store.keys.items()), counts]
        for agent in list(world.agents.values()):
            world.kill(agent)
        for worker in list(world.workers.values()):
            worker.kill()
        digest = sha256(msgspec.json.encode(told)).hexdigest()
        return ChaosResult(
            self.plan.seed, hours, judge.findings.first, digest, counts, dict(sorted(self.nemesis.struck.items()))
        )


def run_plan(seed: int, hours: float = 1.0, plan: FaultPlan | None = None) -> ChaosResult:
    """Play the plan of a seed, or one that was kept."""
    return ChaosRun(plan or draw(seed, hours)).run()
