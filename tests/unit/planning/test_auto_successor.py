"""Auto planner of a new leader: it starts with what its predecessor learned, and shrinks only by what it sees."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from loadline.core.planning.planners.auto import AutoPlannerKnobs
from loadline.core.vocabulary.reasons import ReasonCode
from tests.unit.planning.test_auto_planner import FULL_PER_S, SERVES, START_UP_S, AutoWorld

RATE = 64.0
WORKERS = 3


def learned(seconds: int = 300) -> bytes:
    world = AutoWorld(WORKERS)
    world.run(RATE, seconds)
    data = world.planner.export_learned()
    assert data is not None
    return data


def successor(workers: int = WORKERS, data: bytes | None = None, seed: int = 2) -> AutoWorld:
    world = AutoWorld(workers, seed=seed)
    world.planner.import_learned(learned() if data is None else data)
    return world


def test_an_export_is_what_a_successor_exports() -> None:
    assert AutoWorld(WORKERS).planner.export_learned() is None
    data = learned()
    assert successor(data=data).planner.export_learned() == data


def test_a_successor_does_not_try_for_an_itl_that_no_count_attains() -> None:
    world = AutoWorld(WORKERS, itl_ms=4)
    world.run(RATE, 600)
    data = world.planner.export_learned()
    assert data is not None
    after = AutoWorld(world.target, itl_ms=4, seed=2)
    after.planner.import_learned(data)
    after.run(RATE, 300)
    assert max(after.counts) <= world.target + 1


@pytest.mark.parametrize("seed", range(5))
def test_a_successor_neither_learns_again_nor_shrinks_nor_grows_by_chance(seed: int) -> None:
    world = successor(seed=seed)
    for _ in range(120):
        world.run(RATE, 1)
        assert ReasonCode.CAPACITY_LEARNING not in world.codes
        assert world.target == WORKERS
    newcomer = AutoWorld(WORKERS, seed=seed)
    newcomer.run(RATE, 1)
    assert ReasonCode.CAPACITY_LEARNING in newcomer.codes


def test_a_successor_knows_the_capacity_of_a_load_that_it_has_not_seen() -> None:
    """With light load only, a planner without a past does not know what six workers serve."""
    world = successor(workers=1)
    world.run(0.1 * SERVES, 20)
    [serves] = [value for key, value in world.last.inputs.items() if key == "engine.serves_per_s"]
    assert serves == pytest.approx(SERVES, rel=0.15)
    world.run(5.0 * SERVES, 10)
    assert world.target >= 5


def test_a_successor_holds_workers_for_a_start_up() -> None:
    world = successor(workers=12)
    world.planner.knobs = AutoPlannerKnobs(start_up_ms=4 * START_UP_S * 1_000)
    world.run(RATE, 4 * START_UP_S)
    assert set(world.counts) == {12}
    world.run(RATE, START_UP_S + 40)  # the hold is 30 s longer than the start-up
    assert world.target <= WORKERS + 1


def test_a_successor_in_overload_grows_within_ten_seconds() -> None:
    world = successor(workers=2)
    world.run(5.0 * FULL_PER_S, 10)
    assert world.target >= 5


def test_evidence_of_other_engines_does_not_apply() -> None:
    world = successor()
    world.pool.knobs = replace(world.pool.knobs, accelerator="b200")
    world.run(RATE, 1)
    assert ReasonCode.CAPACITY_LEARNING in world.codes


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 100_000, b'{"lengths":{},"pools":{"engine":{}}}'])
def test_unreadable_evidence_is_ignored(data: bytes) -> None:
    world = successor(data=data)
    assert world.planner.export_learned() is None
    world.run(RATE, 30)


def test_an_export_changes_every_five_minutes_at_most_while_the_load_is_steady() -> None:
    world, exports = AutoWorld(WORKERS), list[bytes | None]()
    world.run(RATE, 300)
    for _ in range(600):
        world.run(RATE, 1)
        exports.append(world.planner.export_learned())
    changes = sum(one != following for one, following in pairwise(exports))
    assert 1 <= changes <= 5
