"""Simulation of a trace on a simulated fleet, scaled by the production agent in virtual time.

    outcome = simulate(Scenario("mine", settings, fleet, trace), on_progress=print)

A clairvoyant run uses the same planner, which sees at every moment the state of one start-up delay later: a worker
serves at the moment of its request, and is paid for from one start-up delay before. It is a reference and not a
bound, since another policy may do better. A planner that forecasts still does so from the data that it gets.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Final

from msgspec import Struct

from loadline.core.queries import status as query
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import Journal
from loadline.sim.engine import SimulatedEngine
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPool, model_of, objectives_of, pools_of
from loadline.sim.result import FLAP_MS, MigrationTotals, PoolSeries, ScalingAction, SimulationResult, TimeSeries
from loadline.sim.serving.frontend import SimulatedFrontend
from loadline.sim.serving.request_log import RequestLog
from loadline.sim.world.agent import SimulatedAgent
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.migration import NO_HANDOVERS, HandoverKnobs
from loadline.sim.world.scaler import SimulatedScaler
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.sim.world.worker import SimulatedWorker, SimulatedWorkerKnobs
from loadline.traces import Trace
from loadline.wire.codec import Rejected, decode_as
from loadline.wire.messages import ScalingDecision
from loadline.wire.subjects import Subjects

LINE_STEPS_MAX: Final = 500
"""Points of a time series, about the width of a screen."""
_STEP_MIN_MS: Final = 5_000.0
_PROGRESS_STEPS: Final = 400
# Time for requests in flight at the end of the trace; no others arrive.
_RUN_OUT_MS: Final = 600_000.0


class Scenario(Struct, frozen=True):
    """Input of a simulation."""

    name: str
    settings: Settings
    fleet: SimulatedFleetKnobs
    trace: Trace
    seed: int = 0
    clairvoyant: bool = False
    """True to start workers without delay; see the module."""


def simulate(
    scenario: Scenario, on_progress: Callable[[float], None], journal: Journal | None = None
) -> SimulationResult:
    """Simulate a scenario to the end of its trace.

    Args:
        scenario: The input.
        on_progress: Called some hundred times with the progress, 0..1.
        journal: Journal of the agent's turns, if any.

    Raises:
        ConfigError: Fleet and configuration do not fit together.
        DataError: A profile cannot be used.
    """
    simulation = Simulation(scenario, journal)
    for step in range(1, _PROGRESS_STEPS + 1):
        simulation.run(simulation.duration_ms * step / _PROGRESS_STEPS)
        on_progress(step / _PROGRESS_STEPS)
    simulation.run_out()
    return simulation.result()


class _WorkerLifetime(Struct):
    """A worker's process and its cost."""

    worker: SimulatedWorker
    gpus: int
    paid_from_ms: float


class Simulation:
    """A world with one agent, one scaler, one frontend and the workers.

    Args:
        scenario: The input.
        journal: Journal of the agent's turns, if any.
    """

    def __init__(self, scenario: Scenario, journal: Journal | None = None) -> None:
        self._scenario = scenario
        settings, fleet = scenario.settings, scenario.fleet
        self._model = model_of(fleet, settings)
        self._pools = pools_of(fleet, self._model)
        self._objectives = objectives_of(fleet, self._model)
        self.duration_ms = scenario.trace.duration_s * 1_000.0
        self.timeline = Timeline(scenario.seed)
        self._bus, self._store = VirtualBus(self.timeline), VirtualStore(self.timeline)
        self._start_delay_rng = self.timeline.rng("start_delay")
        self._log = RequestLog()
        self._lifetimes: list[_WorkerLifetime] = []
        self._alive: dict[str, dict[str, SimulatedWorker]] = {name: {} for name in self._pools}
        self._started: dict[str, int] = dict.fromkeys(self._pools, 0)
        self._actions: list[ScalingAction] = []
        self._desired = {name: pool.knobs.workers for name, pool in self._pools.items()}
        self._workers_max = dict.fromkeys(self._pools, 0)
        self._last_change: dict[str, tuple[int, float]] = {}
        self._decisions: dict[str, bytes] = {}
        self.gateway = SimulatedFrontend(
            self.timeline,
            self._model.name,
            self._pools,
            fleet,
            self._bus.connection(),
            objectives=self._objectives,
            served=self._log,
        )
        migration = fleet.migration
        self._handovers = (
            HandoverKnobs(self.gateway.transfer_link.live_copy, migration.slots_in, migration.slots_out)
            if migration
            else NO_HANDOVERS
        )
        self._scaler = SimulatedScaler(
            self.timeline, {self._model.name: tuple(self._pools)}, self._bus.connection(), self._start_worker
        )
        for name, pool in self._pools.items():
            for _ in range(pool.knobs.workers):
                self._scaler.adopt(self._add_worker(name, 0.0, 0.0))
        listening = Subjects("loadline").decision(self._model.name)
        self._bus.subscribe(self._bus.connection(), listening, self._on_decision)
        self.agent = SimulatedAgent(
            self.timeline, settings, self._bus.connection(), self._store.connection(), journal=journal
        )
        self._step_ms = max(_STEP_MIN_MS, self.duration_ms / LINE_STEPS_MAX)
        self._sampled_at_s: list[float] = []
        self._series = {
            name: PoolSeries(name, pool.role, [], [], [], [], [], [], []) for name, pool in self._pools.items()
        }
        self._queued: list[int] = []
        self._counts_at_end: tuple[int, int] | None = None
        self.timeline.call_at(self.duration_ms, self._record_counts_at_end)
        self.timeline.call_at(0.0, self._sample)
        self._schedule_arrival(0)

    def run(self, until_ms: float) -> None:
        """Run until a virtual time."""
        self.timeline.run_until(until_ms)

    def run_out(self) -> None:
        """Let requests in flight finish within a limited time."""
        end_ms = self.duration_ms + _RUN_OUT_MS
        while self.timeline.now_ms < end_ms and self.gateway.queued + self.gateway.in_flight:
            self.timeline.run_until(min(self.timeline.now_ms + 1_000.0, end_ms))

    # -- the trace -----------------------------------------------------------------------------------------------------

    def _schedule_arrival(self, index: int) -> None:
        """Schedule an arrival, which schedules the next one."""
        arrivals = self._scenario.trace.arrivals
        if index < len(arrivals):
            self.timeline.call_at(arrivals[index].arrival_s * 1_000.0, partial(self._submit, index))

    def _submit(self, index: int) -> None:
        self.gateway.submit(self._scenario.trace.arrivals[index])
        self._schedule_arrival(index + 1)

    # -- workers -------------------------------------------------------------------------------------------------------

    def _start_worker(self, _model: str, pool: str) -> SimulatedWorker:
        delay_ms = self._pools[pool].knobs.start_delay.draw_ms(self._start_delay_rng)
        start_ms, paid_before_ms = (0.0, delay_ms) if self._scenario.clairvoyant else (delay_ms, 0.0)
        return self._add_worker(pool, start_ms, paid_before_ms)

    def _add_worker(self, name: str, start_ms: float, paid_before_ms: float) -> SimulatedWorker:
        pool, now_ms = self._pools[name], self.timeline.now_ms
        self._started[name] += 1
        worker = SimulatedWorker(
            self.timeline,
            self._record(name, pool, int(now_ms)),
            SimulatedEngine(pool.engine, pool.timing),
            self._bus.connection(),
            self._store.connection(),
            peers=self._bus.connection(),
            knobs=SimulatedWorkerKnobs(start_ms, self._scenario.fleet.report_interval_ms, handovers=self._handovers),
            on_event=self.gateway.on_engine_event,
            on_change=self._on_worker_changed,
        )
        self._lifetimes.append(_WorkerLifetime(worker, pool.gpus_per_worker, max(0.0, now_ms - paid_before_ms)))
        self._alive[name][worker.record.worker] = worker
        return worker

    def _record(self, name: str, pool: SimulatedPool, now_ms: int) -> WorkerRecord:
        return WorkerRecord(
            model=self._model.name,
            pool=name,
            worker=f"{name}-{self._started[name]}",
            role=pool.role,
            incarnation=START_MS + now_ms,
            accelerator=pool.knobs.accelerator,
            gpus=pool.gpus_per_worker,
            kv_blocks_total=pool.engine.kv_blocks_total,
            block_size_tokens=pool.engine.block_size_tokens,
            max_batch_requests=pool.engine.max_batch_requests,
            max_batched_tokens=pool.engine.max_batched_tokens,
        )

    def _on_worker_changed(self, worker: SimulatedWorker) -> None:
        self.gateway.on_worker_changed(worker)
        pool = worker.record.pool
        if not worker.alive:
            del self._alive[pool][worker.record.worker]
            self._scaler.schedule_reconcile()
        serving = sum(one.serving for one in self._alive[pool].values())
        self._workers_max[pool] = max(self._workers_max[pool], serving)

    # -- measurement ---------------------------------------------------------------------------------------------------

    def _on_decision(self, subject: str, payload: bytes) -> None:
        """Record a decision at its first announcement."""
        decision = decode_as(ScalingDecision, payload, subject)
        if isinstance(decision, Rejected) or decision.decision_id in self._decisions:
            return
        self._decisions[decision.decision_id] = payload
        now_ms = self.timeline.now_ms
        if now_ms > self.duration_ms:
            return
        sentences = self._reasons_of(decision.decision_id)
        for target in decision.targets:
            count, self._desired[target.pool] = self._desired[target.pool], target.replicas
            step = target.replicas - count
            if step:
                direction = 1 if step > 0 else -1
                before, at_ms = self._last_change.get(target.pool, (direction, 0.0))
                flap = before != direction and now_ms - at_ms <= FLAP_MS
                self._last_change[target.pool] = (direction, now_ms)
                reasons = [text for pool, text in sentences if pool in {"", target.pool}]
                at_s, replicas = now_ms / 1_000.0, target.replicas
                self._actions.append(
                    ScalingAction(decision.decision_id, at_s, target.pool, count, replicas, reasons, flap)
                )

    def _reasons_of(self, decision_id: str) -> list[tuple[str, str]]:
        found = query.explain(self.agent.controller.state, decision_id, self._model.name)
        return [
            (reason.pool, reason.sentence())
            for explanation in found
            for reason in (
                *explanation.limits,
                *(r for recommendation in explanation.recommendations for r in recommendation.reasons),
            )
        ]

    def _sample(self) -> None:
        """Append a sample to all series."""
        now_ms = self.timeline.now_ms
        if now_ms >= self.duration_ms and self._sampled_at_s:
            return
        self.timeline.call_later(self._step_ms, self._sample)
        self._sampled_at_s.append(now_ms / 1_000.0)
        self._queued.append(self.gateway.queued)
        known = self.agent.controller.state.fleet.models[self._model.name].pools
        for name, line in self._series.items():
            workers = list(self._alive[name].values())
            serving = [worker for worker in workers if worker.serving]
            loads = {worker: worker.engine.load() for worker in workers}
            decided = known[name].decided
            line.desired.append(len(serving) if decided is None else decided)
            line.ready.append(len(serving))
            line.starting.append(sum(worker.record.state == "starting" for worker in workers))
            line.draining.append(sum(worker.draining for worker in workers))
            line.waiting_requests.append(sum(load.waiting_requests or 0 for load in loads.values()))
            line.running_requests.append(sum(load.running_requests or 0 for load in loads.values()))
            used = sum(loads[worker].kv_blocks_used or 0 for worker in serving)
            total = sum(worker.engine.knobs.kv_blocks_total for worker in serving)
            line.kv_usage_ratio.append(used / total if total else 0.0)

    def _record_counts_at_end(self) -> None:
        """Record the counts at the end of the trace; later decisions and drains do not count."""
        self._counts_at_end = self._decision_counts()

    def _decision_counts(self) -> tuple[int, int]:
        decided = self.agent.controller.state.counters.get("decisions_committed", 0)
        return decided, sum(life.worker.draining for life in self._lifetimes)

    def _migration_totals(self) -> MigrationTotals:
        """Return the migration totals that the agent has counted."""
        model = self.agent.controller.state.fleet.models.get(self._model.name)
        if model is None:
            return MigrationTotals()
        tally = model.migration.tally
        outcomes = Counter[str]()
        for what, count in tally.commands.items():
            outcomes[what.split(":")[1]] += count
        requests, kv_tokens = sum(tally.requests.values()), sum(tally.tokens.values())
        return MigrationTotals(outcomes["planned"], outcomes["refused"], outcomes["aborted"], requests, kv_tokens)

    # -- result --------------------------------------------------------------------------------------------------------

    def result(self) -> SimulationResult:
        """Return the result as of now."""
        scenario, served, objectives = self._scenario, self._log, self._objectives
        by_step = served.series(self._step_ms, len(self._sampled_at_s))
        unfinished = self.gateway.queued + self.gateway.in_flight
        gpu_hours = dict.fromkeys(self._pools, 0.0)
        for life in self._lifetimes:
            ended_ms = min(self.duration_ms, self.duration_ms if life.worker.alive else life.worker.ended_ms or 0.0)
            gpu_hours[life.worker.record.pool] += life.gpus * max(0.0, ended_ms - life.paid_from_ms) / 3_600_000.0
        digest = sha256(served.digest().encode())
        for payload in self._decisions.values():
            digest.update(payload)
        decisions, drains = self._counts_at_end or self._decision_counts()
        return SimulationResult(
            name=scenario.name,
            trace=scenario.trace.name,
            seed=scenario.seed,
            model=self._model.name,
            planner=self._model.planner,
            ttft_objective_ms=objectives.ttft_ms,
            itl_objective_ms=objectives.itl_ms,
            duration_s=scenario.trace.duration_s,
            requests=served.requests,
            finished=served.finished,
            refused=served.refused,
            unfinished=unfinished,
            retried=served.retried,
            preempted=served.preempted,
            migrated=served.migrated,
            attainment=served.attainment(objectives.ttft_ms, objectives.itl_ms),
            ttft_ms=served.ttft_percentiles(),
            itl_ms=served.itl_percentiles(),
            gpu_hours=sum(gpu_hours.values()),
            gpu_hours_by_pool=gpu_hours,
            workers_max=self._workers_max,
            decisions=decisions,
            scaling_actions=len(self._actions),
            flaps=sum(action.flap for action in self._actions),
            drains=drains,
            drops=served.requests - served.finished - served.refused - unfinished,
            actions=self._actions,
            series=TimeSeries(
                step_s=self._step_ms / 1_000.0,
                at_s=self._sampled_at_s,
                arrivals_per_s=by_step.arrivals_per_s,
                prompt_tokens_per_s=by_step.prompt_tokens_per_s,
                queued_requests=self._queued,
                ttft_p50_ms=[one.p50 for one in by_step.ttft_ms],
                ttft_p95_ms=[one.p95 for one in by_step.ttft_ms],
                itl_p50_ms=[one.p50 for one in by_step.itl_ms],
                itl_p95_ms=[one.p95 for one in by_step.itl_ms],
                pools=list(self._series.values()),
            ),
            digest=digest.hexdigest(),
            token_gap_max_ms=served.token_gap_percentiles(),
            migrations=self._migration_totals(),
        )
