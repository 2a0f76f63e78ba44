"""The circuit breaker of workers that do not answer commands."""

from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.peers import MigrationPeer
from loadline.core.vocabulary.events import BusConnectionChanged
from loadline.core.vocabulary.migrations import Migration
from tests.support.migration_world import MigrationWorld, pairs

KNOBS = MigrationKnobs(
    policies=("decode_failover",),
    breaker_ms=5_000,
    breaker_max_ms=15_000,
    ttl_ms=1_000,
    instance_staleness_seconds=3_600,
)


def failed_worker() -> tuple[MigrationWorld, Migration]:
    """Return a world with a failed worker and the command to evacuate its only request."""
    world = MigrationWorld(KNOBS)
    world.join("ill", 10, 1)
    world.join("a", 0, 0)
    (command,) = world.handle(world.load_report("ill", schedulable=False))
    return world, command


def peer(world: MigrationWorld, name: str) -> MigrationPeer:
    return world.controller.state.fleet.models["m"].migration.peers.get("decode", name)


def test_the_breaker_opens_for_twice_as_long_each_time() -> None:
    world, command = failed_worker()
    waited_ms = []
    for _ in range(4):
        assert world.answer(command, accepted=None) == []
        since_ms, commanded = world.now, list[Migration]()
        while not commanded:
            commanded = world.advance(500)
            assert world.now - since_ms <= KNOBS.breaker_max_ms
        waited_ms.append(world.now - since_ms)
        (command,) = commanded
    assert waited_ms == [5_000, 10_000, 15_000, 15_000]
    assert [alarm.kind for alarm in world.alarms if alarm.kind == "migration_unanswered"] == ["migration_unanswered"]


def test_an_answer_closes_the_breaker() -> None:
    world, command = failed_worker()
    world.answer(command, accepted=None)
    (again,) = world.advance(5_000)
    world.answer(again, accepted=False, requests=0, reason="no_slots")
    assert (peer(world, "ill").failures, peer(world, "ill").breaker_open_until_ms) == (0, 0)
    world.now += 1
    assert pairs(world.handle(world.load_report("ill"))) == [("ill", "a")]


def test_an_open_breaker_does_not_delay_other_workers() -> None:
    world, command = failed_worker()
    world.answer(command, accepted=None)
    world.join("worse", 10, 1)
    assert pairs(world.handle(world.load_report("worse", schedulable=False))) == [("worse", "a")]


def test_a_worker_with_an_open_breaker_receives_nothing() -> None:
    world, command = failed_worker()
    world.answer(command, accepted=None)
    world.handle(world.load_report("ill", schedulable=True))
    world.join("worse", 10, 1)
    assert pairs(world.handle(world.load_report("worse", schedulable=False))) == [("worse", "a")]


def test_without_the_bus_no_breaker_opens() -> None:
    world, command = failed_worker()
    world.handle(BusConnectionChanged(connected=False))
    world.answer(command, accepted=None)
    assert peer(world, "ill").failures == 0


def test_a_destination_that_refused_is_excluded_until_its_next_report() -> None:
    world, command = failed_worker()
    world.answer(command, requests=1, tokens=10)
    world.report_phase(command, "aborted", failed=1, reason="destination_refused")
    assert peer(world, "a").excluded
    world.now += 1
    assert world.handle(world.load_report("ill")) == []
    assert pairs(world.handle(world.load_report("a"))) == [("ill", "a")]


def test_a_new_incarnation_has_a_closed_breaker() -> None:
    world, command = failed_worker()
    world.answer(command, accepted=None)
    world.samples.pop("ill")
    world.now += 1
    assert world.handle(world.worker("ill", incarnation=2)) == []
    assert pairs(world.handle(world.report("ill", 10, 1, schedulable=False))) == [("ill", "a")]


def test_unanswered_commands_of_one_round_count_once() -> None:
    world = MigrationWorld(KNOBS)
    for number in range(9):
        world.join(f"w{number}", 0, 0, migration_slots_in=1)
    world.join("ill", 90, 9)
    commands = world.handle(world.load_report("ill", schedulable=False))
    assert len(commands) == 9
    world.now += 5_000
    for command in commands:
        world.answer(command, accepted=None)
        world.now += 10
    assert peer(world, "ill").failures == 1
    assert peer(world, "ill").breaker_open_until_ms <= world.now + KNOBS.breaker_ms


def test_a_report_closes_the_breaker() -> None:
    world, command = failed_worker()
    world.answer(command, accepted=None)
    world.report_phase(command, "admitted")
    assert (peer(world, "ill").failures, peer(world, "ill").breaker_open_until_ms) == (0, 0)
