"""A controller whose effects a test answers one by one."""

from loadline.core.controller import Controller
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.decisions import Decision, StoredDecision
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, ReadDecisions
from loadline.core.vocabulary.events import (
    AnyEvent,
    BusConnectionChanged,
    DecisionsRead,
    LeadershipWon,
    LeaseRenewalFailed,
    LoadReported,
    RegistryRead,
    WorkerRegistered,
)
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from tests.support.fleet_harness import START, sample, settings_of

DEADLINE_MS = 60_000

READ_AT = 10_000
"""Revision at which the store is read, after all others here."""


def make_settings() -> Settings:
    pool = PoolKnobs("decode", "decode", start_deadline_ms=DEADLINE_MS)
    threshold = ThresholdKnobs(new_decode_worker_grace_intervals=0)
    return settings_of(
        *(ModelKnobs(name, (pool,), planner="threshold", planner_knobs={"threshold": threshold}) for name in ("m", "n"))
    )


class ControllerHarness:
    """Controller of two models whose effects the test answers one by one."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.controller = Controller(settings or make_settings())
        self.now = START
        self.sequence = 0
        self.epoch = 10
        self.workers: dict[tuple[str, str], WorkerRecord] = {}
        self.kv = {"m": 0.7, "n": 0.7}

    def handle(self, *events: AnyEvent) -> list[AnyEffect]:
        return self.controller.handle(events, self.now)

    def register(self, *names: str, models: str = "mn", incarnation: int = 1) -> None:
        for model in models:
            for name in names:
                record = WorkerRecord(model, "decode", name, "decode", incarnation)
                self.workers[model, name] = record
                self.handle(WorkerRegistered(RegisteredWorker(record, 5)))

    def advance(self, seconds: int) -> list[AnyEffect]:
        """Report every worker once per second, and renew the lease."""
        effects: list[AnyEffect] = []
        for _ in range(seconds):
            self.now += 1_000
            self.sequence += 1
            self.controller.state.leadership._extend(self.now)
            effects += self.handle(
                *(
                    LoadReported(model, "decode", name, r.incarnation, [sample(self.sequence, self.kv[model])])
                    for (model, name), r in self.workers.items()
                )
            )
        return effects

    def become_leader(self, *stored: StoredDecision) -> list[AnyEffect]:
        """Win a campaign and answer the read of decisions after it."""
        self.epoch += 10
        won = LeadershipWon("all", self.epoch, 7, self.now, self.epoch)
        (request,) = [e for e in self.handle(won) if type(e) is ReadDecisions]
        return self.handle(DecisionsRead(request.request, list(stored), READ_AT))

    def lose_lease(self) -> None:
        self.handle(LeaseRenewalFailed("all", 7, lost=True))
        assert not self.controller.leading

    def commit_of(self, effects: list[AnyEffect], model: str = "m") -> Decision:
        (commit,) = [e for e in effects if isinstance(e, CommitDecision) and e.decision.model == model]
        return commit.decision

    def desired(self, model: str = "m") -> int | None:
        return self.controller.state.fleet.models[model].pools["decode"].decided


def leading() -> ControllerHarness:
    """Return a leading harness of two models with two workers each, after all reads."""
    harness = ControllerHarness()
    harness.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    harness.register("a", "b")
    harness.become_leader()
    return harness
