"""Simulated scaler: starts and stops simulated workers in virtual time by the plan of the local scaler."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from msgspec.structs import replace

from loadline.client.announcements import request_announcements
from loadline.client.fence import CountsInForce, DecisionFence, Freshness
from loadline.core.vocabulary.decisions import ApplyStatus, PoolTarget
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import BusUnavailable
from loadline.scalers.local.plan import (
    Process,
    ProcessAction,
    ProcessTiming,
    StartFailures,
    failures_after_exit,
    is_reached,
    mark_leaving,
    plan_actions,
)
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.tasks import VirtualTask
from loadline.sim.world.timeline import Timeline
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import DecisionApplied, DrainReport, ScalingDecision
from loadline.wire.subjects import Subjects

_NAME: Final = "scaler"
"""Name of the scaler in its answers."""
_RECONCILE_INTERVAL_MS: Final = 1_000.0
_TIMING: Final = ProcessTiming(
    linger_ms=2_000,
    grace_ms=5_000,
    settle_ms=1_000,
    reset_ms=1_000,
    restart_backoff_ms=1_000,
    restart_backoff_max_ms=60_000,
    start_concurrency=1_000,
)

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class ScaledWorker(Protocol):
    """A worker, or whatever ends with it, as a scaler starts and ends it."""

    record: WorkerRecord

    @property
    def alive(self) -> bool:
        """True while it runs."""
        ...

    @property
    def serving(self) -> bool:
        """True if it accepts requests."""
        ...

    def kill(self) -> object:
        """End it at once."""
        ...


StartWorker = Callable[[str, str], ScaledWorker]
"""Function that starts a worker, given its model and pool."""


class _ScaledPool:
    """Workers of one pool, and their target."""

    def __init__(self, model: str, name: str) -> None:
        self.model = model
        self.name = name
        self.workers: dict[str, ScaledWorker] = {}
        self.processes: dict[str, Process] = {}
        self.target: PoolTarget | None = None
        self.drain_ttl_ms = 0
        self.failures = StartFailures()

    def add(self, worker: ScaledWorker, now_ms: int) -> None:
        record = worker.record
        self.workers[record.worker] = worker
        self.processes[record.worker] = Process(record.worker, record.incarnation, now_ms)


class SimulatedScaler:
    """Scaler of a fixed set of models.

    Args:
        timeline: Virtual time.
        pools: The pools of each model.
        bus: Connection of the scaler to the bus.
        start: Function that starts a worker.
    """

    def __init__(
        self,
        timeline: Timeline,
        pools: Mapping[str, Sequence[str]],
        bus: BusConnection,
        start: StartWorker,
    ) -> None:
        self.bus = bus
        self.applies_decisions = True
        """False: a faulty scaler, which accepts decisions and does not apply them."""
        self._timeline = timeline
        self._start_worker = start
        self._subjects = Subjects("loadline")
        self._fence = DecisionFence()
        self._counts = CountsInForce()
        self._pools = {(model, pool): _ScaledPool(model, pool) for model, names in pools.items() for pool in names}
        self._unfinished: dict[str, ScalingDecision] = {}
        """Accepted decision whose targets are not reached yet, by model."""
        self._answers: dict[str, DecisionApplied] = {}
        """Latest answer, by model."""
        self._drained: dict[str, int] = {}
        """Highest incarnation that reported the end of its drain, by worker."""
        self._scheduled = False
        self._ask_at_s = -math.inf
        """Time of the newest scheduled request of current decisions."""
        VirtualTask(bus.subscribe(self._subjects.all_of("drained"), self._on_drained))
        for model in pools:
            VirtualTask(bus.subscribe(self._subjects.decision(model), self._on_decision))

    def adopt(self, worker: ScaledWorker) -> None:
        """Add a worker that was started before any decision."""
        self._pools[worker.record.model, worker.record.pool].add(worker, int(self._timeline.now_ms))

    def schedule_reconcile(self) -> None:
        """Reconcile workers with their targets now, and repeat until the targets are reached."""
        if not self._scheduled:
            self._scheduled = True
            self._timeline.call_later(0.0, self._reconcile)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _on_decision(self, subject: str, payload: bytes) -> None:
        decision = decode_as(ScalingDecision, payload, subject)
        if isinstance(decision, Rejected):
            return
        match self._fence.classify(decision, self._timeline.now_ms / 1_000):
            case Freshness.NEW:
                self._accept(decision)
            case Freshness.REPEATED if decision.model in self._answers:
                self._publish(self._answers[decision.model])
            case Freshness.EXPIRED:
                self._answer(decision, "refused", {}, "expired")
            case Freshness.STALE:
                in_force = self._counts.of(decision.model)
                self._publish(self._build_answer(decision, "refused", {}, "stale", in_force))
                self._confirm_decisions()

    def _confirm_decisions(self) -> None:
        """Request the current decisions of models with stale ones when the fence says so."""
        now_s = self._timeline.now_ms / 1_000
        for model in self._fence.to_ask(now_s):
            VirtualTask(self._confirm(model))
        ask_at_s = self._fence.next_ask_s()
        if ask_at_s is not None and ask_at_s != self._ask_at_s:
            self._ask_at_s = ask_at_s
            # Slightly late, as a sum of floats may fall just below the time.
            self._timeline.call_at(ask_at_s * 1_000 + 1, self._confirm_decisions)

    async def _confirm(self, model: str) -> None:
        if await request_announcements(self.bus, self._subjects, (model,), _NAME):
            self._fence.record_answer(model, self._timeline.now_ms / 1_000)

    def _accept(self, decision: ScalingDecision) -> None:
        in_force = self._counts.unknown_to(decision)
        if in_force:
            self._answer(decision, "refused", {}, "made without knowing the counts in force", in_force)
            return
        self._answer(decision, "accepted", {})
        if not self.applies_decisions:
            return
        self._counts.accept(decision, self._fence.highest(decision.model))
        for target in decision.targets:
            pool = self._pools.get((decision.model, target.pool))
            if pool is not None:
                pool.target, pool.drain_ttl_ms = target, decision.drain_ttl_ms
        self._unfinished[decision.model] = decision
        self.schedule_reconcile()

    def _answer(
        self,
        decision: ScalingDecision,
        status: ApplyStatus,
        observed: Mapping[str, int],
        detail: str = "",
        in_force: Mapping[str, int] = _NOTHING,
    ) -> None:
        answer = self._answers[decision.model] = self._build_answer(decision, status, observed, detail, in_force)
        self._publish(answer)

    def _build_answer(
        self,
        decision: ScalingDecision,
        status: ApplyStatus,
        observed: Mapping[str, int],
        detail: str,
        in_force: Mapping[str, int],
    ) -> DecisionApplied:
        return DecisionApplied(
            decision.decision_id,
            decision.model,
            decision.epoch,
            decision.sequence,
            _NAME,
            status,
            dict(observed),
            detail,
            in_force=dict(in_force),
        )

    def _publish(self, answer: DecisionApplied) -> None:
        try:
            self.bus.publish_now(self._subjects.applied(answer.model), encode(answer))
        except BusUnavailable:
            return  # sent again when the agent repeats the announcement

    def _on_drained(self, subject: str, payload: bytes) -> None:
        report = decode_as(DrainReport, payload, subject)
        if not isinstance(report, Rejected):
            self._drained[report.worker] = max(report.incarnation, self._drained.get(report.worker, 0))
            self.schedule_reconcile()

    # -- processes -----------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Plan and execute actions for each pool; reschedule while a target is not reached."""
        self._scheduled = False
        now_ms = int(self._timeline.now_ms)
        reached = True
        for pool in self._pools.values():
            self._remove_exited(pool, now_ms)
            drained = {name for name, one in pool.processes.items() if self._drained.get(name, -1) >= one.incarnation}
            for process in mark_leaving(list(pool.processes.values()), pool.target, drained, pool.drain_ttl_ms, now_ms):
                pool.processes[process.worker] = process
            for action in plan_actions(list(pool.processes.values()), pool.target, pool.failures, _TIMING, now_ms):
                self._execute(pool, action, now_ms)
            reached &= pool.target is None or is_reached(list(pool.processes.values()), pool.target)
        self._report_progress()
        if not reached:
            self._scheduled = True
            self._timeline.call_later(_RECONCILE_INTERVAL_MS, self._reconcile)

    def _remove_exited(self, pool: _ScaledPool, now_ms: int) -> None:
        for name in [name for name, worker in pool.workers.items() if not worker.alive]:
            del pool.workers[name]
            self._drained.pop(name, None)
            pool.failures = failures_after_exit(pool.failures, pool.processes.pop(name), _TIMING, now_ms)

    def _execute(self, pool: _ScaledPool, action: ProcessAction, now_ms: int) -> None:
        if action.kind == "start":
            for _ in range(action.count):
                pool.add(self._start_worker(pool.model, pool.name), now_ms)
            return
        pool.processes[action.worker] = replace(pool.processes[action.worker], signal=action.kind, signalled_ms=now_ms)
        pool.workers[action.worker].kill()

    def _report_progress(self) -> None:
        for model, decision in list(self._unfinished.items()):
            pools = [(self._pools[model, t.pool], t) for t in decision.targets if (model, t.pool) in self._pools]
            observed = {target.pool: len(pool.workers) for pool, target in pools}
            if all(is_reached(list(pool.processes.values()), target) for pool, target in pools):
                del self._unfinished[model]
                self._answer(decision, "done", observed)
            elif observed != self._answers[model].observed:
                self._answer(decision, "progress", observed)
