"""Drains of workers: commands, their pace, and the end of a drain."""

from collections import Counter

import pytest

from loadline.core.decisions.drains import DrainKnobs, Drains
from loadline.core.fleet.fleet import Fleet
from loadline.core.fleet.pool import DRAINS_MAX, PoolKnobs
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.effects import Effect, RaiseAlarm, RemoveWorker, SendDrain
from loadline.core.vocabulary.events import DrainAnswered, WorkerDrained
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker
from tests.support.fleet_harness import STALE_MS, START, fleet_of, registered, reported, sample

KNOBS = DrainKnobs(ttl_ms=60_000, retry_ms=2_000, revoke_after=3)
EPOCH = 40


class Scene:
    """Two decode workers and the drains of their fleet."""

    def __init__(self) -> None:
        self.fleet: Fleet = fleet_of(PoolKnobs("decode", "decode"), PoolKnobs("other", "decode"))
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

    def commanded(self, now: int) -> list[str]:
        return [e.worker for e in self.tick(now) if isinstance(e, SendDrain)]

    @property
    def endings(self) -> list[tuple[str, str]]:
        return [(finished.worker, finished.ending) for finished in self.drains.finished]


# -- commands ----------------------------------------------------------------------------------------------------------


def test_a_victim_is_commanded_at_once() -> None:
    scene = Scene()
    assert scene.start() is None
    assert scene.drains.next_wake() is not None
    (command,) = scene.tick(START)
    assert command == SendDrain("m", "decode", "a", "decode", 1, "id", EPOCH, 60_000)
    assert (scene.pool.ready, scene.pool.draining_workers()) == (1, 1)
    assert scene.drains.started_in("m", "decode") == [Victim("a", 1)]
    assert scene.drains.started_in("m", "prefill") == []


def test_an_open_drain_is_not_started_again() -> None:
    scene = Scene()
    scene.start()
    scene.tick(START)
    scene.answer(START, accepted=True)
    assert scene.start(now=START + 1_000) is None
    assert scene.commanded(START + 1_000) == []
    assert scene.drains.open["m\0decode\0a"].deadline_ms == START + 60_000


@pytest.mark.parametrize(
    ("name", "incarnation", "why"),
    [("z", 1, Rejection.UNKNOWN_WORKER), ("a", 2, Rejection.UNKNOWN_INCARNATION)],
)
def test_an_unknown_worker_is_not_drained(name: str, incarnation: int, why: Rejection) -> None:
    scene = Scene()
    assert scene.start(name, incarnation) == why
    assert scene.drains.open == {}
    assert scene.drains.start(scene.fleet, "m", "nope", Victim("a", 1), "id", START) == Rejection.UNKNOWN_POOL
    assert scene.drains.start(scene.fleet, "x", "decode", Victim("a", 1), "id", START) == Rejection.UNKNOWN_MODEL


def test_a_worker_that_accepted_gets_no_further_command() -> None:
    scene = Scene()
    scene.start()
    scene.tick(START)
    assert scene.answer(START, accepted=True) == []
    assert scene.commanded(START + 30_000) == []
    assert scene.answer(START, accepted=False) == [], "a late answer to an earlier command"


def test_without_an_answer_the_command_repeats_and_the_key_is_removed() -> None:
    scene = Scene()
    scene.start()
    effects = []
    for tick in range(5):
        now = START + 2_000 * tick
        assert scene.commanded(now) == ["a"]
        assert scene.commanded(now + 1_999) == []
        effects.append(scene.answer(now, accepted=None))
    assert effects == [[], [], ["RemoveWorker", "drain_unanswered"], [], []]


def test_the_removed_key_is_that_of_the_victim_under_its_present_lease() -> None:
    scene = Scene()
    scene.start()
    scene.fleet.register(RegisteredWorker(registered("a").record, 6), START)
    silence = DrainAnswered("m", "decode", "a", "id", None)
    for now in range(START, START + 6_000, 2_000):
        scene.tick(now)
        effects = scene.drains.record_answer(silence, bus_connected=True, now=now)
    assert effects[0] == RemoveWorker("m", "decode", "a", 6)


def test_a_refusal_raises_one_alarm_and_the_command_repeats() -> None:
    scene = Scene()
    scene.start()
    scene.tick(START)
    assert scene.answer(START, accepted=False) == ["drain_refused"]
    assert scene.commanded(START + 2_000) == ["a"]
    assert scene.answer(START + 2_000, accepted=False) == []
    assert scene.commanded(START + 4_000) == ["a"]
    assert scene.answer(START + 4_000, accepted=False) == ["RemoveWorker", "drain_unanswered"]


def test_an_answer_to_another_drain_is_ignored() -> None:
    scene = Scene()
    assert scene.answer(START, accepted=True) == []
    scene.start()
    scene.tick(START)
    assert scene.answer(START, accepted=True, drain_id="other") == []
    assert not scene.drains.open["m\0decode\0a"].accepted


def test_a_lost_answer_event_delays_the_next_command() -> None:
    scene = Scene()
    scene.start()
    assert scene.commanded(START) == ["a"]
    assert scene.commanded(START + 9_999) == []
    assert scene.commanded(START + 10_000) == ["a"]


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_drained_worker_with_a_key_stays_listed() -> None:
    scene = Scene()
    scene.start()
    assert scene.drained(now=START + 5_000) is None
    assert (scene.endings, scene.drains.finished[0].took_ms) == ([("a", "drained")], 5_000)
    assert (sorted(scene.pool.workers), scene.pool.ready) == (["a", "b"], 1)
    assert scene.tick(START + 6_000) == []
    assert scene.drained() == Rejection.UNKNOWN_DRAIN


def test_a_drained_worker_without_a_key_is_removed() -> None:
    scene = Scene()
    scene.start()
    scene.fleet.deregister("m", "decode", "a", START)
    assert "a" in scene.pool.workers
    scene.drained()
    assert sorted(scene.pool.workers) == ["b"]


def test_a_report_of_an_earlier_incarnation_ends_no_drain() -> None:
    scene = Scene()
    scene.start()
    assert scene.drained(incarnation=0) == Rejection.UNKNOWN_DRAIN
    assert scene.endings == []


def test_an_overdue_drain_ends_with_an_alarm_and_the_key_is_removed() -> None:
    scene = Scene()
    scene.start()
    scene.answer(START, accepted=True)
    assert scene.tick(START + 59_999) == []
    removal, alarm = scene.tick(START + 60_000)
    assert removal == RemoveWorker("m", "decode", "a", 5)
    assert isinstance(alarm, RaiseAlarm)
    assert alarm.kind == "drain_overdue"
    assert scene.endings == [("a", "overdue")]
    scene.fleet.deregister("m", "decode", "a", START + 60_001)
    assert sorted(scene.pool.workers) == ["b"]


def test_a_new_incarnation_ends_the_drain_as_died() -> None:
    scene = Scene()
    scene.start()
    scene.fleet.register(registered("a", incarnation=2), START + 1_000)
    assert scene.tick(START + 1_000) == []
    assert scene.endings == [("a", "died")]
    assert scene.pool.ready == 2


def test_a_new_incarnation_can_be_drained_too() -> None:
    scene = Scene()
    scene.start()
    scene.fleet.register(registered("a", incarnation=2), START + 1_000)
    assert scene.start(incarnation=2, now=START + 1_000) is None
    assert scene.commanded(START + 1_000) == ["a"]
    assert scene.drains.started_in("m", "decode") == [Victim("a", 2)]
    assert scene.endings == [("a", "died")]


def test_a_new_incarnation_can_be_drained_after_the_earlier_drain_ended() -> None:
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


def test_a_victim_without_a_lease_is_alive_while_it_reports() -> None:
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


def test_a_registered_victim_may_be_silent_until_its_deadline() -> None:
    scene = Scene()
    scene.start()
    scene.answer(START, accepted=True)
    assert scene.tick(START + 59_000) == []
    assert scene.endings == []


def test_silence_before_the_bus_connected_is_no_death() -> None:
    scene = draining_without_a_lease()
    now = START + 30_000
    assert scene.tick(now, listening_since_ms=now) == []
    assert scene.tick(now + STALE_MS, listening_since_ms=now) == []
    assert scene.endings == []
    scene.tick(now + STALE_MS + 1, listening_since_ms=now)
    assert scene.endings == [("a", "died")]


def test_a_new_leader_resumes_abandoned_drains() -> None:
    scene = Scene()
    scene.start()
    scene.start("b")
    scene.fleet.deregister("m", "decode", "a", START)
    scene.drains.abandon(scene.fleet, START)
    assert (scene.drains.open, scene.drains.next_wake(), scene.endings) == ({}, None, [])
    assert sorted(scene.pool.workers) == ["b"], "a worker without a key and without a drain is removed"
    assert scene.pool.ready == 1, "a worker that has not accepted is ready until the next command"
    assert scene.start("b", now=START + 9_000) is None
    assert scene.commanded(START + 9_000) == ["b"]


def test_the_list_of_finished_drains_is_bounded() -> None:
    scene = Scene()
    for number in range(300):
        scene.fleet.register(registered("a", incarnation=number), START)
        scene.start(incarnation=number)
        scene.drained(incarnation=number)
    assert len(scene.drains.finished) == 256


# -- pace --------------------------------------------------------------------------------------------------------------


def crowd(count: int) -> Scene:
    """Return a scene in which that many workers are victims of one decision."""
    scene = Scene()
    scene.fleet.models["m"].pools["decode"].workers_max = scene.fleet.models["m"].pools["other"].workers_max = 9_999
    for number in range(count):
        scene.fleet.register(registered(f"w{number:04}"), START)
        assert scene.start(f"w{number:04}") is None
    return scene


def test_one_decision_removes_keys_at_a_bounded_rate() -> None:
    scene = crowd(1_000)
    removed: Counter[int] = Counter()
    commands: set[str] = set()
    for second, now in enumerate(range(START, START + 14_000, 1_000)):
        for worker in scene.commanded(now):
            commands.add(worker)
            event = DrainAnswered("m", "decode", worker, "id", None)
            effects = scene.drains.record_answer(event, bus_connected=True, now=now)
            removed[second] += sum(isinstance(e, RemoveWorker) for e in effects)
        assert second != 3 or len(commands) == DRAINS_MAX
    assert +removed == {4: DRAINS_MAX, 9: DRAINS_MAX}
    assert len(commands) == 3 * DRAINS_MAX
    assert (scene.drains.next_wake() or 0) > START + 13_000, "waiting drains cause no busy loop"


def test_waiting_drains_are_commanded_as_soon_as_others_are_accepted() -> None:
    scene = crowd(100)
    first = scene.commanded(START)
    assert len(first) == DRAINS_MAX
    for worker in first[:30]:
        scene.drains.record_answer(
            DrainAnswered("m", "decode", worker, "id", accepted=True), bus_connected=True, now=START
        )
    assert scene.commanded(START + 1_000) == [f"w{number:04}" for number in range(DRAINS_MAX, DRAINS_MAX + 30)]


def test_a_pool_with_many_unanswered_drains_delays_no_other_pool() -> None:
    scene = crowd(100)
    scene.fleet.register(registered("x", pool="other"), START)
    scene.drains.start(scene.fleet, "m", "other", Victim("x", 1), "id", START)
    assert scene.commanded(START)[-1] == "x"
