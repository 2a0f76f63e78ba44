"""The whole core with draining workers."""

import pytest

from loadline.core.fleet.pool import DRAINS_MAX
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.vocabulary.effects import RemoveWorker, SendDrain
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    DrainRequested,
    LeaseRenewalFailed,
    RegistryRead,
    WorkerDeregistered,
    WorkerDrained,
    WorkerRegistered,
)
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker
from tests.support.controller_world import ControllerWorld, alarms, booted


def test_a_scale_down_drains_the_worker_with_the_least_work() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 1
    world.queue = 0
    world.run(31)
    target = {t.pool: t for t in world.stored["m"].decision.targets}
    assert target["decode"].replicas == 1
    drains = [e for e in world.effects if isinstance(e, SendDrain) and e.pool == "decode"]
    assert [d.worker for d in drains] == [v.worker for v in target["decode"].victims] == ["d1"]
    victim = drains[0].worker
    world.handle(WorkerDeregistered("m", "decode", victim))
    assert victim in world.controller.state.fleet.models["m"].pools["decode"].workers, "the drain has not ended"
    world.handle(WorkerDrained("m", "decode", victim, 1))
    assert victim not in world.controller.state.fleet.models["m"].pools["decode"].workers
    assert world.controller.state.drains.finished[-1].ending == "drained"


def test_the_key_of_a_silent_victim_is_removed() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 0
    world.drains_answered = None
    effects = world.run(45)
    assert any(isinstance(e, RemoveWorker) for e in effects)
    assert "drain_unanswered" in alarms(effects)


def test_the_key_of_a_silent_victim_is_removed_under_the_lease_that_it_has_now() -> None:
    world = booted()
    world.drains_answered = None
    world.handle(DrainRequested("m", "decode", "d1", "me"))
    world.handle(WorkerRegistered(RegisteredWorker(world.workers["d1"], 9)))
    assert [e.lease_id for e in world.run(12) if isinstance(e, RemoveWorker)] == [9]


def test_a_victim_that_registers_again_is_drained_again() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 0
    world.run(31)
    victim = next(e for e in world.effects if isinstance(e, SendDrain) and e.pool == "decode").worker
    record = world.workers.pop(victim)
    world.handle(WorkerDeregistered("m", "decode", victim))
    world.run(7)
    assert world.controller.state.drains.finished[-1].ending == "died"
    effects = world.handle(WorkerRegistered(RegisteredWorker(record, 6)))
    assert [e.worker for e in effects if isinstance(e, SendDrain)] == [victim]
    assert world.controller.state.fleet.models["m"].pools["decode"].ready == 1, "a draining worker is not ready"


def test_a_requested_drain_outlives_its_leader() -> None:
    world = booted()
    world.run(10)
    effects = world.handle(DrainRequested("m", "decode", "d1", "me"))
    assert [e.worker for e in effects if isinstance(e, SendDrain)] == ["d1"]
    (target,) = [t for t in world.stored["m"].decision.targets if t.pool == "decode"]
    assert (target.replicas, [v.worker for v in target.victims]) == (2, ["d1"]), "the worker is replaced"
    other = ControllerWorld()
    other.stored, other.now, other.revision = world.stored, world.now, 900
    other.handle(BusConnectionChanged(connected=True))
    other.handle(RegistryRead([RegisteredWorker(record, 5) for record in world.workers.values()]))
    assert [e.worker for e in other.effects if isinstance(e, SendDrain)] == ["d1"]


def test_a_drained_worker_counts_once_though_it_repeats_its_report() -> None:
    world = booted()
    world.run(10)
    world.handle(DrainRequested("m", "decode", "d1", "me"))
    world.run(4)
    for worker in ("d1", "d1", "d0"):  # d0 does not drain
        world.handle(WorkerDrained("m", "decode", worker, 1))
    state = world.controller.state
    tally = state.fleet.models["m"].migration.tally
    assert state.counters["workers_drained"] == tally.emptied == 1
    assert tally.emptied_ms == state.drains.finished[-1].took_ms
    assert state.drains.finished[-1].took_ms >= 4_000


def test_an_operator_can_drain_only_workers_that_exist() -> None:
    world = booted()
    world.run(10)
    for pool, worker in (("decode", "d9"), ("nope", "d1")):
        world.handle(DrainRequested("m", pool, worker, "me"))
    assert world.controller.state.rejected == {Rejection.UNKNOWN_WORKER: 2}
    assert not world.controller.state.drains.open


def test_only_the_leader_drains_a_worker_for_an_operator() -> None:
    world = booted()
    world.run(10)
    world.handle(LeaseRenewalFailed("all", world.controller.state.leadership.lease_id, lost=True))
    assert not world.controller.leading
    effects = world.controller.handle([DrainRequested("m", "decode", "d1", "me")], world.now)
    assert not any(isinstance(effect, SendDrain) for effect in effects)
    assert not world.controller.state.drains.open
    assert world.controller.state.rejected == {}


def commands_after_leading_again(*, meanwhile_empty: bool, incarnation: int = 1) -> list[str]:
    """Return the workers that get drain commands from an agent that lost its lease during a drain and leads again."""
    world = booted()
    world.run(10)
    world.handle(DrainRequested("m", "decode", "d1", "me"))
    world.run(2)
    assert world.controller.state.drains.open["m\0decode\0d1"].accepted
    lease = world.controller.state.leadership.lease_id
    world.handle(LeaseRenewalFailed("all", lease, lost=True))
    assert not world.controller.leading
    if meanwhile_empty:
        world.handle(WorkerDrained("m", "decode", "d1", incarnation))
    world.effects.clear()
    world.run(10)
    assert world.controller.leading
    return [e.worker for e in world.effects if isinstance(e, SendDrain)]


def test_an_agent_that_leads_again_resumes_its_drain() -> None:
    assert commands_after_leading_again(meanwhile_empty=False) == ["d1"]
    assert commands_after_leading_again(meanwhile_empty=True) == []
    assert commands_after_leading_again(meanwhile_empty=True, incarnation=0) == ["d1"], (
        "an earlier incarnation is empty"
    )


def test_surplus_workers_are_drained_with_an_alarm() -> None:
    world = booted(planner_knobs={"threshold": ThresholdKnobs(prefill_queue_scale_down_threshold=0)})
    world.kv = 0.95
    world.run(31)
    world.kv = 0.7
    world.register("decode", "d3", "d4", "d5")
    assert not any(isinstance(e, SendDrain) for e in world.run(55))
    effects = world.run(10)
    assert alarms(effects) == ["workers_surplus"]
    assert len([e for e in effects if isinstance(e, SendDrain)]) == 2


@pytest.mark.parametrize("connected", [True, False])
def test_silence_does_not_count_without_a_bus(*, connected: bool) -> None:
    world = booted()
    world.kv, world.queue = 0.3, 0
    world.run(31)
    world.controller.state.drains.open.clear()
    world.drains_answered = None
    world.handle(DrainRequested("m", "decode", "d1", "me"))
    world.handle(BusConnectionChanged(connected=connected))
    effects = world.run(12)
    assert any(isinstance(e, SendDrain | RemoveWorker) for e in effects) is connected


def test_an_operator_cannot_drain_more_workers_of_a_pool_than_one_decision_names() -> None:
    world = booted()
    world.run(10)
    world.controller.state.fleet.models["m"].pools["decode"].workers_max = 200
    world.register("decode", *(f"w{number}" for number in range(DRAINS_MAX)))
    for number in range(DRAINS_MAX):
        world.handle(DrainRequested("m", "decode", f"w{number}", "me"))
    world.handle(DrainRequested("m", "decode", "d1", "me"))
    (target,) = [t for t in world.stored["m"].decision.targets if t.pool == "decode"]
    assert {victim.worker for victim in target.victims} == {f"w{number}" for number in range(DRAINS_MAX)}
    assert len(world.controller.state.drains.open) == DRAINS_MAX
    assert world.controller.state.rejected[Rejection.DRAINS_FULL] == 1
