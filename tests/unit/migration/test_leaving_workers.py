"""Workers on their way out: who is one, who takes nothing in, and what is moved of one that fails or leaves."""

import pytest
from msgspec.structs import replace

from loadline.client.handover.progress import MigrationProgress
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.decisions import Decision, PoolTarget, Victim
from loadline.core.vocabulary.events import DrainRequested, WorkerDrained, WorkerRegistered
from loadline.core.vocabulary.migrations import ALL_REQUESTS, Migration
from loadline.core.vocabulary.samples import RegisteredWorker
from loadline.wire.messages import MigrateCommand
from tests.support.movers import Movers, pairs

FAILOVER = MigrationKnobs(policies=("prefill_failover", "decode_failover"))
LOAD = MigrationKnobs(policies=("decode_load",), decode_load_threshold=0.5)


def candidates(running: int, waiting: int, hops: int = 0) -> list[MigratableRequest]:
    return [
        *(MigratableRequest(f"r{number}", 100, 5, hops=hops) for number in range(running)),
        *(MigratableRequest(f"w{number}", 100, 0, waiting=True, hops=hops) for number in range(waiting)),
    ]


def chosen(world: Movers, move: Migration, has: list[MigratableRequest]) -> int:
    """Requests that the source of a move takes for it."""
    fields = {name: getattr(move, name) for name in move.__struct_fields__}
    record = world.records[move.source.worker]
    reply = MigrationProgress(record, slots_out=64).answer(MigrateCommand(**fields, ttl_ms=1_000), has, 0)
    assert reply is not None
    return reply.requests


@pytest.mark.parametrize(("pool", "running", "waiting"), [("prefill", 0, 6), ("decode", 2, 5), ("decode", 7, 0)])
def test_all_of_a_failing_worker_moves_also_what_waits(pool: str, running: int, waiting: int) -> None:
    world = Movers(FAILOVER)
    world.join("other", 0, 0, pool=pool)
    world.join("ill", 10, running, pool=pool, waiting_requests=waiting)
    (move,) = world.tell(world.said("ill", schedulable=False))
    assert (move.rule, move.value, move.requests_max) == ("NUM_REQ", ALL_REQUESTS, running + waiting)
    assert chosen(world, move, candidates(running, waiting)) == running + waiting


def test_a_worker_that_fails_gives_also_what_was_moved_often() -> None:
    world = Movers(replace(FAILOVER, hops_max=3))
    world.join("other", 0, 0)
    world.join("ill", 10, 2)
    (move,) = world.tell(world.said("ill", schedulable=False))
    assert chosen(world, move, candidates(2, 0, hops=9)) == 2


def test_load_moves_nothing_that_was_moved_often() -> None:
    world = Movers(replace(LOAD, hops_max=2))
    world.join("cold", 0, 0)
    (move,) = world.join("hot", 900, 9)
    assert move.hops_max == 2
    assert chosen(world, move, candidates(9, 0, hops=2)) == 0


def drained_by_others(world: Movers, name: str) -> list[Migration]:
    record = replace(world.records[name], state="draining")
    return world.tell(WorkerRegistered(RegisteredWorker(record, 5)))


def test_a_worker_that_others_drain_is_emptied() -> None:
    world = Movers(replace(LOAD, policies=()))
    world.join("other", 0, 0)
    world.join("leaves", 30, 3)
    (move,) = drained_by_others(world, "leaves")
    assert (move.trigger, *pairs([move])[0]) == ("drain", "leaves", "other")


def test_a_decode_worker_that_others_drain_is_emptied_after_its_key_is_gone() -> None:
    world = Movers(replace(LOAD, policies=()))
    world.join("leaves", 30, 3)
    drained_by_others(world, "leaves")
    world.leave("leaves")
    (move,) = world.join("other", 0, 0)
    assert pairs([move]) == [("leaves", "other")]
    world.tell(WorkerDrained("m", "decode", "leaves", 1))
    assert "leaves" not in world.controller.state.fleet.models["m"].pools["decode"].workers


def test_one_that_others_drain_and_that_is_heard_no_more_is_gone() -> None:
    world = Movers(LOAD)
    world.join("leaves", 30, 3)
    drained_by_others(world, "leaves")
    world.leave("leaves")
    workers = world.controller.state.fleet.models["m"].pools["decode"].workers
    world.join("other", 0, 0)
    world.wait(3_000, silent=("leaves",))
    assert "leaves" in workers
    world.wait(10_000, silent=("leaves",))
    assert "leaves" not in workers


def test_nothing_moves_to_a_worker_that_others_drain() -> None:
    world = Movers(LOAD)
    world.join("leaves", 0, 0)
    drained_by_others(world, "leaves")
    assert world.join("hot", 900, 9) == []


def standing(world: Movers, *victims: Victim) -> None:
    """A decision stands that names these."""
    state = world.controller.state
    targets = (PoolTarget("decode", "decode", 1, 2, victims),)
    decision = Decision("d", "m", 7, 1, world.now, world.now + 60_000, targets, ("r",), 1_000)
    state.ledger.entry("m").decision = decision


def test_nothing_moves_to_a_victim_of_a_decision_and_something_to_a_later_life_of_it() -> None:
    world = Movers(LOAD)
    standing(world, Victim("victim", 1))
    world.join("victim", 0, 0)
    assert world.join("hot", 900, 9) == []
    world.tell(world.worker("victim", incarnation=2))
    assert pairs(world.tell(world.report("victim", 0, 0))) == [("hot", "victim")]


def test_nothing_moves_to_who_was_not_heard_for_long() -> None:
    world = Movers(replace(LOAD, suspect_after_ms=3_600_000), stale_after_ms=5_000)
    world.join("quiet", 0, 0)
    world.join("busy", 400, 4)
    world.wait(6_000, silent=("quiet",))
    assert world.tell(world.report("busy", 900, 9)) == []


def test_an_agent_that_only_moves_requests_drains_nobody_and_rests() -> None:
    world = Movers(LOAD)
    world.join("a", 0, 0)
    world.tell(DrainRequested("m", "decode", "a", "me"))
    assert not world.controller.state.drains.open
    wake_ms = world.controller.next_wake()
    assert wake_ms is not None
    assert wake_ms > world.now
