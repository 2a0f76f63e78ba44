"""Registered workers that no scaler has started, from one login of a pool."""

from loadline.core.vocabulary.effects import SendDrain
from loadline.core.vocabulary.events import WorkerDeregistered
from tests.support.controller_world import ControllerWorld, booted


def attacked(fakes: int) -> ControllerWorld:
    """Return a world of four decided decode workers beside which fake ones claim load."""
    world = booted()
    world.register("decode", "d3", "d4")
    world.controller.state.fleet.models["m"].pools["decode"].reset_desired(4, world.now)
    world.register("decode", *(f"fake{number:02}" for number in range(fakes)))
    world.claims = {f"fake{number:02}": 50 for number in range(fakes)}
    return world


def drained(world: ControllerWorld) -> set[str]:
    return {effect.worker for effect in world.effects if isinstance(effect, SendDrain) and effect.pool == "decode"}


def test_fake_workers_that_claim_load_are_drained_and_no_other() -> None:
    world = attacked(20)
    world.run(70)
    assert drained(world) == {f"fake{number:02}" for number in range(20)}
    pool = world.controller.state.fleet.models["m"].pools["decode"]
    assert {worker.record.worker for worker in pool.workers.values() if worker.availability == "ready"} == {
        "d1",
        "d2",
        "d3",
        "d4",
    }


def test_fake_workers_that_register_again_and_again_cost_no_worker_its_place() -> None:
    world = attacked(20)
    for _ in range(3):
        world.run(70)
        for name in sorted(drained(world)):
            world.handle(WorkerDeregistered("m", "decode", name))
            world.workers.pop(name, None)
        assert not {"d1", "d2", "d3", "d4"} & drained(world)
        world.effects.clear()
        world.register("decode", *world.claims)


def test_without_a_scaler_no_worker_is_drained() -> None:
    world = attacked(20)
    world.scaler_status = None
    world.run(300)
    assert drained(world) == set()
