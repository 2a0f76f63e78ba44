"""Registered workers that no scaler has started, from one login of a pool."""

import pytest

from loadline.core.vocabulary.effects import SendDrain
from loadline.core.vocabulary.events import WorkerDeregistered
from tests.support.controller_world import ControllerWorld, booted

HONEST = {"d1", "d2", "d3", "d4"}


def attacked(fakes: int, *, decided: bool = True) -> ControllerWorld:
    """Return a world of four decode workers, which are the target if ``decided``; fake ones beside them claim load."""
    world = booted()
    world.register("decode", "d3", "d4")
    if decided:
        world.controller.state.fleet.models["m"].pools["decode"].reset_decided(4, world.now)
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
    assert {worker.record.worker for worker in pool.workers.values() if worker.availability == "ready"} == HONEST


@pytest.mark.parametrize(("decided", "places"), [(True, 4), (False, 8)])
def test_silent_fake_workers_are_drained_also_if_some_have_places(*, decided: bool, places: int) -> None:
    world = attacked(20, decided=decided)
    world.kv = 0.6  # neither high nor low
    world.run(70, only=HONEST)
    assert drained(world) == {f"fake{number:02}" for number in range(places - 4, 20)}


def test_no_surplus_is_drained_while_the_workers_that_would_remain_are_silent() -> None:
    world = attacked(20)
    world.run(70, only={f"fake{number:02}" for number in range(20)})
    assert drained(world) == set()


def test_fake_workers_before_the_first_decision_neither_raise_the_count_nor_cost_a_worker_its_place() -> None:
    world = attacked(60, decided=False)
    world.kv = 0.6  # neither high nor low
    world.run(70)
    decided = [counts["decode"] for counts in world.decisions(world.effects)]
    assert decided
    assert max(decided) <= 8
    assert drained(world) == {f"fake{number:02}" for number in range(4, 60)}


def test_fake_workers_that_register_again_and_again_cost_no_worker_its_place() -> None:
    world = attacked(20)
    for _ in range(3):
        world.run(70)
        for name in sorted(drained(world)):
            world.handle(WorkerDeregistered("m", "decode", name))
            world.workers.pop(name, None)
        assert not HONEST & drained(world)
        world.effects.clear()
        world.register("decode", *world.claims)


def test_without_a_scaler_no_worker_is_drained() -> None:
    world = attacked(20)
    world.scaler_status = None
    world.run(300)
    assert drained(world) == set()


def test_without_a_scaler_further_fake_workers_cause_no_further_decision() -> None:
    world = attacked(20)
    world.scaler_status = None
    world.run(70)
    decided = world.stored["m"]
    world.register("decode", "fake20")
    world.run(130)
    assert world.stored["m"] == decided
