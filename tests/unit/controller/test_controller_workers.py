"""The whole core with silent, missing, flapping and unschedulable workers."""

from itertools import pairwise

from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision
from loadline.core.vocabulary.events import DecisionAnswered, LoadReported, WorkerDeregistered, WorkerRegistered
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord, WorkerSample
from tests.support.controller_world import alarms, booted
from tests.support.holds import hold_of
from tests.support.multi_model_world import MultiModelWorld


def test_missing_data_prevents_a_scale_down() -> None:
    world = booted()
    world.kv = 0.1
    world.queue = 1
    world.run(40, only={"p1", "p2", "d1"})
    assert {t.pool: t.replicas for t in world.stored["m"].decision.targets} == {"prefill": 3, "decode": 2}
    holds = hold_of(world.controller.state, "m")
    assert "no_data_no_shrink" not in [r.code for r in holds.limits], (
        "a silent worker counts as full, so no scale-down is proposed"
    )


def test_a_pool_scales_down_by_at_most_one_worker_in_5_s() -> None:
    models = MultiModelWorld({"m": [(PoolKnobs("main", "aggregated", replicas_max=12), 12)]}, FleetKnobs())
    models.controller.state.fleet.models["m"].guardrails.knobs = GuardrailKnobs(stabilisation_ms=0, warm_up_ms=0)
    models.propose("m", main=4)
    models.run(60_000)
    assert [decision.targets[0].replicas for _, decision in models.decisions] == [11, 10, 9, 8, 7, 6, 5, 4]
    assert min(later - earlier for (earlier, _), (later, _) in pairwise(models.decisions)) >= 5_000


def test_missing_workers_are_requested_again_once_per_deadline() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    effects: list[AnyEffect] = []
    for _ in range(1_300):
        decision = world.stored["m"].decision  # the scaler does not notice that its workers never registered
        world.handle(DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "done", {}))
        effects += world.run(1)
    assert alarms(effects).count("workers_missing") == 2
    assert [e.decision.reasons[0] for e in effects if isinstance(e, CommitDecision)].count("decided_again") == 2


def test_a_flapping_worker_does_not_stop_other_pools() -> None:
    world = booted()
    world.queue = 5
    record = world.workers["d2"]
    for _ in range(6):
        world.run(10)
        world.handle(WorkerDeregistered("m", "decode", "d2"))
        del world.workers["d2"]
        world.run(10)
        world.register("decode", "d2")
        assert record == world.workers["d2"]
    grown = world.controller.state.fleet.models["m"].pools["prefill"].decided
    assert grown is not None
    assert grown > 2


def test_a_flapping_worker_does_not_hide_a_missing_one() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    world.kv, world.queue = 0.7, 0
    raised: list[str] = []
    for _ in range(14):  # 700 s; a start deadline is 600 s
        decision = world.stored["m"].decision
        world.handle(DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "done", {}))
        raised += alarms(world.run(25))
        world.handle(WorkerDeregistered("m", "decode", "d2"))
        del world.workers["d2"]
        raised += alarms(world.run(25))
        world.register("decode", "d2")
    assert "workers_missing" in raised


def test_an_unschedulable_worker_is_not_ready() -> None:
    world = booted()
    world.run(3)
    world.sequence += 1
    unschedulable = WorkerSample(world.sequence, 0, kv_usage_ratio=0.7, waiting_requests=0, schedulable=False)
    world.handle(LoadReported("m", "decode", "d1", 1, [unschedulable]))
    pool = world.controller.state.fleet.models["m"].pools["decode"]
    assert pool.ready == 1
    world.run(1)
    assert pool.ready == 2, "the next sample is schedulable"


def test_the_worker_that_holds_the_key_counts_also_if_its_incarnation_is_lower() -> None:
    """Somebody writes a future incarnation, then the record as it was: its owner sees nothing to mend."""
    world = booted()
    honest = world.workers["d1"]
    world.handle(WorkerRegistered(RegisteredWorker(WorkerRecord("m", "decode", "d1", "decode", 2**53), 6)))
    world.handle(WorkerRegistered(RegisteredWorker(honest, 5)))
    workers = world.controller.state.fleet.models["m"].pools["decode"].workers
    assert workers["d1"].record == honest
    world.run(1)
    assert workers["d1"].latest[0] is not None, "its reports count again"
