"""Store, bus and workers around a real controller, which perform its effects."""

from loadline.core.controller import Controller
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.decisions import ApplyStatus, Decision, StoredDecision, VictimRule
from loadline.core.vocabulary.effects import (
    AnnounceDecision,
    AnyEffect,
    Campaign,
    CommitDecision,
    RaiseAlarm,
    ReadDecisions,
    RenewLease,
    SendDrain,
)
from loadline.core.vocabulary.events import (
    AnyEvent,
    BusConnectionChanged,
    CommitRefused,
    DecisionAnswered,
    DecisionCommitted,
    DecisionsRead,
    DrainAnswered,
    LeadershipWon,
    LeaseRenewed,
    LoadReported,
    RegistryRead,
    WorkerRegistered,
)
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from tests.support.fleet_harness import START, sample, settings_of


class ControllerWorld:
    """Store, bus and workers that perform the effects of a real controller."""

    def __init__(self, **knobs: object) -> None:
        pools = (PoolKnobs("prefill", "prefill"), PoolKnobs("decode", "decode"))
        self.settings = settings_of(ModelKnobs("m", pools, **{"planner": "threshold"} | knobs))  # type: ignore[arg-type]
        self.controller = Controller(self.settings)
        self.now = START
        self.stored: dict[str, StoredDecision] = {}
        self.revision = 10
        self.effects: list[AnyEffect] = []
        self.sequence = 0
        self.answer_commits = True
        self.drains_answered: bool | None = True
        self.scaler_status: ApplyStatus | None = "accepted"
        """Answer of the scaler to every announcement; None: there is no scaler."""
        self.workers: dict[str, WorkerRecord] = {}
        self.kv = 0.7
        self.queue = 0
        self.running = 1
        self.claims: dict[str, int] = {}
        """Running requests that single workers report instead."""

    def handle(self, *events: AnyEvent) -> list[AnyEffect]:
        """Handle events and perform their effects until none is left; return all effects."""
        seen: list[AnyEffect] = []
        pending: list[AnyEvent] = list(events)
        first = True
        while pending or first:
            first = False
            effects = self.controller.handle(pending, self.now)
            seen += effects
            pending = [event for effect in effects for event in self.perform(effect)]
        self.effects += seen
        return seen

    def perform(self, effect: AnyEffect) -> list[AnyEvent]:  # noqa: PLR0911 - one return for each effect
        match effect:
            case Campaign(scope=scope, requested_at_ms=requested_ms):
                self.revision += 1
                return [LeadershipWon(scope, self.revision, 77, requested_ms, self.revision)]
            case RenewLease(scope=scope, lease_id=lease, requested_at_ms=requested_ms):
                return [LeaseRenewed(scope, lease, requested_ms)]
            case ReadDecisions(request=request):
                return [DecisionsRead(request, list(self.stored.values()), self.revision)]
            case CommitDecision(decision=decision, expected_revision=expected) if self.answer_commits:
                have = self.stored[decision.model].revision if decision.model in self.stored else 0
                if have != expected:
                    return [CommitRefused(decision.decision_id, decision.model, fenced=True)]
                self.revision += 1
                self.stored[decision.model] = StoredDecision(decision, self.revision)
                return [DecisionCommitted(decision.decision_id, decision.model, self.revision)]
            case AnnounceDecision(decision=decision) if self.scaler_status is not None:
                return [scaler_answer(decision, self.scaler_status)]
            case SendDrain(model=model, pool=pool, worker=worker, drain_id=drain_id):
                return [DrainAnswered(model, pool, worker, drain_id, self.drains_answered)]
        return []

    def register(self, pool: str, *names: str, state: str = "ready") -> None:
        for name in names:
            record = WorkerRecord("m", pool, name, pool, 1, state)  # type: ignore[arg-type]
            self.workers[name] = record
            self.revision += 1
            self.handle(WorkerRegistered(RegisteredWorker(record, 5, self.revision)))

    def report(self, *, only: set[str] | None = None) -> list[AnyEffect]:
        self.sequence += 1
        events: list[AnyEvent] = []
        for name, record in self.workers.items():
            if only is not None and name not in only:
                continue
            first_prefill = name == "p1"
            kv = self.kv if record.role == "decode" else 0.0
            reported = sample(
                self.sequence, kv, self.queue if first_prefill else 0, self.claims.get(name, self.running)
            )
            events.append(LoadReported("m", record.pool, name, 1, [reported]))
        return self.handle(*events)

    def run(self, seconds: float, *, only: set[str] | None = None) -> list[AnyEffect]:
        """Advance the time with one report of every worker per second."""
        seen: list[AnyEffect] = []
        for _ in range(int(seconds)):
            self.now += 1_000
            seen += self.report(only=only)
        return seen

    def boot(self) -> None:
        self.handle(BusConnectionChanged(connected=True), RegistryRead([]))
        self.register("prefill", "p1", "p2")
        self.register("decode", "d1", "d2")

    def decisions(self, effects: list[AnyEffect]) -> list[dict[str, int]]:
        return [{t.pool: t.replicas for t in e.decision.targets} for e in effects if isinstance(e, CommitDecision)]


def booted(**knobs: object) -> ControllerWorld:
    world = ControllerWorld(**knobs)
    world.boot()
    return world


def scaler_answer(decision: Decision, status: ApplyStatus = "accepted", **victims: VictimRule) -> DecisionAnswered:
    """Return the answer of a scaler to a decision, with its rules by pool."""
    return DecisionAnswered(
        decision.decision_id, decision.model, decision.epoch, decision.sequence, "scaler", status, {}, victims=victims
    )


def alarms(effects: list[AnyEffect]) -> list[str]:
    return [e.kind for e in effects if isinstance(e, RaiseAlarm)]
