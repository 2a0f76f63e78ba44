"""Nobody fails for what was not heard because we did not hear: without the bus, or as we stood still."""

from msgspec.structs import replace

from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.events import BusConnectionChanged
from tests.support.movers import Movers, pairs

FAILOVER = MigrationKnobs(policies=("decode_failover",))


def fleet(knobs: MigrationKnobs = FAILOVER) -> Movers:
    world = Movers(knobs)
    for number in range(6):
        world.join(f"w{number}", 10, 1)
    return world


def test_samples_that_stood_still_while_the_bus_was_away_are_no_sign_of_a_hung_engine() -> None:
    world = fleet(replace(FAILOVER, instance_staleness_seconds=60))
    world.tell(BusConnectionChanged(connected=False))
    world.now += 70_000
    world.tell(BusConnectionChanged(connected=True))
    assert world.tell(*(world.report(f"w{number}", 20, 1) for number in range(3))) == []
    assert world.wait(59_000) == []
    world.now += 1_000
    busy = [world.report(f"w{number}", 30, 1) for number in range(3)]
    hung = {source for source, _ in pairs(world.tell(*busy, *(world.said(f"w{number}") for number in range(3, 6))))}
    assert hung == {"w3", "w4", "w5"}  # that have requests, and say the same for a whole minute


def test_who_is_heard_late_as_we_stood_still_is_not_silent() -> None:
    world = fleet()
    world.wait(2_000)
    world.now += 6_000  # nothing happens, and half of what was said comes in the next turn
    assert world.tell(*(world.said(f"w{number}") for number in range(4))) == []
    world.now += 10
    assert world.tell(world.said("w4")) == []
    assert world.wait(3_000, silent=("w5",)) == []
    assert {source for source, _ in pairs(world.wait(1_000, silent=("w5",)))} == {"w5"}


def test_a_fleet_that_says_little_is_listened_to_all_the_same() -> None:
    world = fleet(replace(FAILOVER, interval_ms=10_000, suspect_after_ms=12_000))
    asked = []
    for _ in range(5):
        world.now += 5_000
        asked += world.tell(*(world.said(f"w{number}") for number in range(5)))
    assert {source for source, _ in pairs(asked)} == {"w5"}


def test_the_neighbours_of_one_that_is_cut_off_from_the_store_stay_when_the_bus_was_away_too() -> None:
    world = Movers(replace(FAILOVER, failover_domain="node"))
    for name in ("a0", "a1", "b0"):
        world.tell(world.worker(name, node=name[0]))
        world.tell(world.report(name, 10, 1))
    world.leave("a0")
    assert world.wait(10_000) == []  # it still reports
    world.tell(BusConnectionChanged(connected=False))
    world.now += 4_500
    world.tell(BusConnectionChanged(connected=True))
    assert world.tell(world.said("a1"), world.said("b0")) == []
    assert world.wait(10_000) == []
    assert pairs(world.wait(6_000, silent=("a0",)))[:1] == [("a1", "b0")]
