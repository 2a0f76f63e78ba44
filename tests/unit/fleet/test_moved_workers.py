"""Workers that serve in another pool than the one whose scaler started them: no scaler notices, targets follow."""

import pytest
from msgspec.structs import replace

from loadline.core.fleet.pool import DRAINS_MAX
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, SendDrain
from loadline.core.vocabulary.events import (
    DrainRequested,
    RegistryRead,
    WorkerDeregistered,
    WorkerDrained,
    WorkerRegistered,
)
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from tests.support.controller_world import ControllerWorld, alarms, booted


def decided(**knobs: object) -> ControllerWorld:
    """Return a world in which two workers of each pool are decided and exist."""
    world = booted(planner="static", **knobs)
    world.run(10)
    world.controller.state.fleet.models["m"].reconcile = True
    world.run(1)
    assert (counts(world), desired(world)) == ({"prefill": 2, "decode": 2}, {"prefill": 2, "decode": 2})
    world.effects.clear()
    return world


def counts(world: ControllerWorld) -> dict[str, int]:
    return {name: pool.ready for name, pool in world.controller.state.fleet.models["m"].pools.items()}


def desired(world: ControllerWorld) -> dict[str, int | None]:
    return {name: pool.decided for name, pool in world.controller.state.fleet.models["m"].pools.items()}


def stored(world: ControllerWorld) -> dict[str, tuple[int, tuple[Victim, ...]]]:
    return {target.pool: (target.replicas, target.victims) for target in world.stored["m"].decision.targets}


def targets(world: ControllerWorld) -> dict[str, int | None]:
    return {name: pool.target for name, pool in world.controller.state.fleet.models["m"].pools.items()}


def moved(world: ControllerWorld, name: str = "p2") -> RegisteredWorker:
    """Return the record of a worker in the other pool, as a later write of its process."""
    record = world.workers[name]
    other = "decode" if record.pool == "prefill" else "prefill"
    home = "" if other == record.home else record.home
    world.workers[name] = replace(record, pool=other, role=other, home_pool=home)
    world.revision += 1
    return RegisteredWorker(world.workers[name], 5, world.revision)


def drained(effects: list[AnyEffect]) -> list[tuple[str, str, str]]:
    return [(one.pool, one.worker, one.role) for one in effects if isinstance(one, SendDrain)]


def test_a_worker_counts_in_the_pool_that_it_registered_in_last() -> None:
    world = decided()
    effects = world.handle(WorkerRegistered(moved(world)))
    assert (counts(world), world.controller.state.fleet.workers) == ({"prefill": 1, "decode": 3}, 4)
    assert (targets(world), desired(world)) == ({"prefill": 1, "decode": 3}, {"prefill": 2, "decode": 2})
    assert [effect for effect in effects if isinstance(effect, CommitDecision)] == [], "no scaler has to do anything"
    assert alarms(effects) == []
    world.handle(WorkerDeregistered("m", "prefill", "p2"))
    world.run(90)
    assert (counts(world), drained(world.effects), alarms(world.effects)) == ({"prefill": 1, "decode": 3}, [], [])
    assert world.controller.state.migration.vanished == {}, "it did not fail"


def test_a_worker_keeps_its_load_and_its_place_when_it_moves_back() -> None:
    world = decided()
    world.handle(WorkerRegistered(moved(world)))
    pool = world.controller.state.fleet.models["m"].pools["decode"]
    assert pool.workers["p2"].seen_at_ms == world.now
    world.run(1)
    assert (pool.fresh, pool.load.running) == (3, 3)
    world.handle(WorkerDeregistered("m", "prefill", "p2"), WorkerRegistered(moved(world)))
    world.run(1)
    assert (counts(world), pool.fresh, pool.load.running) == ({"prefill": 2, "decode": 2}, 2, 2)


def test_a_snapshot_of_the_registry_shows_the_move() -> None:
    world = decided()
    registered = moved(world)
    others = [RegisteredWorker(record, 5, 1) for name, record in world.workers.items() if name != "p2"]
    world.handle(RegistryRead([*others, registered]))
    assert (counts(world), targets(world)) == ({"prefill": 1, "decode": 3}, {"prefill": 1, "decode": 3})
    assert world.controller.state.migration.vanished == {}
    former = RegisteredWorker(replace(registered.record, pool="prefill", role="prefill"), 5, 2)
    world.handle(RegistryRead([*others, registered, former]))
    assert counts(world) == {"prefill": 1, "decode": 3}, "its former key is not removed yet"
    assert world.controller.state.rejected[Rejection.WORKER_MOVED] == 1


def test_a_drain_goes_on_in_the_other_pool() -> None:
    world = decided()
    world.drains_answered = None
    assert drained(world.handle(DrainRequested("m", "prefill", "p2", "somebody"))) == [("prefill", "p2", "prefill")]
    world.handle(WorkerRegistered(moved(world)))
    assert counts(world) == {"prefill": 1, "decode": 2}
    assert targets(world) == {"prefill": 2, "decode": 2}, "it is out of service, and replaced where it was started"
    assert stored(world)["prefill"] == (2, (Victim("p2", 1),)), "the scaler that started it ends it"
    world.drains_answered = True
    world.effects.clear()
    world.run(3)
    assert drained(world.effects) == [("decode", "p2", "decode")]
    world.handle(WorkerDrained("m", "prefill", "p2", 1))
    assert world.controller.state.drains.open == {}
    assert world.controller.state.fleet.models["m"].pools["decode"].workers["p2"].drain_ended


def test_bounds_count_the_workers_that_serve() -> None:
    world = decided()
    pools = world.controller.state.fleet.models["m"].pools
    pools["decode"].knobs = replace(pools["decode"].knobs, replicas_max=2)
    pools["prefill"].knobs = replace(pools["prefill"].knobs, replicas_min=2)
    world.handle(WorkerRegistered(moved(world)))
    assert targets(world) == {"prefill": 2, "decode": 2}
    victims = [victim for _, named in stored(world).values() for victim in named]
    assert len(victims) == 1, "one of the three leaves, wherever it was started"
    home = "prefill" if victims == [Victim("p2", 1)] else "decode"
    assert stored(world)[home][1] == tuple(victims)
    assert sum(count for count, _ in stored(world).values()) == 4


def test_another_process_of_the_name_is_another_worker() -> None:
    world = decided()
    record = world.workers["p2"]
    for other in (replace(record, incarnation=2), record):
        lease_id = 5 if other.incarnation == 2 else 6
        found = RegisteredWorker(replace(other, pool="decode", role="decode"), lease_id, 99)
        world.handle(WorkerRegistered(found))
        assert counts(world) == {"prefill": 2, "decode": 3}
    assert desired(world) == {"prefill": 2, "decode": 2}


def test_a_new_leader_resumes_the_drain_of_a_worker_whose_home_is_not_configured() -> None:
    world = decided()
    record = WorkerRecord("m", "decode", "x", "decode", 1, home_pool="removed")
    world.handle(WorkerRegistered(RegisteredWorker(record, 5, 99)), DrainRequested("m", "decode", "x", "somebody"))
    world.run(1)
    assert stored(world)["decode"] == (2, (Victim("x", 1),)), "the scaler of the pool in which it serves ends it"
    successor = ControllerWorld(planner="static")
    successor.stored, successor.now, successor.revision = world.stored, world.now, 900
    successor.boot()
    assert drained(successor.handle(WorkerRegistered(RegisteredWorker(record, 6, 901)))) == [("decode", "x", "decode")]


def test_a_draining_worker_that_moves_with_a_new_lease_goes_on_to_drain() -> None:
    world = decided()
    world.drains_answered = None
    world.handle(DrainRequested("m", "prefill", "p2", "somebody"))
    world.handle(WorkerDeregistered("m", "prefill", "p2"))
    world.handle(WorkerRegistered(replace(moved(world), lease_id=6)))
    assert counts(world) == {"prefill": 1, "decode": 2}
    world.effects.clear()
    world.run(3)
    assert drained(world.effects) == [("decode", "p2", "decode")]


def test_the_pool_that_loses_a_worker_has_been_scaled_wherever_the_worker_was_started() -> None:
    world = decided()
    pools = world.controller.state.fleet.models["m"].pools
    world.handle(WorkerRegistered(moved(world)))
    world.claims = {"d1": 9, "d2": 9}
    world.run(1)
    pools["decode"].knobs = replace(pools["decode"].knobs, replicas_max=2)
    world.run(1)
    assert (stored(world)["prefill"], targets(world)) == ((1, (Victim("p2", 1),)), {"prefill": 1, "decode": 2})
    scaled = {name: (pool.scaled_up_at_ms, pool.scaled_down_at_ms) for name, pool in pools.items()}
    assert scaled == {"prefill": (-1, -1), "decode": (-1, world.now)}


def test_a_worker_moves_in_a_full_fleet() -> None:
    world = decided()
    fleet = world.controller.state.fleet
    fleet.knobs = replace(fleet.knobs, workers_max=fleet.workers)
    assert alarms(world.handle(WorkerRegistered(moved(world)))) == []
    assert (counts(world), fleet.workers) == ({"prefill": 1, "decode": 3}, 4)


def test_an_operator_drains_no_worker_that_the_decision_for_its_home_cannot_name() -> None:
    world = decided()
    world.controller.state.fleet.models["m"].pools["prefill"].workers_max = 200
    world.register("prefill", *(f"w{number}" for number in range(DRAINS_MAX)))
    world.handle(WorkerRegistered(moved(world)))
    for number in range(DRAINS_MAX):
        world.handle(DrainRequested("m", "prefill", f"w{number}", "me"))
    world.effects.clear()
    assert drained(world.handle(DrainRequested("m", "decode", "p2", "me"))) == []
    assert drained(world.handle(DrainRequested("m", "decode", "d1", "me"))) == [("decode", "d1", "decode")]


@pytest.mark.parametrize(("decided_count", "surplus", "missing"), [(1, 1, 0), (4, 0, 2)])
def test_a_move_that_ends_changes_no_age_of_a_surplus_or_of_missing_workers(
    decided_count: int, surplus: int, missing: int
) -> None:
    world = decided()
    world.handle(WorkerRegistered(moved(world)))
    pool, began_ms = world.controller.state.fleet.models["m"].pools["decode"], world.now
    pool.reset_decided(decided_count, began_ms)
    world.controller.state.fleet.deregister("m", "decode", "p2", began_ms + 1_000)
    assert (pool.ready, pool.target) == (2, decided_count)
    assert pool.surplus_since_ms == (began_ms if surplus else -1)
    assert pool.requested_at_ms == [began_ms] * missing


def test_a_worker_that_lost_its_lease_and_registers_in_another_pool_has_not_failed() -> None:
    world = decided(migration=MigrationKnobs(enabled=True))
    world.handle(WorkerDeregistered("m", "prefill", "p2"))
    vanished = world.controller.state.migration.vanished
    assert len(vanished) == 1
    other = replace(world.workers["p2"], incarnation=2, pool="decode", role="decode")
    world.handle(WorkerRegistered(RegisteredWorker(other, 7, 98)))
    assert len(vanished) == 1, "another process of the name"
    world.handle(WorkerDeregistered("m", "decode", "p2"))
    assert len(vanished) == 2
    world.handle(WorkerRegistered(replace(moved(world), lease_id=6)))
    assert vanished == {}
