"""Draining workers: they receive nothing, and all their requests migrate."""

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
from tests.support.migration_world import MigrationWorld, pairs

FAILOVER = MigrationKnobs(policies=("prefill_failover", "decode_failover"))
LOAD = MigrationKnobs(policies=("decode_load",), decode_load_threshold=0.5)


def candidates(running: int, waiting: int, hops: int = 0) -> list[MigratableRequest]:
    return [
        *(MigratableRequest(f"r{number}", 100, 5, hops=hops) for number in range(running)),
        *(MigratableRequest(f"w{number}", 100, 0, waiting=True, hops=hops) for number in range(waiting)),
    ]


def chosen(world: MigrationWorld, command: Migration, has: list[MigratableRequest]) -> int:
    """Return the number of requests that the source selects for a command."""
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    record = world.records[command.source.worker]
    reply = MigrationProgress(record, slots_out=64).answer(MigrateCommand(**fields, ttl_ms=1_000), has, 0)
    assert reply is not None
    return reply.requests


@pytest.mark.parametrize(("pool", "running", "waiting"), [("prefill", 0, 6), ("decode", 2, 5), ("decode", 7, 0)])
def test_an_evacuation_takes_waiting_requests_too(pool: str, running: int, waiting: int) -> None:
    world = MigrationWorld(FAILOVER)
    world.join("other", 0, 0, pool=pool)
    world.join("ill", 10, running, pool=pool, waiting_requests=waiting)
    (command,) = world.handle(world.load_report("ill", schedulable=False))
    assert (command.rule, command.value, command.requests_max) == ("NUM_REQ", ALL_REQUESTS, running + waiting)
    assert chosen(world, command, candidates(running, waiting)) == running + waiting


def test_an_evacuation_ignores_hops_max() -> None:
    world = MigrationWorld(replace(FAILOVER, hops_max=3))
    world.join("other", 0, 0)
    world.join("ill", 10, 2)
    (command,) = world.handle(world.load_report("ill", schedulable=False))
    assert chosen(world, command, candidates(2, 0, hops=9)) == 2


def test_load_policies_respect_hops_max() -> None:
    world = MigrationWorld(replace(LOAD, hops_max=2))
    world.join("cold", 0, 0)
    (command,) = world.join("hot", 900, 9)
    assert command.hops_max == 2
    assert chosen(world, command, candidates(9, 0, hops=2)) == 0


def drained_by_others(world: MigrationWorld, name: str) -> list[Migration]:
    record = replace(world.records[name], state="draining")
    return world.handle(WorkerRegistered(RegisteredWorker(record, 5)))


def test_a_worker_drained_by_another_scaler_is_evacuated() -> None:
    world = MigrationWorld(replace(LOAD, policies=()))
    world.join("other", 0, 0)
    world.join("leaves", 30, 3)
    (command,) = drained_by_others(world, "leaves")
    assert (command.trigger, *pairs([command])[0]) == ("drain", "leaves", "other")


def test_a_worker_is_evacuated_once_its_drain_is_not_held_any_more() -> None:
    world = MigrationWorld(replace(LOAD, policies=()))
    world.join("other", 0, 0)
    world.join("leaves", 30, 3)
    fleet = world.controller.state.fleet
    fleet.start_drain("m", "decode", "leaves", world.now, held=True)
    assert world.handle(world.report("leaves", 30, 3)) == []
    fleet.begin_drain("m", "decode", "leaves", world.now)
    assert pairs(world.handle(world.report("leaves", 30, 3))) == [("leaves", "other")]


def test_a_draining_decode_worker_is_evacuated_after_its_lease_is_gone() -> None:
    world = MigrationWorld(replace(LOAD, policies=()))
    world.join("leaves", 30, 3)
    drained_by_others(world, "leaves")
    world.deregister("leaves")
    (command,) = world.join("other", 0, 0)
    assert pairs([command]) == [("leaves", "other")]
    world.handle(WorkerDrained("m", "decode", "leaves", 1))
    assert "leaves" not in world.controller.state.fleet.models["m"].pools["decode"].workers


def test_a_draining_worker_that_stops_reporting_is_gone() -> None:
    world = MigrationWorld(LOAD)
    world.join("leaves", 30, 3)
    drained_by_others(world, "leaves")
    world.deregister("leaves")
    workers = world.controller.state.fleet.models["m"].pools["decode"].workers
    world.join("other", 0, 0)
    world.advance(3_000, silent=("leaves",))
    assert "leaves" in workers
    world.advance(10_000, silent=("leaves",))
    assert "leaves" not in workers


def test_nothing_migrates_to_a_draining_worker() -> None:
    world = MigrationWorld(LOAD)
    world.join("leaves", 0, 0)
    drained_by_others(world, "leaves")
    assert world.join("hot", 900, 9) == []


def announce_victims(world: MigrationWorld, *victims: Victim) -> None:
    """Announce a decision with these victims."""
    state = world.controller.state
    targets = (PoolTarget("decode", "decode", 1, 2, victims),)
    decision = Decision("d", "m", 7, 1, world.now, world.now + 60_000, targets, ("r",), 1_000)
    state.ledger.entry("m").decision = decision


def test_a_victim_of_a_decision_receives_nothing_unlike_its_next_incarnation() -> None:
    world = MigrationWorld(LOAD)
    announce_victims(world, Victim("victim", 1))
    world.join("victim", 0, 0)
    assert world.join("hot", 900, 9) == []
    world.handle(world.worker("victim", incarnation=2))
    assert pairs(world.handle(world.report("victim", 0, 0))) == [("hot", "victim")]


def test_a_stale_worker_receives_nothing() -> None:
    world = MigrationWorld(replace(LOAD, suspect_after_ms=3_600_000), stale_after_ms=5_000)
    world.join("quiet", 0, 0)
    world.join("busy", 400, 4)
    world.advance(6_000, silent=("quiet",))
    assert world.handle(world.report("busy", 900, 9)) == []


def test_an_agent_that_only_migrates_ignores_drain_requests() -> None:
    world = MigrationWorld(LOAD)
    world.join("a", 0, 0)
    world.handle(DrainRequested("m", "decode", "a", "me"))
    assert not world.controller.state.drains.open
    wake_ms = world.controller.next_wake()
    assert wake_ms is not None
    assert wake_ms > world.now
