"""The chaos world: agents, workers, a scaler and a frontend around a bus and a store in virtual time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from msgspec.structs import replace

from loadline.core.state.partition import split
from loadline.core.state.settings import ModelKnobs, Settings, Sharing
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import AnyEvent
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.runtime.feeds import KeyRouter
from loadline.sim.chaos.faulty_fitter import FaultyFitter
from loadline.sim.chaos.frontend import ChaosFrontend, PoolKey
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.chaos.journal import SampledJournal
from loadline.sim.chaos.night_fleet import NightFleet
from loadline.sim.chaos.night_settings import NIGHT, NIGHT_POOL
from loadline.sim.chaos.plan import TURN_SPACING_MS, FaultPlan
from loadline.sim.chaos.request_client import RequestClient
from loadline.sim.chaos.request_runs import WorkerInstance, WorkerRuns
from loadline.sim.chaos.scaler_faults import FaultyScalerConnection
from loadline.sim.chaos.settings import INTERVAL_MS, chaos_settings
from loadline.sim.chaos.stub_engine import StubEngine, WorkShare
from loadline.sim.engine import EngineEvent
from loadline.sim.serving.transfer import TransferLink
from loadline.sim.world.agent import SimulatedAgent, TurnObserver, VirtualClock
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.migration import HandoverKnobs
from loadline.sim.world.scaler import ScaledWorker, SimulatedScaler
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.sim.world.worker import SimulatedWorker, SimulatedWorkerKnobs
from loadline.wire.codec import decode_epoch
from loadline.wire.keys import Keys
from loadline.wire.messages import MigrateCommand

SHUTDOWN_TIMEOUT_MS: Final = 10_000.0
"""Deadline of an agent's shutdown."""
_JOURNAL_RATIO: Final = 0.25
"""Fraction of agent lifetimes with a journal; encoding a turn takes as long as handling it."""

_NEVER_MS: Final = 1e12
_REGISTRATION_MS_MAX: Final = 8_000.0
"""Longest time from the start of a worker's process until it registers, as an engine that loads libraries first."""
_START_MS: Final = (500.0, 12_000.0)
_SLOW_START_MS: Final = (20_000.0, 45_000.0)
"""Start-up times of workers; slow ones may exceed the deadline of 30 s."""
WakeFault = Literal["none", "slow", "fails"]
"""Fault of the first workers of a pool."""
IDLE_BELOW: Final = 0.4
"""Utilisation below which a pool has no waiting requests."""
_OVERLOADED_WAITING: Final = 12.0
"""Waiting requests at each worker under twice the work that it can do."""

# 1 GB/s and 2 MB per token: 0.5 to 3 s for a request.
_LINK: Final = TransferLink(1.0, 50.0, 2_000_000)


def _key(agent: SimulatedAgent) -> str:
    """Return the name of an agent, with its scope if it shares the models."""
    settings = agent.controller.settings
    return f"{agent.name}/{settings.scope}" if settings.sharing.layout else agent.name


class ChaosWorld(TurnObserver):
    """All processes. ``observers`` see every turn and every effect of every agent.

    Args:
        plan: Seed, and the base fault rates of bus, store and clocks.
        settings_of: Returns the settings of an agent by its name and the plan.
    """

    def __init__(self, plan: FaultPlan, settings_of: Callable[[str, FaultPlan], Settings] = chaos_settings) -> None:
        self.plan = plan
        self.timeline = Timeline(plan.seed)
        self.interval_ms = float(INTERVAL_MS * plan.tempo)
        """Interval of all reports."""
        self.bus = VirtualBus(self.timeline, faults=plan.bus)
        self.peer_bus = VirtualBus(self.timeline, faults=plan.peers, purpose="peers")
        """Bus between workers and frontends, with faults of its own."""
        self.store = VirtualStore(self.timeline, faults=plan.store)
        self.settings_of: Callable[[str], Settings] = lambda name: replace(
            settings_of(name, plan), sharing=Sharing(self.plan.shards)
        )
        self.models: dict[str, ModelKnobs] = {model.name: model for model in self.settings_of("").models}
        self.observers: list[TurnObserver] = []
        self.on_journal: Callable[[SimulatedAgent, SampledJournal], None] = lambda _agent, _journal: None
        """Called with every new journal."""
        self.on_migration_phase: list[Callable[[SimulatedWorker, str, MigrateCommand], object]] = []
        """Called with every phase of every migration."""
        self.on_violation: ReportViolation = lambda _name, _detail: None
        """Called with violations of the request invariants."""
        self.agents: dict[str, SimulatedAgent] = {}
        """Agents by name; those that share the models by name and scope, one for each shard of a process."""
        self.workers: dict[str, SimulatedWorker] = {}
        self.deposed_epochs: set[tuple[str, int]] = set()
        """Scopes and epochs that an operator ended; their leaders cannot know at once."""
        self.demand: dict[PoolKey, float] = {}
        self.new_workers_start = True
        """True if new workers ever become ready."""
        self.wake_fault: WakeFault = "none"
        """Fault of new workers of a pool without any: they start slowly, or end before they are ready."""
        self.drains_hang = False
        """True if draining workers never become empty."""
        self.copies_hang = False
        """True if KV copies never end."""
        self.migrations_refused = False
        """True if all workers refuse incoming migrations."""
        self.fitter = FaultyFitter(self.timeline)
        """Forecasts and allocations of all agents."""
        self.scaler_bus = FaultyScalerConnection(self.bus)
        self.rogue = self.bus.connection()
        """Connection of a client that publishes false messages."""
        self.scopes: dict[str, str] = {
            model.name: part.scope for part in split(self.settings_of("")) for model in part.models
        }
        """Scope of the leader of each model."""
        self._rng = self.timeline.rng("world")
        self._registration_rng, self._pace_rng = (self.timeline.rng(name) for name in ("registrations", "paces"))
        self._serving: dict[PoolKey, list[str]] = {}
        self._started = 0
        self._request_clients: dict[SimulatedWorker, RequestClient] = {}
        self.frontend = ChaosFrontend(
            self.timeline,
            self.peer_bus,
            [(model.name, pool.name) for model in self.models.values() for pool in model.pools if model.name != NIGHT],
            self._serving_instances,
            self._report_violation,
        )
        pools = {name: [pool.name for pool in model.pools] for name, model in self.models.items()}
        self.scaler = SimulatedScaler(self.timeline, pools, self.scaler_bus, self._start_scaled)
        self.night = self._night_fleet()

    def start(self) -> None:
        """Start the agents, the initial workers and the frontends of ``night``."""
        night = NIGHT, NIGHT_POOL
        if self.plan.night:
            self.night.start_frontends(self.bus, lambda: self.demand[night], lambda: bool(self._serving[night]))
        for model in self.models.values():
            for pool in model.pools:
                self.demand[model.name, pool.name] = 1.5
                self._serving[model.name, pool.name] = []
                for _ in range(pool.replicas_min + 1):
                    self.scaler.adopt(self._start_scaled(model.name, pool.name))
        for number in range(self.plan.agents):
            self.start_agent(f"agent-{number}")

    # -- agents --------------------------------------------------------------------------------------------------------

    def start_agent(self, name: str, clock_skew_ms: float = 0.0) -> SimulatedAgent:
        """Start an agent; each lifetime has another clock skew, which is added to this one, and drift."""
        plan, rng = self.plan, self._rng
        skew_ms = clock_skew_ms + rng.uniform(-plan.clock_skew_ms_max, plan.clock_skew_ms_max)
        drift = rng.uniform(-plan.clock_drift_max, plan.clock_drift_max)
        spacing_ms = self._pace_rng.uniform(TURN_SPACING_MS, plan.turn_spacing_ms_max)
        journal = SampledJournal(rng.randrange(2**32)) if rng.random() < _JOURNAL_RATIO else None
        settings, clock = self.settings_of(name), VirtualClock(self.timeline, skew_ms, drift)
        router = KeyRouter(Keys("default"), settings) if plan.shards > 1 else None
        agents = [
            SimulatedAgent(
                self.timeline,
                part,
                self.bus.connection(),
                self.store.connection(),
                clock=clock,
                journal=None if shard else journal,
                turn_spacing_ms=spacing_ms,
                observer=self,
                router=router,
                shard=shard,
                fitter=self.fitter,
            )
            for shard, part in enumerate(split(settings))
        ]
        self.agents |= {_key(agent): agent for agent in agents}
        if journal is not None:
            self.on_journal(agents[0], journal)
        return agents[0]

    def process_of(self, name: str) -> list[SimulatedAgent]:
        """Return the agents that run in a process: one for each shard."""
        return [agent for agent in self.agents.values() if agent.name == name]

    def restart_agent(self, name: str) -> None:
        """Start an agent again, unless it runs."""
        if not self.process_of(name):
            self.start_agent(name)

    def kill_agent(self, agent: SimulatedAgent) -> None:
        """Kill an agent's process."""
        if agent.alive:
            for one in self.process_of(agent.name):
                one.kill()
                del self.agents[_key(one)]

    def stop_agent(self, agent: SimulatedAgent) -> None:
        """Ask an agent to shut down, and kill it at the deadline."""
        for one in self.process_of(agent.name) if agent.alive else ():
            one.stop()
        self.timeline.call_later(SHUTDOWN_TIMEOUT_MS, partial(self.kill_agent, agent))

    @property
    def leader(self) -> SimulatedAgent | None:
        """First agent, by name, that believes itself the leader."""
        return next((one for _, one in sorted(self.agents.items()) if one.controller.leading), None)

    def leaders_of(self, scope: str) -> list[SimulatedAgent]:
        """Return the agents that believe themselves the leader of a scope."""
        agents = [one for _, one in sorted(self.agents.items()) if one.controller.leading]
        return [one for one in agents if one.controller.settings.scope == scope]

    def epoch_of(self, scope: str) -> int:
        """Return the epoch of the leader's key of a scope in the store; 0: there is no such key."""
        keys, entries = Keys("default"), self.store.keys
        return decode_epoch(entries[keys.epoch(scope)].value) if keys.leader(scope) in entries else 0

    # -- observers -----------------------------------------------------------------------------------------------------

    def before_turn(self, agent: SimulatedAgent, events: Sequence[AnyEvent], now: int) -> None:
        """Forward to all observers."""
        for observer in self.observers:
            observer.before_turn(agent, events, now)

    def after_turn(
        self, agent: SimulatedAgent, events: Sequence[AnyEvent], effects: Sequence[AnyEffect], now: int
    ) -> None:
        """Forward to all observers."""
        for observer in self.observers:
            observer.after_turn(agent, events, effects, now)

    def before_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Forward to all observers."""
        for observer in self.observers:
            observer.before_effect(agent, effect)

    def after_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Forward to all observers."""
        for observer in self.observers:
            observer.after_effect(agent, effect)

    # -- workers -------------------------------------------------------------------------------------------------------

    def start_worker(self, model: str, pool: str, name: str = "", incarnation: int | None = None) -> SimulatedWorker:
        """Start a worker, under a new name if none is given."""
        record = self._new_record(model, pool, name, incarnation)
        found = self._start_ms(record)
        start_ms = _NEVER_MS if found is None else found
        worker = self._start_incarnation(
            record,
            StubEngine(record.role, lambda: self._work_share(worker.record), self._runs_of(record)),
            start_ms,
            self._registration_rng.uniform(0.0, min(start_ms, _REGISTRATION_MS_MAX)),
        )
        if found is None:
            self.timeline.call_later(_START_MS[0], worker.kill)
        return worker

    def _start_scaled(self, model: str, pool: str) -> ScaledWorker:
        """Start what the scaler asks for: a worker, or an engine with a sidecar."""
        if model != NIGHT:
            return self.start_worker(model, pool)
        record = self._new_record(model, pool)
        start_ms = self._start_ms(record)
        sidecar = self.night.start_engine(record, _NEVER_MS if start_ms is None else start_ms)
        if start_ms is None:
            self.timeline.call_later(_START_MS[0], sidecar.kill)
        return sidecar

    def _new_record(self, model: str, pool: str, name: str = "", incarnation: int | None = None) -> WorkerRecord:
        knobs = next(one for one in self.models[model].pools if one.name == pool)
        self._started += 1
        return WorkerRecord(
            model=model,
            pool=pool,
            worker=name or f"w{self._started}",
            role=knobs.role,
            incarnation=START_MS + int(self.timeline.now_ms) if incarnation is None else incarnation,
            gpus=knobs.gpus_per_worker,
        )

    def _start_ms(self, record: WorkerRecord) -> float | None:
        """Return the start-up time of a worker; None: it ends before it is ready."""
        asleep = not self.workers_of((record.model, record.pool))
        if asleep and self.wake_fault == "fails":
            return None
        if not self.new_workers_start:
            return _NEVER_MS
        return self._rng.uniform(*(_SLOW_START_MS if asleep and self.wake_fault == "slow" else _START_MS))

    def _runs_of(self, record: WorkerRecord) -> WorkerRuns:
        return WorkerRuns(self.frontend.runs, (record.worker, record.incarnation))

    def _start_incarnation(
        self, record: WorkerRecord, engine: StubEngine, start_ms: float, registration_delay_ms: float = 0.0
    ) -> SimulatedWorker:
        """Start the process of a worker."""
        worker = SimulatedWorker(
            self.timeline,
            record,
            engine,
            self.bus.connection(),
            self.store.connection(),
            peers=self.peer_bus.connection(),
            knobs=SimulatedWorkerKnobs(
                start_ms,
                self.interval_ms,
                registration_delay_ms=registration_delay_ms,
                handovers=HandoverKnobs(_LINK.live_copy),
            ),
            on_event=self._on_engine_event,
            on_change=self._on_worker_changed,
        )
        worker.never_drains = self.drains_hang
        worker.migration.copies_hang, worker.migration.refuses_room = self.copies_hang, self.migrations_refused
        worker.migration.on_phase = partial(self._on_migration_phase, worker)
        self.workers[record.worker] = worker
        self._request_clients[worker] = RequestClient(self.timeline, worker)
        return worker

    def _night_fleet(self) -> NightFleet:
        return NightFleet(
            self.timeline,
            self.interval_ms,
            self.frontend.runs,
            start=partial(self._start_incarnation, start_ms=_NEVER_MS),
            share=self._work_share,
            report=self._report_violation,
        )

    def _on_engine_event(self, worker: SimulatedWorker, event: EngineEvent) -> None:
        self._request_clients[worker].on_engine_event(event)

    def _on_migration_phase(self, worker: SimulatedWorker, phase: str, command: MigrateCommand) -> None:
        for callback in self.on_migration_phase:
            callback(worker, phase, command)

    def _report_violation(self, name: str, detail: str) -> None:
        self.on_violation(name, detail)

    def _serving_instances(self, pool: PoolKey) -> list[WorkerInstance]:
        return [(one.record.worker, one.record.incarnation) for one in self.workers_of(pool) if one.serving]

    def workers_of(self, pool: PoolKey) -> list[SimulatedWorker]:
        """Return the live workers of a pool."""
        return [one for one in self.workers.values() if (one.record.model, one.record.pool) == pool]

    def _work_share(self, record: WorkerRecord) -> WorkShare:
        """Return a worker's share of its pool's demand, which is divided among the serving workers.

        In a pool that is neither idle nor overloaded one request waits, at one worker. That lies between the planner's
        thresholds, so the count converges.
        """
        pool, name = (record.model, record.pool), record.worker
        serving = self._serving[pool]
        busy = self.demand[pool] / max(1, len(serving))
        if busy > 1.0:
            return WorkShare(busy, 1 + int(_OVERLOADED_WAITING * (busy - 1.0)))
        return WorkShare(busy, int(busy > IDLE_BELOW and serving[:1] == [name]))

    def _on_worker_changed(self, worker: SimulatedWorker) -> None:
        name = worker.record.worker
        if not worker.alive:
            self._request_clients.pop(worker).close()
            self.frontend.runs.died((name, worker.record.incarnation))
            if self.workers.get(name) is worker:
                del self.workers[name]
        if worker.alive and worker.draining and isinstance(worker.engine, StubEngine):
            worker.engine.empty_at(self.timeline.now_ms + self._rng.uniform(500.0, 15_000.0))
        for pool in {(worker.record.model, name) for name in (worker.record.pool, worker.record.home)}:
            self._serving[pool] = [one.record.worker for one in self.workers_of(pool) if one.serving]
