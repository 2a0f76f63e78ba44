"""The whole core, with workers that come late, never, or again and again."""

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


def test_no_data_never_shrinks() -> None:
    world = booted()
    world.kv = 0.1
    world.queue = 1
    world.run(40, only={"p1", "p2", "d1"})
    assert {t.pool: t.replicas for t in world.stored["m"].decision.targets} == {"prefill": 3, "decode": 2}
    holds = hold_of(world.controller.state, "m")
    assert "no_data_no_shrink" not in [r.code for r in holds.limits], "the silent one counts as full: not even proposed"


def test_a_pool_gives_one_worker_in_5_s_whatever_is_proposed() -> None:
    models = MultiModelWorld({"m": [(PoolKnobs("main", "aggregated", replicas_max=12), 12)]}, FleetKnobs())
    models.controller.state.fleet.models["m"].guardrails.knobs = GuardrailKnobs(stabilisation_ms=0, warm_up_ms=0)
    models.propose("m", main=4)
    models.run(60_000)
    assert [decision.targets[0].replicas for _, decision in models.decisions] == [11, 10, 9, 8, 7, 6, 5, 4]
    assert min(later - earlier for (earlier, _), (later, _) in pairwise(models.decisions)) >= 5_000


def test_workers_that_never_came_are_asked_for_again_once_in_a_deadline() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    effects: list[AnyEffect] = []
    for _ in range(1_300):
        said = world.stored["m"].decision  # a scaler that does not see that its workers never registered
        world.handle(DecisionAnswered(said.decision_id, "m", said.epoch, said.sequence, "s", "done", {}))
        effects += world.run(1)
    assert alarms(effects).count("workers_missing") == 2
    assert [e.decision.reasons[0] for e in effects if isinstance(e, CommitDecision)].count("asked_again") == 2


def test_one_worker_that_flaps_stops_nobody_else() -> None:
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
    grown = world.controller.state.fleet.models["m"].pools["prefill"].desired
    assert grown is not None
    assert grown > 2


def test_a_worker_that_never_comes_is_missed_although_another_flaps() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    world.kv, world.queue = 0.7, 0
    seen: list[str] = []
    for _ in range(14):  # 700 s; a start deadline is 600 s
        said = world.stored["m"].decision
        world.handle(DecisionAnswered(said.decision_id, "m", said.epoch, said.sequence, "s", "done", {}))
        seen += alarms(world.run(25))
        world.handle(WorkerDeregistered("m", "decode", "d2"))
        del world.workers["d2"]
        seen += alarms(world.run(25))
        world.register("decode", "d2")
    assert "workers_missing" in seen


def test_an_engine_that_must_not_be_given_work_is_no_supply() -> None:
    world = booted()
    world.run(3)
    world.sequence += 1
    sick = WorkerSample(world.sequence, 0, kv_usage_ratio=0.7, waiting_requests=0, schedulable=False)
    world.handle(LoadReported("m", "decode", "d1", 1, [sick]))
    pool = world.controller.state.fleet.models["m"].pools["decode"]
    assert pool.ready == 1
    world.run(1)
    assert pool.ready == 2, "it says so no more"


def test_an_older_life_of_a_worker_does_not_replace_a_newer_one() -> None:
    world = booted()
    newer = WorkerRecord("m", "decode", "d1", "decode", 2)
    world.handle(WorkerRegistered(RegisteredWorker(newer, 6)))
    world.handle(WorkerRegistered(RegisteredWorker(world.workers["d1"], 5)))
    assert world.controller.state.fleet.models["m"].pools["decode"].workers["d1"].record == newer
    assert world.controller.state.rejected["stale_incarnation"] == 1
