"""A worker's way out."""

import pytest
from msgspec.structs import replace

from loadline.core.decisions.drains import DrainKnobs, Drains, choose_victims
from loadline.core.fleet.fleet import Fleet
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.effects import Effect, RaiseAlarm, RevokeWorkerLease, SendDrain
from loadline.core.vocabulary.events import DrainAnswered, WorkerDrained
from loadline.core.vocabulary.reasons import Rejection
from loadline.core.vocabulary.scalars import WorkerPhase
from tests.support.fleet_harness import STALE_MS, START, fleet_of, registered, reported, sample

KNOBS = DrainKnobs(ttl_ms=60_000, retry_ms=2_000, revoke_after=3)
EPOCH = 40


class Scene:
    """Two decode workers and what the drains do with them."""

    def __init__(self) -> None:
        self.fleet: Fleet = fleet_of(PoolKnobs("decode", "decode"))
        self.pool = self.fleet.models["m"].pools["decode"]
        self.drains = Drains(KNOBS)
        for name in ("a", "b"):
            self.fleet.register(registered(name), START)

    def start(self, name: str = "a", incarnation: int = 1, now: int = START) -> Rejection | None:
        return self.drains.start(self.fleet, "m", "decode", Victim(name, incarnation), "id", now)

    def tick(self, now: int, listening_since_ms: int = 0) -> list[Effect]:
        return self.drains.tick(self.fleet, EPOCH, listening_since_ms, now)

    def answer(self, now: int, *, accepted: bool | None, drain_id: str = "id") -> list[str]:
        effects = self.drains.record_answer(
            DrainAnswered("m", "decode", "a", drain_id, accepted), bus_connected=True, now=now
        )
        return [e.kind if isinstance(e, RaiseAlarm) else type(e).__name__ for e in effects]

    def drained(self, incarnation: int = 1, now: int = START) -> Rejection | None:
        return self.drains.record_drained(WorkerDrained("m", "decode", "a", incarnation), self.fleet, now)

    def asked(self, now: int) -> list[str]:
        return [e.worker for e in self.tick(now) if isinstance(e, SendDrain)]

    @property
    def endings(self) -> list[tuple[str, str]]:
        return [(finished.worker, finished.ending) for finished in self.drains.finished]


# -- victims -----------------------------------------------------------------------------------------------------------


def test_victims_are_those_that_are_cheapest_to_lose() -> None:
    fleet = fleet_of(PoolKnobs("decode", "decode"))
    pool = fleet.models["m"].pools["decode"]
    workers: list[tuple[str, WorkerPhase, int, float, int, int]] = [
        # name, state, incarnation, KV usage, waiting, running
        ("busy", "ready", 9, 0.1, 2, 3),
        ("full", "ready", 9, 0.9, 0, 1),
        ("old", "ready", 1, 0.5, 0, 1),
        ("new-b", "ready", 5, 0.5, 0, 1),
        ("new-a", "ready", 5, 0.5, 1, 0),
        ("idle", "ready", 1, 0.9, 0, 0),
        ("starting", "starting", 1, 0.9, 9, 9),
        ("leaving", "draining", 9, 0.0, 0, 0),
    ]
    for name, state, incarnation, kv, waiting, running in workers:
        fleet.register(registered(name, state=state, incarnation=incarnation), START)
        fleet.ingest(reported(name, sample(1, kv, waiting, running), incarnation=incarnation), START)
    order = ["starting", "idle", "new-a", "new-b", "old", "full", "busy"]
    assert [v.worker for v in choose_victims(pool, 99)] == order
    assert choose_victims(pool, 2) == [Victim("starting", 1), Victim("idle", 1)]
    assert choose_victims(pool, 0) == []


def test_where_requests_move_those_are_cheapest_to_lose_that_have_the_fewest_that_must_stay() -> None:
    fleet = fleet_of(PoolKnobs("decode", "decode"))
    pool = fleet.models["m"].pools["decode"]
    for name, running, staying in (("many", 9, 0), ("few", 3, 0), ("guided", 2, 2), ("fixed", 1, 0)):
        fleet.register(registered(name), START)
        said = replace(sample(1, 0.1 * running, 0, running), unmovable_requests=staying)
        fleet.ingest(reported(name, said), START)
    moves = [v.worker for v in choose_victims(pool, 99, lambda worker: worker.record.worker != "fixed")]
    assert moves == ["few", "many", "fixed", "guided"]
    assert [v.worker for v in choose_victims(pool, 99)] == ["fixed", "guided", "few", "many"]


# -- asking ------------------------------------------------------------------------------------------------------------


def test_a_victim_is_asked_at_once() -> None:
    scene = Scene()
    assert scene.start() is None
    assert scene.drains.next_wake() is not None
    (command,) = scene.tick(START)
    assert command == SendDrain("m", "decode", "a", "decode", 1, "id", EPOCH, 60_000)
    assert (scene.pool.ready, scene.pool.draining_workers()) == (1, 1)
    assert scene.drains.of_pool("m", "decode") == [Victim("a", 1)]
    assert scene.drains.of_pool("m", "prefill") == []


def test_a_drain_that_goes_on_is_not_begun_again() -> None:
    scene = Scene()
    scene.start()
    scene.tick(START)
    scene.answer(START, accepted=True)
    assert scene.start(now=START + 1_000) is None
    assert scene.asked(START + 1_000) == []
    assert scene.drains.open["m\0decode\0a"].deadline_ms == START + 60_000


@pytest.mark.parametrize(
    ("name", "incarnation", "why"),
    [("z", 1, Rejection.UNKNOWN_WORKER), ("a", 2, Rejection.UNKNOWN_INCARNATION)],
)
def test_who_is_not_there_is_not_drained(name: str, incarnation: int, why: Rejection) -> None:
    scene = Scene()
    assert scene.start(name, incarnation) == why
    assert scene.drains.open == {}
    assert scene.drains.start(scene.fleet, "m", "nope", Victim("a", 1), "id", START) == Rejection.UNKNOWN_POOL
    assert scene.drains.start(scene.fleet, "x", "decode", Victim("a", 1), "id", START) == Rejection.UNKNOWN_MODEL


def test_who_accepted_is_not_asked_again() -> None:
    scene = Scene()
    scene.start()
    scene.tick(START)
    assert scene.answer(START, accepted=True) == []
    assert scene.asked(START + 30_000) == []
    assert scene.answer(START, accepted=False) == [], "a late answer to an earlier command"


def test_who_does_not_answer_is_asked_again_and_then_loses_its_lease() -> None:
    scene = Scene()
    scene.start()
    said = []
    for tick in range(5):
        now = START + 2_000 * tick
        assert scene.asked(now) == ["a"]
        assert scene.asked(now + 1_999) == []
        said.append(scene.answer(now, accepted=None))
    assert said == [[], [], ["RevokeWorkerLease", "drain_unanswered"], [], []]


def test_the_lease_that_is_revoked_is_the_victims() -> None:
    scene = Scene()
    scene.start()
    for tick in range(3):
        scene.tick(START + 2_000 * tick)
        effects = scene.drains.record_answer(
            DrainAnswered("m", "decode", "a", "id", None), bus_connected=True, now=START + 2_000 * tick
        )
    assert effects[0] == RevokeWorkerLease("a", 5)


def test_a_refusal_is_told_once_and_asked_again() -> None:
    scene = Scene()
    scene.start()
    scene.tick(START)
    assert scene.answer(START, accepted=False) == ["drain_refused"]
    assert scene.asked(START + 2_000) == ["a"]
    assert scene.answer(START + 2_000, accepted=False) == []
    assert scene.asked(START + 4_000) == ["a"]
    assert scene.answer(START + 4_000, accepted=False) == ["RevokeWorkerLease", "drain_unanswered"]


def test_an_answer_to_another_drain_is_nothing() -> None:
    scene = Scene()
    assert scene.answer(START, accepted=True) == []
    scene.start()
    scene.tick(START)
    assert scene.answer(START, accepted=True, drain_id="other") == []
    assert not scene.drains.open["m\0decode\0a"].accepted


def test_an_answer_that_is_lost_is_asked_for_again_in_the_end() -> None:
    scene = Scene()
    scene.start()
    assert scene.asked(START) == ["a"]
    assert scene.asked(START + 9_999) == []
    assert scene.asked(START + 10_000) == ["a"]


# -- the end -----------------------------------------------------------------------------------------------------------


def test_drained_while_still_registered_stays_listed() -> None:
    scene = Scene()
    scene.start()
    assert scene.drained(now=START + 5_000) is None
    assert (scene.endings, scene.drains.finished[0].took_ms) == ([("a", "drained")], 5_000)
    assert (sorted(scene.pool.workers), scene.pool.ready) == (["a", "b"], 1)
    assert scene.tick(START + 6_000) == []
    assert scene.drained() == Rejection.UNKNOWN_DRAIN


def test_drained_after_its_key_went_is_forgotten() -> None:
    scene = Scene()
    scene.start()
    scene.fleet.deregister("m", "decode", "a", START)
    assert "a" in scene.pool.workers
    scene.drained()
    assert sorted(scene.pool.workers) == ["b"]


def test_the_report_of_an_earlier_life_ends_nothing() -> None:
    scene = Scene()
    scene.start()
    assert scene.drained(incarnation=0) == Rejection.UNKNOWN_DRAIN
    assert scene.endings == []


def test_overdue_with_an_alarm() -> None:
    scene = Scene()
    scene.start()
    scene.answer(START, accepted=True)
    assert scene.tick(START + 59_999) == []
    (alarm,) = scene.tick(START + 60_000)
    assert isinstance(alarm, RaiseAlarm)
    assert alarm.kind == "drain_overdue"
    assert scene.endings == [("a", "overdue")]
    scene.fleet.deregister("m", "decode", "a", START + 60_001)
    assert sorted(scene.pool.workers) == ["b"]


def test_a_victim_that_comes_back_as_another_life_died() -> None:
    scene = Scene()
    scene.start()
    scene.fleet.register(registered("a", incarnation=2), START + 1_000)
    assert scene.tick(START + 1_000) == []
    assert scene.endings == [("a", "died")]
    assert scene.pool.ready == 2


def test_another_life_of_a_victim_can_be_a_victim() -> None:
    scene = Scene()
    scene.start()
    scene.fleet.register(registered("a", incarnation=2), START + 1_000)
    assert scene.start(incarnation=2, now=START + 1_000) is None
    assert scene.asked(START + 1_000) == ["a"]
    assert scene.drains.of_pool("m", "decode") == [Victim("a", 2)]
    assert scene.endings == [("a", "died")]


def test_another_life_can_be_a_victim_after_the_drain_of_the_one_before_was_closed() -> None:
    scene = Scene()
    scene.start()
    scene.fleet.register(registered("a", incarnation=2), START + 1_000)
    scene.tick(START + 1_000)
    assert scene.endings == [("a", "died")]
    assert scene.start(incarnation=2, now=START + 2_000) is None
    assert scene.pool.workers["a"].draining


def draining_without_a_lease() -> Scene:
    scene = Scene()
    scene.start()
    scene.tick(START)
    scene.answer(START, accepted=True)
    scene.fleet.deregister("m", "decode", "a", START)
    return scene


def test_without_a_lease_it_lives_as_long_as_it_reports() -> None:
    scene = draining_without_a_lease()
    last = START + 30_000
    for number, now in enumerate(range(START, last + 1, 5_000)):
        scene.fleet.ingest(reported("a", sample(number)), now)
        assert scene.tick(now) == []
    assert scene.tick(last + STALE_MS) == []
    (alarm,) = scene.tick(last + STALE_MS + 1)
    assert isinstance(alarm, RaiseAlarm)
    assert (alarm.kind, scene.endings) == ("drain_died", [("a", "died")])
    assert sorted(scene.pool.workers) == ["b"]


def test_a_registered_victim_may_be_silent() -> None:
    scene = Scene()
    scene.start()
    scene.answer(START, accepted=True)
    assert scene.tick(START + 59_000) == []
    assert scene.endings == []


def test_silence_means_nothing_before_anybody_could_be_heard() -> None:
    scene = draining_without_a_lease()
    now = START + 30_000
    assert scene.tick(now, listening_since_ms=now) == []
    assert scene.tick(now + STALE_MS, listening_since_ms=now) == []
    assert scene.endings == []
    scene.tick(now + STALE_MS + 1, listening_since_ms=now)
    assert scene.endings == [("a", "died")]


def test_whoever_takes_over_goes_on_with_the_same() -> None:
    scene = Scene()
    scene.start()
    scene.start("b")
    scene.fleet.deregister("m", "decode", "a", START)
    scene.drains.abandon(scene.fleet, START)
    assert (scene.drains.open, scene.drains.next_wake(), scene.endings) == ({}, None, [])
    assert sorted(scene.pool.workers) == ["b"], "without a key and without a drain there is nothing to know it by"
    assert scene.pool.ready == 1, "who has not accepted is a worker like any other, until it is asked again"
    assert scene.start("b", now=START + 9_000) is None
    assert scene.asked(START + 9_000) == ["b"]


def test_finished_drains_are_remembered_and_bounded() -> None:
    scene = Scene()
    for number in range(300):
        scene.fleet.register(registered("a", incarnation=number), START)
        scene.start(incarnation=number)
        scene.drained(incarnation=number)
    assert len(scene.drains.finished) == 256
