"""Records of drains, by themselves: held ones, the next wake, and workers that move, vanish or are handed over."""

from loadline.core.decisions.drains import CHECK_INTERVAL_MS, DrainKnobs, Drains
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.effects import RaiseAlarm, RemoveWorker, SendDrain
from loadline.core.vocabulary.events import DrainAnswered, WorkerDrained
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from tests.support.fleet_harness import START, fleet_of

KNOBS = DrainKnobs(ttl_ms=60_000, retry_ms=2_000, revoke_after=3)
MODELS = ("m", "n")


class Scene:
    """Workers ``a`` and ``b`` in the pool ``decode`` of two models, and the drains of their fleet."""

    def __init__(self) -> None:
        self.fleet = fleet_of(PoolKnobs("decode", "decode"), PoolKnobs("other", "decode"), models=MODELS)
        self.drains = Drains(KNOBS)
        for model in MODELS:
            for name in ("a", "b"):
                record = WorkerRecord(model, "decode", name, "decode", incarnation=1)
                self.fleet.register(RegisteredWorker(record, 5), START)

    def start(
        self, name: str = "a", model: str = "m", now: int = START, *, held: bool = False, again: bool = False
    ) -> None:
        drain_id = f"{model}-{name}"
        refused = self.drains.start(
            self.fleet, model, "decode", Victim(name, 1), drain_id, now, held=held, again=again
        )  # fmt: skip
        assert refused is None

    def commanded(self, now: int) -> list[tuple[str, str]]:
        effects = self.drains.tick(self.fleet, 7, 0, now)
        return [(one.model, one.worker) for one in effects if isinstance(one, SendDrain)]

    def answer(self, now: int, *, accepted: bool | None, bus_connected: bool = True) -> list[str]:
        event = DrainAnswered("m", "decode", "a", "m-a", accepted)
        return [type(one).__name__ for one in self.drains.record_answer(event, bus_connected, now)]

    def drained(self, name: str = "a") -> None:
        assert self.drains.record_drained(WorkerDrained("m", "decode", name, 1), self.fleet, START) is None


def test_each_model_has_drains_of_its_own() -> None:
    scene = Scene()
    scene.start("a", "m")
    scene.start("b", "n", held=True)
    assert scene.drains.started_in("m", "decode") == [Victim("a", 1)]
    assert [scene.drains.counts(model) for model in MODELS] == [{"decode": 1}, {"decode": 1}]
    assert [[one.worker for one in scene.drains.held(model).values()] for model in MODELS] == [[], ["b"]]


def test_held_drains_begin_with_the_whole_time_of_a_drain() -> None:
    scene = Scene()
    assert not scene.drains.begin_held("m", scene.fleet, START)
    scene.start(held=True)
    assert scene.commanded(START) == []
    assert scene.answer(START, accepted=False) == []
    assert scene.drains.next_wake() is None
    assert scene.drains.begin_held("m", scene.fleet, START + 5_000)
    (drain,) = scene.drains.open.values()
    assert (drain.started_at_ms, drain.deadline_ms, drain.unanswered) == (START + 5_000, START + 65_000, 0)
    assert scene.commanded(START + 5_000) == [("m", "a")]


def test_held_drains_are_cancelled_except_of_workers_that_the_decision_in_force_names() -> None:
    scene = Scene()
    scene.start("a", held=True)
    scene.start("b", held=True)
    scene.drains.cancel_held("m", scene.fleet, START, named=[Victim("b", 1)])
    assert [one.worker for one in scene.drains.open.values()] == ["b"]
    assert not scene.fleet.models["m"].pools["decode"].workers["a"].draining


def test_the_next_wake_is_the_earliest_command_or_check_of_a_drain_that_has_begun() -> None:
    scene = Scene()
    assert scene.drains.next_wake() is None
    scene.start("a")
    scene.commanded(START)
    scene.start("b", now=START + 300)
    first, second = scene.drains.open.values()
    assert (first.check_at_ms, second.command_at_ms) == (START + CHECK_INTERVAL_MS, START + 300)
    second.check_at_ms = START + 9_000
    assert scene.drains.next_wake() == START + 300
    first.command_at_ms = START + 100
    assert scene.drains.next_wake() == START + 100
    first.accepted = second.accepted = True  # no command follows
    assert scene.drains.next_wake() == START + CHECK_INTERVAL_MS
    first.check_at_ms = START + 10_000
    assert scene.drains.next_wake() == START + 9_000


def test_a_missing_answer_does_not_count_while_the_bus_is_disconnected() -> None:
    scene = Scene()
    scene.start()
    for now in range(START, START + 20_000, 2_000):
        assert scene.commanded(now) == [("m", "a")]
        assert scene.answer(now, accepted=None, bus_connected=False) == []
    (drain,) = scene.drains.open.values()
    assert (drain.unanswered, drain.key_removed) == (0, False)


def test_the_drain_of_a_worker_that_moved_goes_on_in_its_new_pool() -> None:
    scene = Scene()
    scene.start()
    scene.drains.move("m", "decode", "other", "b")
    assert [one.pool for one in scene.drains.open.values()] == ["decode"]
    scene.drains.move("m", "decode", "other", "a")
    assert {key: one.pool for key, one in scene.drains.open.items()} == {"m\0other\0a": "other"}
    assert scene.drains.counts("m") == {"other": 1, "decode": 1}


def test_a_drain_ends_with_its_worker() -> None:
    scene = Scene()
    scene.start()
    del scene.fleet.models["m"].pools["decode"].workers["a"]
    assert scene.commanded(START) == []
    assert [one.ending for one in scene.drains.finished] == ["died"]


def test_the_key_of_an_overdue_worker_is_removed_only_if_it_exists() -> None:
    for has_key in (True, False):
        scene = Scene()
        scene.start()
        if not has_key:
            scene.fleet.deregister("m", "decode", "a", START)
        effects = scene.drains.tick(scene.fleet, 7, 0, START + KNOBS.ttl_ms)
        assert [type(one) for one in effects] == [RemoveWorker] * has_key + [RaiseAlarm]


def test_a_drain_that_was_handed_over_is_resumed_and_one_that_ended_is_not() -> None:
    scene = Scene()
    scene.start("a")
    scene.answer(START, accepted=True)
    scene.drains.abandon(scene.fleet, START)
    scene.start("a")
    assert [one.worker for one in scene.drains.open.values()] == ["a"]
    scene.drained("a")
    scene.start("a")
    assert not scene.drains.open
    scene.start("a", again=True)
    assert [one.worker for one in scene.drains.open.values()] == ["a"]
