"""Load and SLA planners on workers that are full by batch slots, at a low KV usage and an ITL within the objective."""

import pytest

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import Pool
from loadline.core.planning.planners.load import LoadPlanner
from loadline.core.planning.planners.sla import SlaKnobs, SlaPlanner
from loadline.core.planning.sizing.load.stepper import LoadKnobs
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.samples import WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import reported
from tests.support.slotted_world import DECODES_PER_S, SLOTS, Queue, SlottedWorld

GENEROUS = EngineProfile(linear=LinearKnobs(1.0, 0.001, 0.1, 0.001, max_kv_tokens=1e9))
"""Profile of an engine that could serve all requests with one worker."""
OVERLOAD_PER_S = 64


def load_world(role: Role = "decode") -> SlottedWorld:
    return SlottedWorld(LoadPlanner(LoadKnobs()), role)


@pytest.mark.parametrize("role", ["decode", "aggregated"])
def test_requests_that_wait_at_full_batches_cause_growth_at_any_kv_usage(role: Role) -> None:
    world = load_world(role)
    count = world.run(OVERLOAD_PER_S, 30)[role]
    assert count >= OVERLOAD_PER_S / DECODES_PER_S
    assert count <= 4 * OVERLOAD_PER_S / DECODES_PER_S


def test_the_sla_planner_grows_above_a_size_that_is_wrong() -> None:
    world = SlottedWorld(SlaPlanner(SlaKnobs()), "decode")
    world.world.pool("decode").engine = GENEROUS
    assert world.run(OVERLOAD_PER_S, 60)["decode"] >= OVERLOAD_PER_S / DECODES_PER_S
    assert world.queues["decode"].waiting == 0.0


def test_the_reason_has_the_queue_and_the_count_at_most_doubles() -> None:
    world = load_world()
    while not world.reasons(ReasonCode.WORKER_QUEUE_HIGH):
        world.run(OVERLOAD_PER_S, 1)
        assert world.second <= 7
    assert world.last.targets == {"decode": 4}
    [sentence] = world.reasons(ReasonCode.WORKER_QUEUE_HIGH)
    assert sentence == ("decode: requests have waited for 5 s at half of the 2 workers or more; 192 wait and 64 run")


def test_the_next_step_waits_for_the_workers_of_the_last_one() -> None:
    world = load_world()
    pool = world.world.pool("decode")
    pool.set_decided(4, world.world.now)
    world.run(OVERLOAD_PER_S, 60)
    assert world.last.targets == {}
    assert world.reasons(ReasonCode.WORKERS_PENDING)


def test_a_burst_that_is_over_within_seconds_causes_no_growth() -> None:
    world = load_world()
    world.run(20, 30)
    world.queues["decode"].waiting = 40.0
    world.run(20, 4)
    assert world.queues["decode"].waiting == 0.0
    assert world.run(20, 30)["decode"] == 2


def test_a_queue_at_one_worker_of_many_is_none_of_the_pool() -> None:
    world = load_world()
    world.world.add_workers("decode", 4)
    pool = world.world.pool("decode")
    pool.set_decided(6, world.world.now)
    report = world._report

    def report_one(pool: Pool, queue: Queue) -> None:
        report(pool, queue)
        stuck = WorkerSample(world.second + 10_000, 0, kv_usage_ratio=0.2, waiting_requests=500, running_requests=32)
        world.world.fleet.ingest(reported(next(iter(pool.workers)), stuck, pool="decode"), world.world.now)

    world._report = report_one  # type: ignore[method-assign]
    world.run(60, 60)
    assert not world.reasons(ReasonCode.WORKER_QUEUE_HIGH)
    assert max(world.run(60, 1).values()) <= 6


@pytest.mark.parametrize(("slots", "grows"), [(SLOTS, False), (None, False), (SLOTS // 2, True)])
def test_requests_that_wait_for_their_prompts_cause_no_growth_of_decode(slots: int | None, *, grows: bool) -> None:
    world = SlottedWorld(LoadPlanner(LoadKnobs()), "prefill", "decode", slots=slots, early=True)
    counts = world.run(OVERLOAD_PER_S, 30)
    assert world.queues["prefill"].waiting > 100.0
    assert world.queues["decode"].waiting == 0.0
    assert (counts["decode"] > 2) is grows


def test_the_same_holds_for_engines_that_are_not_known() -> None:
    world = SlottedWorld(SlaPlanner(SlaKnobs()), "prefill", "decode", slots=SLOTS, early=True)
    world.queues["decode"].per_worker_s = 1_000.0
    assert world.run(OVERLOAD_PER_S, 120)["decode"] == 2
    assert not world.reasons(ReasonCode.SATURATED_TARGET)
