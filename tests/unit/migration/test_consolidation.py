"""Consolidation rounds: when workers are emptied to save GPUs."""

from loadline.core.engines.tpot import TpotSweep
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.migrations import Migration
from tests.support.migration_world import MigrationWorld, pairs

AFTER_MS = 10_000
KNOBS = MigrationKnobs(
    policies=("binpacking_consolidation",),
    consolidate_after_ms=AFTER_MS,
    tpot_slo=50.0,
    instance_staleness_seconds=3_600,
)
TPOT = TpotSweep((1.0, 256.0), (8.0, 8.0), (11.0, 266.0))
"""Time per output token: 10 ms and 1 ms for each request."""

FULLER = 25
"""Requests of a worker that is too slow to be emptied."""


def fleet(*requests: int) -> MigrationWorld:
    """Return workers with the given numbers of requests."""
    world = MigrationWorld(KNOBS, tpot=TPOT)
    for number, count in enumerate(requests):
        world.join(f"w{number}", 10 * count, count)
    return world


def complete_commands(world: MigrationWorld, *commands: Migration) -> None:
    """Complete all commands."""
    world.now += 100
    for command in commands:
        count = command.requests_max
        world.answer(command, requests=count, tokens=10 * count)
        world.report_phase(command, "done", moved=count, tokens=10 * count, requests=count)
        for end, sign in ((command.source, -1), (command.destination, 1)):
            left = (world.samples[end.worker].running_requests or 0) + sign * count
            world.handle(world.report(end.worker, 10 * left, left))


def test_half_of_equal_workers_are_emptied_into_the_others() -> None:
    world = fleet(4, 4, 4, 4)
    assert world.advance(AFTER_MS - 1_000) == []
    commands = world.advance(2_000)
    assert pairs(commands) == [("w0", "w1"), ("w2", "w3")]
    assert [command.requests_max for command in commands] == [4, 4]


def test_a_worker_that_is_assigned_requests_is_not_emptied() -> None:
    world = fleet(2, FULLER)
    for _ in range(20):
        assert world.advance(2_000) == []
        for left in (1, 2):
            world.now += 100
            assert world.handle(world.report("w0", 10 * left, left)) == []
    assert world.advance(AFTER_MS - 1_000) == []
    assert pairs(world.advance(2_000)) == [("w0", "w1")]


def test_migrated_requests_do_not_count_as_assigned() -> None:
    world = fleet(1, 1, 1, 1)
    complete_commands(world, *world.advance(AFTER_MS + 1_000))
    assert [world.samples[f"w{number}"].running_requests for number in range(4)] == [0, 2, 0, 2]
    assert pairs(world.advance(AFTER_MS + 2_000)) == [("w1", "w3")]


def test_the_next_round_waits_until_workers_of_the_last_have_stayed_empty() -> None:
    world = fleet(1, 1, 1, 1)
    complete_commands(world, *world.advance(AFTER_MS + 1_000))
    assert world.advance(AFTER_MS - 1_000) == []
    assert len(world.advance(3_000)) == 1


def test_a_failed_round_delays_the_next_one() -> None:
    world = fleet(2, FULLER)
    complete_commands(world, *world.advance(AFTER_MS + 1_000))
    world.now += 100
    world.handle(world.report("w0", 20, 2))
    assert world.advance(KNOBS.ttl_ms + AFTER_MS) == []
    assert world.advance(AFTER_MS) == []
    assert pairs(world.advance(2 * AFTER_MS)) == [("w0", "w1")]
