"""Two models with a prefill and a decode pool each, which `auto` scales on fewer GPUs than both need."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import pytest
from msgspec import Struct

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.sim.engine import SimulatedEngine
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPoolKnobs, StartDelayKnobs, pools_of
from loadline.sim.profiles import LinearProfile
from loadline.sim.serving.frontend import SimulatedFrontend
from loadline.sim.serving.request_log import RequestLog
from loadline.sim.world.agent import SimulatedAgent
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.scaler import SimulatedScaler
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.sim.world.worker import SimulatedWorker, SimulatedWorkerKnobs
from loadline.traces import Arrival

ENGINE: Final = LinearProfile(14.0, 0.25, 12.0, 0.065)
"""A prefill worker serves 9 of the prompts below per second in time, a decode worker 8 of the answers."""
OBJECTIVES: Final = ObjectiveKnobs(1_000.0, 40.0)
ROLES: Final = ("prefill", "decode")
ISL, OSL = 1_000, 200
GPUS: Final = 12
STEP_MS: Final = 5_000.0

Rate = Callable[[float], float]
"""Requests per second at a time in s."""


class _Served(Struct):
    """A model: its frontend and its workers."""

    frontend: SimulatedFrontend
    alive: dict[str, SimulatedWorker]


class LimitedFleet:
    """World with one agent and two models, which share GPUs of one type."""

    def __init__(self, rates: dict[str, Rate], gpus: int, duration_s: float, **pool: int) -> None:
        self.timeline, self.duration_s = Timeline(7), duration_s
        self._bus, store = VirtualBus(self.timeline), VirtualStore(self.timeline)
        self._store = store
        pools = tuple(PoolKnobs(role, role, replicas_max=16, accelerator="h100", **pool) for role in ROLES)
        models = tuple(ModelKnobs(name, pools, objectives=OBJECTIVES) for name in rates)
        engines = tuple(
            SimulatedPoolKnobs(
                role,
                18_000,
                linear=ENGINE,
                workers=2,
                max_batch_requests=256,
                start_delay=StartDelayKnobs("lognormal", 40.0, 0.1),
            )
            for role in ROLES
        )
        fleet = SimulatedFleetKnobs(engines)
        self._pools = pools_of(fleet, models[0])
        self.served = {
            name: _Served(
                SimulatedFrontend(
                    self.timeline,
                    name,
                    self._pools,
                    fleet,
                    self._bus.connection(),
                    objectives=OBJECTIVES,
                    served=RequestLog(),
                ),
                {},
            )
            for name in rates
        }
        self._started = 0
        self._scaler = SimulatedScaler(
            self.timeline, dict.fromkeys(rates, ROLES), self._bus.connection(), partial(self._start, 40_000.0)
        )
        for name in rates:
            for role in ROLES:
                for _ in range(2):
                    self._scaler.adopt(self._start(0.0, name, role))
        settings = Settings(
            "agent",
            "all",
            models,
            accelerators=(AcceleratorKnobs("h100"),),
            allocation=AllocationKnobs({"h100": gpus}),
        )
        self.agent = SimulatedAgent(self.timeline, settings, self._bus.connection(), store.connection())
        self.counts: list[tuple[float, dict[tuple[str, str], int]]] = []
        for name, rate in rates.items():
            self._submit(name, rate)
        while self.timeline.now_ms < duration_s * 1_000.0:
            self.counts.append((self.timeline.now_ms / 1_000.0, self._count()))
            self.timeline.run_until(self.timeline.now_ms + STEP_MS)

    def _start(self, start_ms: float, model: str, pool: str) -> SimulatedWorker:
        self._started += 1
        one, served = self._pools[pool], self.served[model]
        record = WorkerRecord(
            model=model,
            pool=pool,
            worker=f"{model}-{pool}-{self._started}",
            role=one.role,
            incarnation=START_MS + int(self.timeline.now_ms),
            accelerator="h100",
            gpus=1,
            kv_blocks_total=one.engine.kv_blocks_total,
            block_size_tokens=one.engine.block_size_tokens,
            max_batch_requests=one.engine.max_batch_requests,
        )
        worker = SimulatedWorker(
            self.timeline,
            record,
            SimulatedEngine(one.engine, one.timing),
            self._bus.connection(),
            self._store.connection(),
            peers=self._bus.connection(),
            knobs=SimulatedWorkerKnobs(start_ms, 1_000.0),
            on_event=served.frontend.on_engine_event,
            on_change=self._on_changed,
        )
        served.alive[record.worker] = worker
        return worker

    def _on_changed(self, worker: SimulatedWorker) -> None:
        served = self.served[worker.record.model]
        served.frontend.on_worker_changed(worker)
        if not worker.alive:
            del served.alive[worker.record.worker]
            self._scaler.schedule_reconcile()

    def _submit(self, name: str, rate: Rate) -> None:
        """Submit Poisson arrivals by thinning."""
        rng, at_s = random.Random(name), 0.0
        most = max(rate(float(second)) for second in range(int(self.duration_s)))
        while (at_s := at_s + rng.expovariate(most)) < self.duration_s:
            if rng.random() * most < rate(at_s):
                arrival = Arrival(at_s, int(rng.uniform(0.5, 1.5) * ISL), int(rng.uniform(0.5, 1.5) * OSL))
                self.timeline.call_at(at_s * 1_000.0, partial(self.served[name].frontend.submit, arrival))

    def _count(self) -> dict[tuple[str, str], int]:
        """Return the workers by model and pool, starting and draining ones included."""
        found = {(name, role): 0 for name in self.served for role in ROLES}
        for served in self.served.values():
            for worker in served.alive.values():
                found[worker.record.model, worker.record.pool] += 1
        return found

    def mean(self, model: str, pool: str, from_s: float, until_s: float) -> float:
        """Return the mean number of workers from one time to another."""
        counts = [count[model, pool] for at_s, count in self.counts if from_s <= at_s < until_s]
        return sum(counts) / len(counts)
