"""Models of one agent in virtual time, with delays for starts, drains and commits."""

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from loadline.core.controller import Controller
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs, Quota
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.static import StaticKnobs, StaticPlanner
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.effects import (
    AnnounceDecision,
    AnyEffect,
    Campaign,
    CommitDecision,
    ReadDecisions,
    RenewLease,
    SendDrain,
    SolveAllocation,
)
from loadline.core.vocabulary.events import (
    AllocationFailed,
    AllocationSolved,
    AnyEvent,
    BusConnectionChanged,
    CommitRefused,
    DecisionCommitted,
    DecisionsRead,
    DrainAnswered,
    LeadershipWon,
    LeaseRenewed,
    LoadReported,
    RegistryRead,
    WorkerDeregistered,
    WorkerDrained,
    WorkerRegistered,
)
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from tests.support.controller_world import scaler_answer
from tests.support.fleet_harness import START, sample

STEPS = GuardrailKnobs(step_up_max=100, step_down_max=100, stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0)
SECOND_MS = 1_000


class GpuLimits(NamedTuple):
    """GPU supply, and namespaces and priorities of the models."""

    allocation: AllocationKnobs = AllocationKnobs()
    accelerators: tuple[AcceleratorKnobs, ...] = ()
    quotas: Mapping[str, Quota] = MappingProxyType({})
    priorities: Mapping[str, int] = MappingProxyType({})
    namespaces: Mapping[str, str] = MappingProxyType({})

    def settings(self, models: tuple[ModelKnobs, ...], fleet: FleetKnobs) -> Settings:
        """Return the settings of an agent with these limits."""
        return Settings(
            "agent-1",
            "all",
            models,
            fleet,
            accelerators=self.accelerators,
            allocation=self.allocation,
            quotas=dict(self.quotas),
        )


class MultiModelWorld:
    """Pools of several models with ready workers, whose planners propose the counts that a test sets.

    Args:
        models: The pools of each model, and the workers that each pool has at first.
        fleet: With the budget over all models.
        limited: With the GPUs that there are.
        start_ms: Time from a decision until a worker is ready.
        drain_ms: Time that a worker drains.
        commit_ms: Time that a commit takes.
    """

    def __init__(
        self,
        models: dict[str, list[tuple[PoolKnobs, int]]],
        fleet: FleetKnobs,
        *,
        start_ms: int = 3_000,
        drain_ms: int = 5_000,
        commit_ms: int = 5,
        limited: GpuLimits = GpuLimits(),  # noqa: B008 - a constant
        guardrails: GuardrailKnobs = STEPS,
        **knobs: int,
    ) -> None:
        chosen = tuple(
            ModelKnobs(
                name,
                tuple(pool for pool, _ in pools),
                limited.namespaces.get(name, "default"),
                limited.priorities.get(name, 100),
                planner="static",
                guardrails=guardrails,
                **knobs,  # type: ignore[arg-type]
            )
            for name, pools in models.items()
        )
        self.controller = Controller(limited.settings(chosen, fleet))
        self.now = START
        self.start_ms, self.drain_ms, self.commit_ms = start_ms, drain_ms, commit_ms
        self.decisions: list[tuple[int, Decision]] = []
        self.workers: dict[str, WorkerRecord] = {}
        self.refuses: set[str] = set()
        """Models whose commits the store refuses."""
        self.running = 1
        """Running requests of each worker."""
        self.silent: set[str] = set()
        """Models whose workers do not report."""
        self.solves: Callable[[AllocationProblem], Allocation | None] = lambda _problem: None
        """Function that returns the solver's answer after ``solve_ms``; None: no better allocation."""
        self.solve_ms = 50
        self.problems: list[AllocationProblem] = []
        """Problems that the solver received."""
        self.after_turn: Callable[[], None] = lambda: None
        """Called after every turn."""
        self._names, self._order = count(), count()
        self._due: list[tuple[int, int, AnyEvent]] = []
        self._sequence = 0
        self._schedule_at(self.now, BusConnectionChanged(connected=True), RegistryRead([]))
        for name, pools in models.items():
            for pool, workers in pools:
                for _ in range(workers):
                    self._start(name, pool.name, self.now)
        self.run(FleetKnobs().stale_after_ms + SECOND_MS)

    def propose(self, model: str, **replicas: int) -> None:
        """Set the counts that the planner of a model proposes from now on; other pools are held."""
        planner = self.controller._planners[model]
        assert isinstance(planner, StaticPlanner)
        planner.knobs = StaticKnobs(replicas)
        self.controller.state.fleet.models[model].plan_at_ms = self.now

    def run(self, span_ms: int) -> None:
        """Advance the time: workers report once per second, and the agent takes its turns."""
        end = self.now + span_ms
        while True:
            self._turn()
            wake = self.controller.next_wake()
            whole = self.now - self.now % SECOND_MS + SECOND_MS
            due = [at for at, _, _ in self._due[:1]]
            # A turn that requests another one at once gets it 2 ms later, as in the runtime.
            self.now = min([end, whole, *due, *([] if wake is None else [max(wake, self.now + 2)])])
            if self.now >= end:
                return

    def schedule(self, event: AnyEvent) -> None:
        """Schedule an event for now."""
        self._schedule_at(self.now, event)

    def effective_targets(self) -> dict[str, dict[str, int]]:
        """Return the effective targets by model and pool."""
        models = self.controller.state.fleet.models.values()
        return {
            model.name: {pool.name: pool.effective_target(self.now) for pool in model.pools.values()}
            for model in models
        }

    def occupied(self) -> int:
        """Return the GPUs of targets or existing workers, whichever is more, and of draining ones."""
        models = self.controller.state.fleet.models.values()
        return sum(
            (max(pool.effective_target(self.now), pool.ready + pool.starting) + pool.draining_workers())
            * pool.knobs.gpus_per_worker
            for model in models
            for pool in model.pools.values()
        )

    def _turn(self) -> None:
        events: list[AnyEvent] = []
        while self._due and self._due[0][0] <= self.now:
            events.append(heapq.heappop(self._due)[2])
        for event in events:
            if isinstance(event, WorkerDeregistered):
                self.workers.pop(event.worker, None)
            elif isinstance(event, WorkerRegistered):
                self.workers[event.worker.record.worker] = event.worker.record
            elif isinstance(event, DecisionCommitted):
                self._scale(next(one for _, one in self.decisions if one.decision_id == event.decision_id))
        if self.now % SECOND_MS == 0:
            self._sequence += 1
            answered = sample(self._sequence, running=self.running)
            events += [
                LoadReported(one.model, one.pool, name, 1, [answered])
                for name, one in self.workers.items()
                if one.model not in self.silent
            ]
        for effect in self.controller.handle(events, self.now):
            self._perform(effect)
        self.after_turn()

    def _schedule_at(self, at: int, *events: AnyEvent) -> None:
        for event in events:
            heapq.heappush(self._due, (at, next(self._order), event))

    def _start(self, model: str, pool: str, at: int) -> None:
        role = self.controller.state.fleet.models[model].pools[pool].knobs.role
        record = WorkerRecord(model, pool, f"w{next(self._names)}", role, 1, "ready")
        self._schedule_at(at, WorkerRegistered(RegisteredWorker(record, 5)))

    def _perform(self, effect: AnyEffect) -> None:
        match effect:
            case Campaign(scope=scope, requested_at_ms=requested_ms):
                self._schedule_at(self.now, LeadershipWon(scope, 1, 7, requested_ms, 1))
            case RenewLease(scope=scope, lease_id=lease, requested_at_ms=requested_ms):
                self._schedule_at(self.now, LeaseRenewed(scope, lease, requested_ms))
            case ReadDecisions(request=request):
                self._schedule_at(self.now, DecisionsRead(request, [], 1))
            case CommitDecision(decision=decision):
                self._commit(decision)
            case SolveAllocation(request=request, problem=problem):
                self.problems.append(problem)
                found = self.solves(problem)
                answer = AllocationFailed(request) if found is None else AllocationSolved(request, found)
                self._schedule_at(self.now + self.solve_ms, answer)
            case AnnounceDecision(decision=decision):
                self._schedule_at(self.now, scaler_answer(decision))
            case SendDrain(model=model, pool=pool, worker=worker, drain_id=drain_id):
                self._schedule_at(self.now, DrainAnswered(model, pool, worker, drain_id, accepted=True))
                gone_ms = self.now + self.drain_ms
                self._schedule_at(
                    gone_ms, WorkerDrained(model, pool, worker, 1), WorkerDeregistered(model, pool, worker)
                )

    def _commit(self, decision: Decision) -> None:
        at = self.now + self.commit_ms
        if decision.model in self.refuses:
            self._schedule_at(at, CommitRefused(decision.decision_id, decision.model, fenced=False))
            return
        self.decisions.append((at, decision))
        self._schedule_at(at, DecisionCommitted(decision.decision_id, decision.model, len(self.decisions) + 1))

    def _scale(self, decision: Decision) -> None:
        """Start workers, or cancel those that have not started."""
        at = self.now + self.start_ms
        for target in decision.targets:
            starting = [one for one in self._due if _starts(one[2], decision.model, target.pool)]
            leaving = {victim.worker for victim in target.victims}
            existing = sum(
                (one.model, one.pool) == (decision.model, target.pool) and name not in leaving
                for name, one in self.workers.items()
            )
            missing = target.replicas - existing - len(starting)
            for _ in range(missing):
                self._start(decision.model, target.pool, at)
            for one in starting[: max(0, -missing)]:
                self._due.remove(one)
        heapq.heapify(self._due)
        self._schedule_at(at, scaler_answer(decision, "done"))


def _starts(event: AnyEvent, model: str, pool: str) -> bool:
    record = event.worker.record if isinstance(event, WorkerRegistered) else None
    return record is not None and (record.model, record.pool) == (model, pool)
