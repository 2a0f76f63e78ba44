"""Chaos run: injects the faults of a plan into a world and checks all invariants until the first violation."""

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
"""Interval at which the run checks for violations."""
_PAUSES_WRITTEN_MS: Final = 20_000.0
"""Time for earlier pause requests to reach the store."""


class ChaosResult(Struct, frozen=True):
    """Result of a run."""

    seed: int
    hours: float
    """Simulated hours."""
    violation: Violation | None
    digest: str
    """Hash of all decisions and effects; equal for equal plans."""
    counts: dict[str, int]
    """Turns, decisions, effects by kind, requests and migration phases."""
    injected: dict[str, int]
    """Injected faults by kind."""


class ChaosRun:
    """One run.

    Args:
        plan: The faults.
    """

    def __init__(self, plan: FaultPlan) -> None:
        self.plan = plan
        self.world = ChaosWorld(plan)
        self.checker = InvariantChecker(self.world)
        self.injector = FaultInjector(self.world)
        timeline = self.world.timeline
        for one in plan.faults:
            timeline.call_at(one.at_ms, partial(inject_fault, self.injector, one))
        cycle_ms = 0.0
        while cycle_ms < plan.ends_ms:
            timeline.call_at(cycle_ms, self._start_faults)
            calm_ms = cycle_ms + CYCLE_MS - CALM_MS
            timeline.call_at(calm_ms, self._start_calm)
            timeline.call_at(
                calm_ms + liveness.LEADER_AFTER_MS, partial(liveness.check_leader, self.world, self.report)
            )
            timeline.call_at(calm_ms + _PAUSES_WRITTEN_MS, self._clear_pauses)
            cycle_ms += CYCLE_MS
            timeline.call_at(cycle_ms, partial(liveness.check_calm_end, self.world, self.report))

    def report(self, name: str, detail: str) -> None:
        """Record a violation."""
        self.checker.report(name, detail)

    def run(self) -> ChaosResult:
        """Run until the end or the first violation."""
        timeline = self.world.timeline
        self.world.start()
        try:
            while timeline.now_ms < self.plan.ends_ms and self.checker.findings.first is None:
                timeline.run_until(timeline.now_ms + STEP_MS)
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            self.report("X-raises", f"{type(error).__name__}: {error}")
        return self._result()

    def _start_faults(self) -> None:
        self.world.bus.faults, self.world.store.faults = self.plan.bus, self.plan.store
        self.world.peer_bus.faults = self.plan.peers

    def _start_calm(self) -> None:
        """Stop all faults and restart agents that are down."""
        self.injector.undo_all()
        self.world.bus.faults, self.world.store.faults = BusFaults(), StoreFaults()
        self.world.peer_bus.faults = BusFaults()
        for number in range(self.plan.agents):
            self.world.restart_agent(f"agent-{number}")

    def _clear_pauses(self) -> None:
        keys = Keys("default")
        self.world.store.commit([], [Write(keys.pause(model), None) for model in self.world.models])

    def _result(self) -> ChaosResult:
        world, checker = self.world, self.checker
        hours = round(world.timeline.now_ms / 3_600_000, 4)
        counts = {
            "decisions": len(checker.committed.by_id),
            "samples_replayed": checker.samples,
            **checker.counts,
            **world.frontend.counts,
        }
        outcome = [
            checker.findings.first,
            list(checker.committed.by_id.values()),
            sorted(world.store.keys.items()),
            counts,
        ]
        for agent in list(world.agents.values()):
            world.kill_agent(agent)
        for worker in list(world.workers.values()):
            worker.kill()
        digest = sha256(msgspec.json.encode(outcome)).hexdigest()
        return ChaosResult(
            self.plan.seed, hours, checker.findings.first, digest, counts, dict(sorted(self.injector.injected.items()))
        )


def run_plan(seed: int, hours: float = 1.0, plan: FaultPlan | None = None) -> ChaosResult:
    """Run the plan of a seed, or a given plan."""
    return ChaosRun(plan or draw(seed, hours)).run()
