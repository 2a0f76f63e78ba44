"""Workers that change their role while agents and workers fail: no scaler ends a worker that serves."""

import random
from functools import partial
from typing import Final

import pytest
from msgspec.structs import replace

from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.state.settings import Settings
from loadline.scalers.local.plan import ProcessAction
from loadline.sim.chaos.fault_injector import FaultInjector
from loadline.sim.chaos.faults import inject_fault
from loadline.sim.chaos.plan import Fault, FaultPlan
from loadline.sim.chaos.settings import chaos_settings
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.scaler import SimulatedScaler, _ScaledPool

FAULTY_MS: Final = 600_000.0
CALM_MS: Final = 240_000.0
MOVES: Final = 40
FAULTS: Final = {"agent_killed": 4, "agent_paused": 4, "agent_off_store": 3, "worker_dies": 6, "demand": 12}
OTHER: Final = {"prefill": "decode", "decode": "prefill"}


def settings(agent: str, plan: FaultPlan) -> Settings:
    """Return the settings of the fault simulation without migrations, whose requests know of no moves."""
    found = chaos_settings(agent, plan)
    return replace(found, models=tuple(replace(model, migration=MigrationKnobs()) for model in found.models))


class MovingWorld:
    """World in which workers of the disaggregated model take the other role at random times."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(f"moves:{seed}")
        self.world = ChaosWorld(FaultPlan(seed, agents=2), settings)
        self.injector = FaultInjector(self.world)
        self.moved = 0
        self.ended_while_serving: list[str] = []
        execute, ended = SimulatedScaler._execute, self.ended_while_serving

        def watched(scaler: SimulatedScaler, pool: _ScaledPool, action: ProcessAction, now_ms: int) -> None:
            if action.worker and pool.workers[action.worker].serving:
                ended.append(f"{action.worker} of {pool.name}: {action.reason}")
            execute(scaler, pool, action, now_ms)

        monkeypatch.setattr(SimulatedScaler, "_execute", watched)
        timeline = self.world.timeline
        for _ in range(MOVES):
            timeline.call_at(self.rng.uniform(20_000.0, FAULTY_MS), self._move_one)
        for kind, count in FAULTS.items():
            for _ in range(count):
                fault = Fault(kind, self.rng.uniform(20_000.0, FAULTY_MS), 10_000.0, self.rng.random())
                timeline.call_at(fault.at_ms, partial(inject_fault, self.injector, fault))
        timeline.call_at(FAULTY_MS, self.injector.undo_all)

    def _move_one(self) -> None:
        movable = [one for _, one in sorted(self.world.workers.items()) if one.serving and one.record.pool in OTHER]
        if movable:
            worker = self.rng.choice(movable)
            other = OTHER[worker.record.pool]
            worker.move(other, "decode" if other == "decode" else "prefill")
            self.moved += 1

    def run(self) -> None:
        self.world.start()
        self.world.timeline.run_until(FAULTY_MS + CALM_MS)


@pytest.mark.parametrize("seed", range(3))
def test_no_worker_that_serves_is_ended_and_counts_converge(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = MovingWorld(seed, monkeypatch)
    moving.run()
    assert moving.moved > MOVES // 2, "the test moves workers"
    assert moving.ended_while_serving == []
    leader = moving.world.leader
    assert leader is not None
    workers = [one.record for one in moving.world.workers.values() if one.record.model == "split"]
    assert any(record.home_pool for record in workers), "some serve away from home at the end"
    pools = leader.controller.state.fleet.models["split"].pools
    started = {name: sum(record.home == name for record in workers) for name in pools}
    serving = {name: sum(record.pool == name for record in workers) for name in pools}
    assert {name: pool.decided for name, pool in pools.items()} == started
    assert {name: pool.target for name, pool in pools.items()} == serving
    assert {name: pool.ready for name, pool in pools.items()} == serving
