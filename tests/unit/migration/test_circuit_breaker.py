"""A worker that does not answer is left alone, longer each time, and holds up nobody else."""

from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.peers import MigrationPeer
from loadline.core.vocabulary.events import BusConnectionChanged
from loadline.core.vocabulary.migrations import Migration
from tests.support.movers import Movers, pairs

KNOBS = MigrationKnobs(
    policies=("decode_failover",),
    breaker_ms=5_000,
    breaker_max_ms=15_000,
    ttl_ms=1_000,
    instance_staleness_seconds=3_600,
)


def ill() -> tuple[Movers, Migration]:
    """A worker that must be emptied, and was asked to give its only request away."""
    world = Movers(KNOBS)
    world.join("ill", 10, 1)
    world.join("a", 0, 0)
    (move,) = world.tell(world.said("ill", schedulable=False))
    return world, move


def peer(world: Movers, name: str) -> MigrationPeer:
    return world.controller.state.fleet.models["m"].migration.peers.get("decode", name)


def test_who_does_not_answer_is_asked_again_after_a_while_and_then_after_twice_that() -> None:
    world, move = ill()
    waited_ms = []
    for _ in range(4):
        assert world.answer(move, accepted=None) == []
        since_ms, asked = world.now, list[Migration]()
        while not asked:
            asked = world.wait(500)
            assert world.now - since_ms <= KNOBS.breaker_max_ms
        waited_ms.append(world.now - since_ms)
        (move,) = asked
    assert waited_ms == [5_000, 10_000, 15_000, 15_000]
    assert [alarm.kind for alarm in world.alarms if alarm.kind == "migration_unanswered"] == ["migration_unanswered"]


def test_who_answers_again_is_trusted_again() -> None:
    world, move = ill()
    world.answer(move, accepted=None)
    (again,) = world.wait(5_000)
    world.answer(again, accepted=False, requests=0, reason="no_slots")
    assert (peer(world, "ill").failures, peer(world, "ill").breaker_open_until_ms) == (0, 0)
    world.now += 1
    assert pairs(world.tell(world.said("ill"))) == [("ill", "a")]


def test_others_are_asked_meanwhile() -> None:
    world, move = ill()
    world.answer(move, accepted=None)
    world.join("worse", 10, 1)
    assert pairs(world.tell(world.said("worse", schedulable=False))) == [("worse", "a")]


def test_one_that_did_not_answer_takes_nothing_in_either() -> None:
    world, move = ill()
    world.answer(move, accepted=None)
    world.tell(world.said("ill", schedulable=True))
    world.join("worse", 10, 1)
    assert pairs(world.tell(world.said("worse", schedulable=False))) == [("worse", "a")]


def test_without_the_bus_nobody_can_answer_and_nobody_is_blamed() -> None:
    world, move = ill()
    world.tell(BusConnectionChanged(connected=False))
    world.answer(move, accepted=None)
    assert peer(world, "ill").failures == 0


def test_a_destination_that_refused_is_passed_over_until_it_reports() -> None:
    world, move = ill()
    world.answer(move, requests=1, tokens=10)
    world.phase(move, "aborted", failed=1, reason="destination_refused")
    assert peer(world, "a").excluded
    world.now += 1
    assert world.tell(world.said("ill")) == []
    assert pairs(world.tell(world.said("a"))) == [("ill", "a")]


def test_a_new_life_of_it_is_asked_at_once() -> None:
    world, move = ill()
    world.answer(move, accepted=None)
    world.samples.pop("ill")
    world.now += 1
    assert world.tell(world.worker("ill", incarnation=2)) == []
    assert pairs(world.tell(world.report("ill", 10, 1, schedulable=False))) == [("ill", "a")]


def test_commands_of_one_round_are_one_silence() -> None:
    world = Movers(KNOBS)
    for number in range(9):
        world.join(f"w{number}", 0, 0, migration_slots_in=1)
    world.join("ill", 90, 9)
    moves = world.tell(world.said("ill", schedulable=False))
    assert len(moves) == 9
    world.now += 5_000
    for move in moves:
        world.answer(move, accepted=None)
        world.now += 10
    assert peer(world, "ill").failures == 1
    assert peer(world, "ill").breaker_open_until_ms <= world.now + KNOBS.breaker_ms


def test_who_reports_of_a_move_has_answered_it() -> None:
    world, move = ill()
    world.answer(move, accepted=None)
    world.phase(move, "admitted")
    assert (peer(world, "ill").failures, peer(world, "ill").breaker_open_until_ms) == (0, 0)
