"""Bin packing: slow workers send to the fullest that have room, and nearly empty ones are emptied."""

from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.engines.tpot import TpotSweep
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.outcomes import MigrationCode, PolicyReport
from loadline.core.vocabulary.migrations import Migration
from tests.support.migration_world import MigrationWorld, pairs

POINTS = [(batch, tokens) for batch in (1.0, 256.0) for tokens in (8.0, 8_192.0)]
LAW = TpotSweep(
    tuple(batch for batch, _ in POINTS),
    tuple(tokens for _, tokens in POINTS),
    tuple(10.0 + 0.1 * batch + 1e-5 * batch * tokens for batch, tokens in POINTS),
)
"""Time per output token: 10 ms, 0.1 ms for each request and 0.01 ms for each thousand tokens."""
CACHE = 10_000_000
KNOBS = MigrationKnobs(
    policies=("binpacking_consolidation", "binpacking_mitigation"),
    tpot_slo=50.0,
    ttl_ms=2_000,
    instance_staleness_seconds=3_600,
)
EMPTYING = replace(KNOBS, policies=("binpacking_consolidation",), consolidate_after_ms=10_000)


def join(world: MigrationWorld, name: str, running: int, tokens: int = 0, **more: object) -> list[Migration]:
    return world.join(name, tokens, running, kv_blocks_total=CACHE, **more)  # type: ignore[arg-type]  # of a sample


def last_report(world: MigrationWorld) -> PolicyReport:
    return world.controller.state.fleet.models["m"].migration.groups["decode"].reports["binpacking_consolidation"]


def three_workers(few: int = 4, many: int = 100) -> MigrationWorld:
    """Return a worker with few requests, one with many, and one with none."""
    world = MigrationWorld(EMPTYING, tpot=LAW)
    join(world, "none", 0)
    join(world, "many", many, 1_000 * many)
    assert join(world, "few", few, 1_000 * few) == []
    return world


def end(world: MigrationWorld, command: Migration, requests: int) -> None:
    """Complete a migration and let both workers report."""
    world.answer(command, requests=requests, tokens=1_000 * requests)
    world.report_phase(command, "done", moved=requests, tokens=1_000 * requests, requests=requests)


def test_a_slow_worker_sends_to_the_fullest_until_it_meets_its_objective() -> None:
    world = MigrationWorld(replace(KNOBS, policies=("binpacking_mitigation",)), tpot=LAW)
    for name, running in (("none", 0), ("some", 100), ("most", 250)):
        join(world, name, running, 1_000 * running)
    (command,) = join(world, "slow", 350, 350_000)  # 10 + 35.1 + 3.5 ms, of 47.5 ms at most
    assert pairs([command]) == [("slow", "most")]
    assert (command.rule, command.order, command.trigger) == ("NUM_REQ", "LCR", "binpacking_mitigation")
    assert command.value == min(command.requests_max, 16)


def test_each_slow_worker_has_a_destination_of_its_own_in_one_round() -> None:
    """Llumnix plans one pair per cycle."""
    world = MigrationWorld(replace(KNOBS, policies=("binpacking_mitigation",)), tpot=LAW)
    for name, running in (("some", 100), ("most", 250)):
        join(world, name, running, 1_000 * running)
    slow = ("slow", "slower")
    commands = world.handle(
        *(world.worker(name) for name in slow),
        *(world.report(name, 350_000, 350, kv_blocks_total=CACHE) for name in slow),
    )
    assert pairs(commands) == [("slow", "most"), ("slower", "some")]


def test_a_worker_beyond_the_grid_of_the_profile_is_judged_by_the_extrapolated_time() -> None:
    """To Llumnix its time is infinite, so a single long request makes a fast worker the first source."""
    world = MigrationWorld(replace(KNOBS, policies=("binpacking_mitigation",)), tpot=LAW)
    join(world, "some", 100, 100_000)
    assert join(world, "long", 1, 100_000) == []  # 10 + 0.2 + 1 ms: the grid ends at 8,192 tokens of a request
    assert pairs(join(world, "slow", 350, 350_000)) == [("slow", "some")]
    assert pairs(join(world, "longer", 10, 4_000_000)) == [("longer", "long")]  # 10 + 1.1 + 40 ms


@pytest.mark.parametrize("capacity", [None, CACHE])
def test_a_request_that_would_make_every_destination_slow_finds_no_room(capacity: int | None) -> None:
    world = MigrationWorld(replace(KNOBS, policies=("binpacking_mitigation",)), tpot=LAW)
    world.join("most", 200_000, 200, kv_blocks_total=capacity)
    assert join(world, "slow", 2, 4_000_000) == []
    report = world.controller.state.fleet.models["m"].migration.groups["decode"].reports["binpacking_mitigation"]
    assert (report.code, report.numbers["room"]) == (MigrationCode.NO_ROOM, 0.0)


def test_a_worker_is_emptied_into_the_fullest_after_a_delay() -> None:
    world = three_workers()
    assert world.advance(9_000) == []
    assert last_report(world).code is MigrationCode.TOO_SOON
    (command,) = world.advance(2_000)
    assert pairs([command]) == [("few", "many")]
    assert command.requests_max == 4


@pytest.mark.parametrize(("few", "many"), [(4, 320), (200, 200)])
def test_a_worker_is_not_emptied_if_its_requests_do_not_all_fit_elsewhere(few: int, many: int) -> None:
    world = three_workers(few, many)
    assert world.advance(60_000) == []


def test_a_worker_with_unmovable_requests_is_not_emptied() -> None:
    world = three_workers()
    world.handle(world.load_report("few", unmovable_requests=1))
    assert world.advance(60_000) == []
    assert last_report(world).code is MigrationCode.NOT_EMPTIED


def test_the_delay_restarts_when_a_worker_could_not_be_emptied() -> None:
    world = three_workers()
    world.advance(8_000)
    world.handle(world.report("many", 320_000, 320))
    world.advance(1_000)
    world.handle(world.report("many", 100_000, 100))
    assert world.advance(9_000) == []
    assert pairs(world.advance(3_000)) == [("few", "many")]


def test_each_failed_round_doubles_the_delay() -> None:
    world, asked_at_s = three_workers(), list[int]()
    began_ms = world.now
    while world.now - began_ms < 400_000:
        for command in world.advance(1_000):
            asked_at_s.append((world.now - began_ms) // 1_000)
            end(world, command, 4)
            world.handle(world.report("few", 0, 0), world.report("many", 104_000, 104))
            world.advance(1_000)
            world.handle(world.report("few", 4_000, 4), world.report("many", 100_000, 100))  # the router has filled it
    gaps_s = [later - sooner for sooner, later in pairwise(asked_at_s)]
    assert gaps_s[0] >= 20
    assert len(gaps_s) >= 3
    assert all(later > 1.4 * sooner for sooner, later in pairwise(gaps_s)), gaps_s


def test_a_successful_round_resets_the_delay() -> None:
    world = three_workers()
    (command,) = world.advance(11_000)
    end(world, command, 4)
    world.handle(world.report("few", 0, 0), world.report("many", 104_000, 104))
    world.advance(15_000)
    consolidation = world.controller.state.fleet.models["m"].migration.groups["decode"].consolidation
    assert (consolidation.failed_rounds, consolidation.round_ends_ms) == (0, -1)


def test_a_round_remembers_all_its_workers() -> None:
    world = MigrationWorld(EMPTYING, tpot=LAW)
    for number in range(20):
        join(world, f"few{number:02}", 1, 1_000)
        join(world, f"many{number:02}", 310 if number < 1 else 1, 1_000)
    commands = world.advance(13_000)
    consolidation = world.controller.state.fleet.models["m"].migration.groups["decode"].consolidation
    assert sorted({command.source.worker for command in commands}) == sorted(consolidation.workers)


def test_workers_reserved_for_decode_receive_first_and_for_prefill_never() -> None:
    world = MigrationWorld(EMPTYING, tpot=LAW)
    for name, reserved in (("p", "prefill"), ("d", "decode"), ("many", "")):
        world.handle(world.worker(name, reserved=reserved))
        world.handle(world.report(name, 1_000 * len(name), 10 * len(name), kv_blocks_total=CACHE))
    join(world, "few", 2, 2_000)
    assert pairs(world.advance(11_000)) == [("few", "d")]


def test_bin_packing_needs_times_per_token() -> None:
    world = MigrationWorld(EMPTYING)
    join(world, "many", 100, 100_000)
    join(world, "few", 4, 4_000)
    assert world.advance(30_000) == []


def test_a_snapshot_holds_the_round() -> None:
    world = three_workers()
    world.advance(11_000)
    state = msgspec.json.decode(world.controller.snapshot())["state"]
    assert state["fleet"]["models"]["m"]["migration"]["groups"]["decode"]["consolidation"]["workers"] == ["few"]


def test_requests_that_come_late_do_not_fail_a_round() -> None:
    world = three_workers(4, 240)
    (command,) = world.advance(11_000)
    end(world, command, 4)
    world.handle(
        world.report("few", 0, 0), world.report("many", 244_000, 244)
    )  # the worker, which is too full to be emptied
    world.advance(60_000)
    world.handle(world.report("few", 4_000, 4))
    assert pairs(world.advance(12_000)) == [("few", "many")]
