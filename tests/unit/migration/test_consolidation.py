"""Workers are emptied for nothing but order, where that stays done."""

from loadline.core.engines.tpot import TpotSweep
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.migrations import Migration
from tests.support.movers import Movers, pairs

AFTER_MS = 10_000
KNOBS = MigrationKnobs(
    policies=("binpacking_consolidation",),
    consolidate_after_ms=AFTER_MS,
    tpot_slo=50.0,
    instance_staleness_seconds=3_600,
)
TPOT = TpotSweep((1.0, 256.0), (8.0, 8.0), (11.0, 266.0))
"""10 ms and one for each request."""

FULLER = 25
"""Requests of a worker that is too slow to be emptied."""


def fleet(*requests: int) -> Movers:
    """Workers with so many requests each."""
    world = Movers(KNOBS, tpot=TPOT)
    for number, count in enumerate(requests):
        world.join(f"w{number}", 10 * count, count)
    return world


def obey(world: Movers, *moves: Migration) -> None:
    """Each takes all that it asks for."""
    world.now += 100
    for move in moves:
        count = move.requests_max
        world.answer(move, requests=count, tokens=10 * count)
        world.phase(move, "done", moved=count, tokens=10 * count, requests=count)
        for end, sign in ((move.source, -1), (move.destination, 1)):
            left = (world.samples[end.worker].running_requests or 0) + sign * count
            world.tell(world.report(end.worker, 10 * left, left))


def test_half_of_equal_workers_give_all_to_the_others() -> None:
    world = fleet(4, 4, 4, 4)
    assert world.wait(AFTER_MS - 1_000) == []
    moves = world.wait(2_000)
    assert pairs(moves) == [("w0", "w1"), ("w2", "w3")]
    assert [move.requests_max for move in moves] == [4, 4]


def test_a_worker_that_is_given_work_keeps_it() -> None:
    world = fleet(2, FULLER)
    for _ in range(20):
        assert world.wait(2_000) == []
        for left in (1, 2):
            world.now += 100
            assert world.tell(world.report("w0", 10 * left, left)) == []
    assert world.wait(AFTER_MS - 1_000) == []
    assert pairs(world.wait(2_000)) == [("w0", "w1")]


def test_what_was_moved_to_a_worker_is_no_work_that_it_was_given() -> None:
    world = fleet(1, 1, 1, 1)
    obey(world, *world.wait(AFTER_MS + 1_000))
    assert [world.samples[f"w{number}"].running_requests for number in range(4)] == [0, 2, 0, 2]
    assert pairs(world.wait(AFTER_MS + 2_000)) == [("w1", "w3")]


def test_the_next_round_waits_until_those_of_the_last_were_empty_for_some_time() -> None:
    world = fleet(1, 1, 1, 1)
    obey(world, *world.wait(AFTER_MS + 1_000))
    assert world.wait(AFTER_MS - 1_000) == []
    assert len(world.wait(3_000)) == 1


def test_after_workers_that_were_filled_again_the_next_round_waits_longer() -> None:
    world = fleet(2, FULLER)
    obey(world, *world.wait(AFTER_MS + 1_000))
    world.now += 100
    world.tell(world.report("w0", 20, 2))
    assert world.wait(KNOBS.ttl_ms + AFTER_MS) == []
    assert world.wait(AFTER_MS) == []
    assert pairs(world.wait(2 * AFTER_MS)) == [("w0", "w1")]
