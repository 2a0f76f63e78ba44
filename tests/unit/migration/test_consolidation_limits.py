"""Bin packing: slow workers give to the fullest that can take more, and nearly empty ones are emptied for good."""

from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.engines.tpot import TpotSweep
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.outcomes import MigrationCode, PolicyReport
from loadline.core.vocabulary.migrations import Migration
from tests.support.movers import Movers, pairs

POINTS = [(batch, tokens) for batch in (1.0, 256.0) for tokens in (8.0, 8_192.0)]
LAW = TpotSweep(
    tuple(batch for batch, _ in POINTS),
    tuple(tokens for _, tokens in POINTS),
    tuple(10.0 + 0.1 * batch + 1e-5 * batch * tokens for batch, tokens in POINTS),
)
"""10 ms, 0.1 ms for each request and 0.01 ms for each thousand tokens."""
CACHE = 10_000_000
KNOBS = MigrationKnobs(
    policies=("binpacking_consolidation", "binpacking_mitigation"),
    tpot_slo=50.0,
    ttl_ms=2_000,
    instance_staleness_seconds=3_600,
)
EMPTYING = replace(KNOBS, policies=("binpacking_consolidation",), consolidate_after_ms=10_000)


def join(world: Movers, name: str, running: int, tokens: int = 0, **more: object) -> list[Migration]:
    return world.join(name, tokens, running, kv_blocks_total=CACHE, **more)  # type: ignore[arg-type]  # of a sample


def last_look(world: Movers) -> PolicyReport:
    return world.controller.state.fleet.models["m"].migration.groups["decode"].reports["binpacking_consolidation"]


def two(few: int = 4, many: int = 100) -> Movers:
    """A worker with a few requests, one with many, and one with none."""
    world = Movers(EMPTYING, tpot=LAW)
    join(world, "none", 0)
    join(world, "many", many, 1_000 * many)
    assert join(world, "few", few, 1_000 * few) == []
    return world


def end(world: Movers, move: Migration, requests: int) -> None:
    """All of a move is done, and both say so."""
    world.answer(move, requests=requests, tokens=1_000 * requests)
    world.phase(move, "done", moved=requests, tokens=1_000 * requests, requests=requests)


def test_a_slow_worker_gives_to_the_fullest_that_can_take_more_until_it_is_within_its_time() -> None:
    world = Movers(replace(KNOBS, policies=("binpacking_mitigation",)), tpot=LAW)
    for name, running in (("none", 0), ("some", 100), ("most", 250)):
        join(world, name, running, 1_000 * running)
    (move,) = join(world, "slow", 350, 350_000)  # 10 + 35.1 + 3.5 ms, of 47.5 ms at most
    assert pairs([move]) == [("slow", "most")]
    assert (move.rule, move.order, move.trigger) == ("NUM_REQ", "LCR", "binpacking_mitigation")
    assert move.value == min(move.requests_max, 16)


def test_a_worker_is_emptied_into_the_fullest_after_it_could_have_been_for_a_while() -> None:
    world = two()
    assert world.wait(9_000) == []
    assert last_look(world).code is MigrationCode.TOO_SOON
    (move,) = world.wait(2_000)
    assert pairs([move]) == [("few", "many")]
    assert move.requests_max == 4


@pytest.mark.parametrize(("few", "many"), [(4, 320), (200, 200)])
def test_nobody_is_emptied_whose_requests_do_not_all_fit_elsewhere(few: int, many: int) -> None:
    world = two(few, many)
    assert world.wait(60_000) == []


def test_requests_that_must_stay_keep_their_worker() -> None:
    world = two()
    world.tell(world.said("few", unmovable_requests=1))
    assert world.wait(60_000) == []
    assert last_look(world).code is MigrationCode.NOT_EMPTIED


def test_the_while_begins_anew_when_it_could_not_be() -> None:
    world = two()
    world.wait(8_000)
    world.tell(world.report("many", 320_000, 320))
    world.wait(1_000)
    world.tell(world.report("many", 100_000, 100))
    assert world.wait(9_000) == []
    assert pairs(world.wait(3_000)) == [("few", "many")]


def test_who_is_filled_again_is_left_for_longer_each_time() -> None:
    world, asked_at_s = two(), list[int]()
    began_ms = world.now
    while world.now - began_ms < 400_000:
        for move in world.wait(1_000):
            asked_at_s.append((world.now - began_ms) // 1_000)
            end(world, move, 4)
            world.tell(world.report("few", 0, 0), world.report("many", 104_000, 104))
            world.wait(1_000)
            world.tell(
                world.report("few", 4_000, 4), world.report("many", 100_000, 100)
            )  # whoever routes has filled it
    gaps_s = [later - sooner for sooner, later in pairwise(asked_at_s)]
    assert gaps_s[0] >= 20
    assert len(gaps_s) >= 3
    assert all(later > 1.4 * sooner for sooner, later in pairwise(gaps_s)), gaps_s


def test_who_stays_empty_encourages_the_next_round() -> None:
    world = two()
    (move,) = world.wait(11_000)
    end(world, move, 4)
    world.tell(world.report("few", 0, 0), world.report("many", 104_000, 104))
    world.wait(15_000)
    consolidation = world.controller.state.fleet.models["m"].migration.groups["decode"].consolidation
    assert (consolidation.failed_rounds, consolidation.round_ends_ms) == (0, -1)


def test_all_that_are_emptied_in_a_round_are_remembered() -> None:
    world = Movers(EMPTYING, tpot=LAW)
    for number in range(20):
        join(world, f"few{number:02}", 1, 1_000)
        join(world, f"many{number:02}", 310 if number < 1 else 1, 1_000)
    asked = world.wait(13_000)
    consolidation = world.controller.state.fleet.models["m"].migration.groups["decode"].consolidation
    assert sorted({move.source.worker for move in asked}) == sorted(consolidation.workers)


def test_those_kept_for_decode_take_first_and_those_kept_for_prefill_never() -> None:
    world = Movers(EMPTYING, tpot=LAW)
    for name, reserved in (("p", "prefill"), ("d", "decode"), ("many", "")):
        world.tell(world.worker(name, reserved=reserved))
        world.tell(world.report(name, 1_000 * len(name), 10 * len(name), kv_blocks_total=CACHE))
    join(world, "few", 2, 2_000)
    assert pairs(world.wait(11_000)) == [("few", "d")]


def test_nothing_is_packed_without_times_per_token() -> None:
    world = Movers(EMPTYING)
    join(world, "many", 100, 100_000)
    join(world, "few", 4, 4_000)
    assert world.wait(30_000) == []


def test_what_is_remembered_is_in_the_snapshot() -> None:
    world = two()
    world.wait(11_000)
    state = msgspec.json.decode(world.controller.snapshot())["state"]
    assert state["fleet"]["models"]["m"]["migration"]["groups"]["decode"]["consolidation"]["workers"] == ["few"]


def test_a_worker_that_got_work_long_after_it_was_emptied_was_not_emptied_in_vain() -> None:
    world = two(4, 240)
    (move,) = world.wait(11_000)
    end(world, move, 4)
    world.tell(world.report("few", 0, 0), world.report("many", 244_000, 244))  # which is too full to be emptied
    world.wait(60_000)
    world.tell(world.report("few", 4_000, 4))
    assert pairs(world.wait(12_000)) == [("few", "many")]
