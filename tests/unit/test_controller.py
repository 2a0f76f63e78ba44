"""The whole core, driven through its one door in virtual time."""

import msgspec

from loadline.core.belief.pool import PoolKnobs
from loadline.core.controller import Controller
from loadline.core.effects import (
    AnnounceDecision,
    AnyEffect,
    Campaign,
    CommitDecision,
    RaiseAlarm,
    ReadDecisions,
    RenewLease,
    Resign,
    RevokeWorkerLease,
    SendDrain,
)
from loadline.core.events import (
    AnnouncementRequested,
    AnyEvent,
    BusConnectionChanged,
    CampaignLost,
    CommitRefused,
    CommitUnknown,
    DecisionAnswered,
    DecisionCommitted,
    DecisionsRead,
    DrainAnswered,
    DrainRequested,
    LeaderChanged,
    LeadershipWon,
    LeaseRenewalFailed,
    LeaseRenewed,
    LoadReported,
    PauseChanged,
    RegistryRead,
    ShutdownRequested,
    WorkerDeregistered,
    WorkerDrained,
    WorkerRegistered,
)
from loadline.core.observed import RegisteredWorker, WorkerRecord, WorkerSample
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.settings import ModelKnobs
from loadline.core.targets import StoredDecision
from tests.support.belief import START, sample, settings_of


class World:
    """A store, a bus and workers that do what they are told, around a real controller."""

    def __init__(self, **knobs: object) -> None:
        pools = (PoolKnobs("prefill", "prefill"), PoolKnobs("decode", "decode"))
        self.settings = settings_of(ModelKnobs("m", pools, **knobs))  # type: ignore[arg-type]
        self.controller = Controller(self.settings)
        self.now = START
        self.stored: dict[str, StoredDecision] = {}
        self.revision = 10
        self.effects: list[AnyEffect] = []
        self.sequence = 0
        self.answer_commits = True
        self.workers: dict[str, WorkerRecord] = {}
        self.kv = 0.7
        self.queue = 0

    def tell(self, *events: AnyEvent) -> list[AnyEffect]:
        """Hand events in, perform what comes out, and give all effects of it."""
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
            case Campaign(scope=scope, asked_at_ms=asked):
                self.revision += 1
                return [LeadershipWon(scope, self.revision, 77, asked)]
            case RenewLease(scope=scope, lease_id=lease, asked_at_ms=asked):
                return [LeaseRenewed(scope, lease, asked)]
            case ReadDecisions(request=request):
                return [DecisionsRead(request, list(self.stored.values()), self.revision)]
            case CommitDecision(decision=decision, expected_revision=expected) if self.answer_commits:
                have = self.stored[decision.model].revision if decision.model in self.stored else 0
                if have != expected:
                    return [CommitRefused(decision.decision_id, decision.model, fenced=True)]
                self.revision += 1
                self.stored[decision.model] = StoredDecision(decision, self.revision)
                return [DecisionCommitted(decision.decision_id, decision.model, self.revision)]
            case SendDrain(model=model, pool=pool, worker=worker, drain_id=drain_id):
                return [DrainAnswered(model, pool, worker, drain_id, accepted=True)]
        return []

    def register(self, pool: str, *names: str, state: str = "ready") -> None:
        for name in names:
            record = WorkerRecord("m", pool, name, pool, 1, state)  # type: ignore[arg-type]
            self.workers[name] = record
            self.tell(WorkerRegistered(RegisteredWorker(record, 5)))

    def report(self, *, only: set[str] | None = None) -> list[AnyEffect]:
        self.sequence += 1
        events: list[AnyEvent] = []
        for name, record in self.workers.items():
            if only is not None and name not in only:
                continue
            first_prefill = name == "p1"
            kv = self.kv if record.role == "decode" else 0.0
            said = sample(self.sequence, kv, self.queue if first_prefill else 0)
            events.append(LoadReported("m", record.pool, name, 1, [said]))
        return self.tell(*events)

    def run(self, seconds: float, *, only: set[str] | None = None) -> list[AnyEffect]:
        """Let time pass, one report of every worker a second."""
        seen: list[AnyEffect] = []
        for _ in range(int(seconds)):
            self.now += 1_000
            seen += self.report(only=only)
        return seen

    def boot(self) -> None:
        self.tell(BusConnectionChanged(connected=True), RegistryRead([]))
        self.register("prefill", "p1", "p2")
        self.register("decode", "d1", "d2")

    def decisions(self, effects: list[AnyEffect]) -> list[dict[str, int]]:
        return [{t.pool: t.replicas for t in e.decision.targets} for e in effects if isinstance(e, CommitDecision)]


def booted(**knobs: object) -> World:
    world = World(**knobs)
    world.boot()
    return world


def alarms(effects: list[AnyEffect]) -> list[str]:
    return [e.kind for e in effects if isinstance(e, RaiseAlarm)]


def test_a_steady_fleet_is_left_alone() -> None:
    world = booted()
    world.queue = 0
    world.kv = 0.7
    effects = world.run(20)
    assert world.decisions(effects) == []


def test_high_kv_grows_decode_by_one_an_interval() -> None:
    world = booted()
    world.queue = 1  # mean 1 is above 0.5 but the trend is flat: 1 is still above
    world.kv = 0.95
    effects = world.run(31)
    assert world.decisions(effects) == [{"prefill": 3, "decode": 3}]
    announced = [e for e in effects if isinstance(e, AnnounceDecision)]
    assert announced, "a committed decision is announced"
    assert announced[0].decision.epoch == 11
    assert announced[0].decision.reasons[:2] == ("prefill:prefill_queue_high", "decode:kv_usage_high")


def test_the_sample_that_crosses_decides_in_its_own_turn() -> None:
    world = booted(threshold=ThresholdKnobs(prefill_queue_scale_down_threshold=0))
    world.kv = 0.899
    assert world.decisions(world.run(40)) == []
    world.now += 10
    world.kv = 1.0
    assert world.decisions(world.report()) == [{"prefill": 2, "decode": 3}]


def test_an_announcement_repeats_until_applied() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    effects = world.run(3)
    assert len([e for e in effects if isinstance(e, AnnounceDecision)]) == 3
    decision = world.stored["m"].decision
    answer = DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "accepted", {})
    world.tell(answer)
    assert not [e for e in world.run(9) if isinstance(e, AnnounceDecision)], "accepted: announced more rarely"
    assert [e for e in world.run(2) if isinstance(e, AnnounceDecision)]
    world.tell(msgspec.structs.replace(answer, status="done"))
    assert not [e for e in world.run(30) if isinstance(e, AnnounceDecision)]


def test_a_shrink_drains_the_worker_with_the_least_work() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 1
    world.queue = 0
    world.run(31)
    target = {t.pool: t for t in world.stored["m"].decision.targets}
    assert target["decode"].replicas == 1
    drains = [e for e in world.effects if isinstance(e, SendDrain) and e.pool == "decode"]
    assert [d.worker for d in drains] == [v.worker for v in target["decode"].victims] == ["d1"]
    victim = drains[0].worker
    world.tell(WorkerDeregistered("m", "decode", victim))
    assert victim in world.controller.state.fleet.models["m"].pools["decode"].workers, "it still has work"
    world.tell(WorkerDrained("m", "decode", victim, 1))
    assert victim not in world.controller.state.fleet.models["m"].pools["decode"].workers
    assert world.controller.state.drains.finished[-1].ending == "drained"


def test_no_data_never_shrinks() -> None:
    world = booted()
    world.kv = 0.1
    world.queue = 1
    world.run(40, only={"p1", "p2", "d1"})
    assert {t.pool: t.replicas for t in world.stored["m"].decision.targets} == {"prefill": 3, "decode": 2}
    holds = world.controller.state.holds["m"]
    assert "no_data_no_shrink" not in [r.code for r in holds.rails], "the silent one counts as full: not even proposed"


def test_a_lost_lease_stops_commits_before_it_ends() -> None:
    world = booted()
    world.kv = 0.95
    world.run(3)
    world.perform = lambda _effect: []  # type: ignore[method-assign, assignment]  # the store answers nothing any more
    effects = world.run(40)
    assert world.decisions(effects) == []
    assert any(isinstance(e, Resign) for e in effects)


def test_a_key_that_changed_hands_ends_leadership_at_once() -> None:
    world = booted()
    effects = world.tell(LeaderChanged("all", "other", 99, 99))
    assert any(isinstance(e, Resign) for e in effects)
    assert not world.controller.leading


def test_a_lease_that_is_gone_ends_leadership_at_once() -> None:
    world = booted()
    world.controller.handle([LeaseRenewalFailed("all", 77, lost=True)], world.now)
    assert not world.controller.leading


def test_an_unknown_commit_is_read_back_and_found() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.answer_commits = False
    effects = world.run(31)
    (commit,) = [e for e in effects if isinstance(e, CommitDecision)]
    world.stored["m"] = StoredDecision(commit.decision, 500)
    effects = world.tell(CommitUnknown(commit.decision.decision_id, "m"))
    assert any(isinstance(e, ReadDecisions) for e in effects)
    assert any(isinstance(e, AnnounceDecision) for e in effects)
    assert world.controller.state.fleet.models["m"].pools["decode"].desired == 3


def test_an_unknown_commit_that_did_not_land_never_reuses_its_sequence() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.answer_commits = False
    (commit,) = [e for e in world.run(31) if isinstance(e, CommitDecision)]
    world.answer_commits = True
    world.tell(CommitUnknown(commit.decision.decision_id, "m"))
    world.run(10)
    assert world.stored["m"].decision.sequence == commit.decision.sequence + 1


def test_a_new_leader_takes_up_decision_and_drains() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 0
    world.run(31)
    decision = world.stored["m"].decision
    other = World()
    other.stored, other.now, other.revision = world.stored, world.now, 900
    other.tell(BusConnectionChanged(connected=True))
    other.tell(RegistryRead([RegisteredWorker(record, 5) for record in world.workers.values()]))
    announced = [e.decision.decision_id for e in other.effects if isinstance(e, AnnounceDecision)]
    assert announced == [decision.decision_id]
    drained = {e.worker for e in other.effects if isinstance(e, SendDrain)}
    assert drained == {victim.worker for target in decision.targets for victim in target.victims}


def test_an_expired_decision_alarms_and_backs_off() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    effects = world.run(901)
    assert "decision_expired" in alarms(effects)
    pools = world.controller.state.fleet.models["m"].pools
    assert pools["decode"].desired is not None


def test_a_silent_victim_has_its_lease_revoked() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 0
    answer = world.perform

    def deaf(effect: AnyEffect) -> list[AnyEvent]:
        if isinstance(effect, SendDrain):
            return [DrainAnswered(effect.model, effect.pool, effect.worker, effect.drain_id, accepted=None)]
        return answer(effect)

    world.perform = deaf  # type: ignore[method-assign]
    effects = world.run(45)
    assert any(isinstance(e, RevokeWorkerLease) for e in effects)
    assert "drain_unanswered" in alarms(effects)


def test_a_victim_that_comes_back_from_the_dead_is_drained_again() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 0
    world.run(31)
    victim = next(e for e in world.effects if isinstance(e, SendDrain) and e.pool == "decode").worker
    record = world.workers.pop(victim)
    world.tell(WorkerDeregistered("m", "decode", victim))
    world.run(7)
    assert world.controller.state.drains.finished[-1].ending == "died"
    effects = world.tell(WorkerRegistered(RegisteredWorker(record, 6)))
    assert [e.worker for e in effects if isinstance(e, SendDrain)] == [victim]
    assert world.controller.state.fleet.models["m"].pools["decode"].ready == 1, "it is no supply"


def test_a_paused_model_holds_and_goes_on() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.tell(PauseChanged("m", paused=True, by="me"))
    assert world.decisions(world.run(40)) == []
    assert world.decisions(world.tell(PauseChanged("m", paused=False))) == [{"prefill": 3, "decode": 3}]


def test_no_operation_explains_and_commits_nothing() -> None:
    world = booted(no_operation=True)
    world.kv, world.queue = 0.95, 1
    assert world.decisions(world.run(60)) == []
    advised = [e for e in world.controller.state.explanations if e.outcome == "advised"]
    assert [e.targets for e in advised] == [{"prefill": 3, "decode": 3}]


def test_a_minimum_is_asked_for_even_without_data() -> None:
    world = World()
    world.tell(BusConnectionChanged(connected=True), RegistryRead([]))
    effects = world.run(6)
    assert world.decisions(effects) == [{"prefill": 1, "decode": 1}]


def test_without_a_bus_nothing_is_decided() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.tell(BusConnectionChanged(connected=False))
    assert world.decisions(world.run(14)) == []
    assert any(isinstance(e, Resign) for e in world.run(3)), "blind: another may see more"


def test_shutdown_hands_over_and_decides_nothing_more() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    effects = world.tell(ShutdownRequested())
    assert isinstance(effects[-1], Resign)
    assert world.decisions(world.run(60)) == []


def test_a_follower_waits_for_the_leader_to_go() -> None:
    world = World()
    world.controller.handle([BusConnectionChanged(connected=True)], world.now)
    world.controller.handle([CampaignLost("all", "other")], world.now)
    assert world.controller.handle([], world.now + 1_000) == []
    effects = world.controller.handle([LeaderChanged("all", "", 0, 9)], world.now + 2_000)
    assert [type(e) for e in effects] == [Campaign]


def test_a_snapshot_goes_on_exactly_where_it_was_taken() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(25)
    twin = Controller(world.settings)
    twin.restore(world.controller.snapshot())
    assert twin.snapshot() == world.controller.snapshot()
    for second in range(20):
        world.sequence += 1
        said = sample(world.sequence, 0.99, 2)
        events: list[AnyEvent] = [LoadReported("m", r.pool, r.worker, 1, [said]) for r in world.workers.values()]
        now = world.now + 1_000 * (second + 1)
        assert twin.handle(events, now) == world.controller.handle(events, now)
    assert twin.snapshot() == world.controller.snapshot()


def test_a_scaler_that_asks_hears_what_stands() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    decision = world.stored["m"].decision
    world.tell(DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "done", {}))
    effects = world.tell(AnnouncementRequested("m", "s"))
    assert [e.decision for e in effects if isinstance(e, AnnounceDecision)] == [decision]


def test_what_stands_is_decided_anew_when_it_is_past_its_time() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    old = world.stored["m"].decision
    world.tell(DecisionAnswered(old.decision_id, "m", old.epoch, old.sequence, "s", "done", {}))
    world.register("prefill", "p3")
    world.register("decode", "d3")
    world.kv, world.queue = 0.7, 0
    world.controller.state.paused["m"] = "test"  # so that nothing else is decided meanwhile
    world.run(901)
    world.controller.state.paused.clear()
    world.tell(AnnouncementRequested("m", "s"))
    new = world.stored["m"].decision
    assert new.sequence == old.sequence + 1
    assert "asked_again" in new.reasons


def test_workers_that_never_came_are_asked_for_again_once_in_a_deadline() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    effects: list[AnyEffect] = []
    for _ in range(1_300):
        said = world.stored["m"].decision  # a scaler that does not see that its workers never registered
        world.tell(DecisionAnswered(said.decision_id, "m", said.epoch, said.sequence, "s", "done", {}))
        effects += world.run(1)
    assert alarms(effects).count("workers_missing") == 2
    assert [e.decision.reasons[0] for e in effects if isinstance(e, CommitDecision)].count("asked_again") == 2


def test_an_order_to_drain_outlives_the_leader_that_took_it() -> None:
    world = booted()
    world.run(10)
    effects = world.tell(DrainRequested("m", "decode", "d1", "me"))
    assert [e.worker for e in effects if isinstance(e, SendDrain)] == ["d1"]
    (target,) = [t for t in world.stored["m"].decision.targets if t.pool == "decode"]
    assert (target.replicas, [v.worker for v in target.victims]) == (2, ["d1"]), "its place is to be filled"
    other = World()
    other.stored, other.now, other.revision = world.stored, world.now, 900
    other.tell(BusConnectionChanged(connected=True))
    other.tell(RegistryRead([RegisteredWorker(record, 5) for record in world.workers.values()]))
    assert [e.worker for e in other.effects if isinstance(e, SendDrain)] == ["d1"]


def test_workers_above_the_decided_count_are_drained_with_an_alarm() -> None:
    world = booted(threshold=ThresholdKnobs(prefill_queue_scale_down_threshold=0))
    world.kv = 0.95
    world.run(31)
    world.kv = 0.7
    world.register("decode", "d3", "d4", "d5")
    assert not any(isinstance(e, SendDrain) for e in world.run(55))
    effects = world.run(10)
    assert alarms(effects) == ["workers_surplus"]
    assert len([e for e in effects if isinstance(e, SendDrain)]) == 2


def test_one_worker_that_flaps_stops_nobody_else() -> None:
    world = booted()
    world.queue = 5
    record = world.workers["d2"]
    for _ in range(6):
        world.run(10)
        world.tell(WorkerDeregistered("m", "decode", "d2"))
        del world.workers["d2"]
        world.run(10)
        world.register("decode", "d2")
        assert record == world.workers["d2"]
    grown = world.controller.state.fleet.models["m"].pools["prefill"].desired
    assert grown is not None
    assert grown > 2


def test_a_worker_that_never_comes_is_missed_although_another_flaps() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    world.kv, world.queue = 0.7, 0
    seen: list[str] = []
    for _ in range(14):  # 700 s; a start deadline is 600 s
        said = world.stored["m"].decision
        world.tell(DecisionAnswered(said.decision_id, "m", said.epoch, said.sequence, "s", "done", {}))
        seen += alarms(world.run(25))
        world.tell(WorkerDeregistered("m", "decode", "d2"))
        del world.workers["d2"]
        seen += alarms(world.run(25))
        world.register("decode", "d2")
    assert "workers_missing" in seen


def test_without_a_bus_no_worker_is_blamed_for_its_silence() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 0
    world.run(31)
    world.controller.state.drains.open.clear()
    answer = world.perform

    def deaf(effect: AnyEffect) -> list[AnyEvent]:
        if isinstance(effect, SendDrain):
            return [DrainAnswered(effect.model, effect.pool, effect.worker, effect.drain_id, accepted=None)]
        return answer(effect)

    world.perform = deaf  # type: ignore[method-assign]
    world.tell(DrainRequested("m", "decode", "d1", "me"))
    world.tell(BusConnectionChanged(connected=False))
    effects = world.run(12)
    assert not any(isinstance(e, SendDrain | RevokeWorkerLease) for e in effects)


def test_an_engine_that_must_not_be_given_work_is_no_supply() -> None:
    world = booted()
    world.run(3)
    world.sequence += 1
    sick = WorkerSample(world.sequence, 0, kv_usage_ratio=0.7, waiting_requests=0, schedulable=False)
    world.tell(LoadReported("m", "decode", "d1", 1, [sick]))
    pool = world.controller.state.fleet.models["m"].pools["decode"]
    assert pool.ready == 1
    world.run(1)
    assert pool.ready == 2, "it says so no more"


def test_an_older_life_of_a_worker_does_not_replace_a_newer_one() -> None:
    world = booted()
    newer = WorkerRecord("m", "decode", "d1", "decode", 2)
    world.tell(WorkerRegistered(RegisteredWorker(newer, 6)))
    world.tell(WorkerRegistered(RegisteredWorker(world.workers["d1"], 5)))
    assert world.controller.state.fleet.models["m"].pools["decode"].workers["d1"].record == newer
    assert world.controller.state.rejected["stale_incarnation"] == 1
