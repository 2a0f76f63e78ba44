"""Stalls of the agent: silence of workers does not count while the agent receives nothing."""

from msgspec.structs import replace

from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.events import BusConnectionChanged
from tests.support.migration_world import MigrationWorld, pairs

FAILOVER = MigrationKnobs(policies=("decode_failover",))


def fleet(knobs: MigrationKnobs = FAILOVER) -> MigrationWorld:
    world = MigrationWorld(knobs)
    for number in range(6):
        world.join(f"w{number}", 10, 1)
    return world


def test_samples_that_stayed_the_same_without_the_bus_are_no_failure() -> None:
    world = fleet(replace(FAILOVER, instance_staleness_seconds=60))
    world.handle(BusConnectionChanged(connected=False))
    world.now += 70_000
    world.handle(BusConnectionChanged(connected=True))
    assert world.handle(*(world.report(f"w{number}", 20, 1) for number in range(3))) == []
    assert world.advance(59_000) == []
    world.now += 1_000
    busy = [world.report(f"w{number}", 30, 1) for number in range(3)]
    hung = {
        source for source, _ in pairs(world.handle(*busy, *(world.load_report(f"w{number}") for number in range(3, 6))))
    }
    assert hung == {"w3", "w4", "w5"}  # with requests, and with the same samples for a minute


def test_reports_that_arrive_late_after_a_stall_are_no_silence() -> None:
    world = fleet()
    world.advance(2_000)
    world.now += 6_000  # no turns for a while; half of the delayed reports arrive in the next turn
    assert world.handle(*(world.load_report(f"w{number}") for number in range(4))) == []
    world.now += 10
    assert world.handle(world.load_report("w4")) == []
    assert world.advance(3_000, silent=("w5",)) == []
    assert {source for source, _ in pairs(world.advance(1_000, silent=("w5",)))} == {"w5"}


def test_rare_reports_are_no_stall() -> None:
    world = fleet(replace(FAILOVER, interval_ms=10_000, suspect_after_ms=12_000))
    commands = []
    for _ in range(5):
        world.now += 5_000
        commands += world.handle(*(world.load_report(f"w{number}") for number in range(5)))
    assert {source for source, _ in pairs(commands)} == {"w5"}


def test_a_vanished_worker_counts_only_after_the_bus_was_connected_long_enough() -> None:
    world = MigrationWorld(replace(FAILOVER, failover_domain="node"))
    for name in ("a0", "a1", "b0"):
        world.handle(world.worker(name, node=name[0]))
        world.handle(world.report(name, 10, 1))
    world.deregister("a0")
    assert world.advance(10_000) == []  # the worker still reports
    world.handle(BusConnectionChanged(connected=False))
    world.now += 4_500
    world.handle(BusConnectionChanged(connected=True))
    assert world.handle(world.load_report("a1"), world.load_report("b0")) == []
    assert world.advance(10_000) == []
    assert pairs(world.advance(6_000, silent=("a0",)))[:1] == [("a1", "b0")]
