"""Choice of the workers that a scale-down removes."""

import pytest
from msgspec.structs import replace

from loadline.core.decisions.victims import CanMigrate, choose_victims, select_victims
from loadline.core.fleet.fleet import Fleet
from loadline.core.fleet.pool import DRAINS_MAX, Pool, PoolKnobs
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.knobs import GuardrailKnobs, HardLimits
from loadline.core.vocabulary.decisions import Victim
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.scalars import WorkerPhase
from tests.support.fleet_harness import START, fleet_of, registered, reported, sample


def chosen(pool: Pool, count: int, can_migrate: CanMigrate | None = None) -> list[Victim]:
    workers = choose_victims({pool.name: pool}, pool.name, count, can_migrate)
    return [Victim(worker.record.worker, worker.record.incarnation) for worker in workers]


def test_victims_are_the_workers_that_are_cheapest_to_remove() -> None:
    fleet = fleet_of(PoolKnobs("decode", "decode"))
    pool = fleet.models["m"].pools["decode"]
    workers: list[tuple[str, WorkerPhase, int, float, int, int]] = [
        # name, state, incarnation, KV usage, waiting, running
        ("busy", "ready", 9, 0.1, 2, 3),
        ("full", "ready", 9, 0.9, 0, 1),
        ("old", "ready", 1, 0.5, 0, 1),
        ("new-b", "ready", 5, 0.5, 0, 1),
        ("new-a", "ready", 5, 0.5, 1, 0),
        ("idle", "ready", 1, 0.9, 0, 0),
        ("starting", "starting", 1, 0.9, 9, 9),
        ("leaving", "draining", 9, 0.0, 0, 0),
    ]
    for name, state, incarnation, kv, waiting, running in workers:
        fleet.register(registered(name, state=state, incarnation=incarnation), START)
        fleet.ingest(reported(name, sample(1, kv, waiting, running), incarnation=incarnation), START)
    order = ["starting", "idle", "new-a", "new-b", "old", "full", "busy"]
    assert [v.worker for v in chosen(pool, 99)] == order
    assert chosen(pool, 2) == [Victim("starting", 1), Victim("idle", 1)]
    assert chosen(pool, 0) == []
    preferred = choose_victims({pool.name: pool}, pool.name, 3, None, {"full", "busy"})
    assert [worker.record.worker for worker in preferred] == ["starting", "full", "busy"]


def test_with_migration_unmovable_requests_decide_on_victims() -> None:
    fleet = fleet_of(PoolKnobs("decode", "decode"))
    pool = fleet.models["m"].pools["decode"]
    for name, running, staying in (("many", 9, 0), ("few", 3, 0), ("guided", 2, 2), ("fixed", 1, 0)):
        fleet.register(registered(name), START)
        load = replace(sample(1, 0.1 * running, 0, running), unmovable_requests=staying)
        fleet.ingest(reported(name, load), START)
    migrating = [v.worker for v in chosen(pool, 99, lambda worker: worker.record.worker != "fixed")]
    assert migrating == ["few", "many", "fixed", "guided"]
    assert [v.worker for v in chosen(pool, 99)] == ["fixed", "guided", "few", "many"]


def with_arrivals(*arrivals: tuple[str, int, int], desired: int | None) -> Pool:
    """Return a pool of workers by name, create revision and running requests."""
    fleet = fleet_of(PoolKnobs("decode", "decode", replicas_max=100))
    pool = fleet.models["m"].pools["decode"]
    for name, revision, running in arrivals:
        fleet.register(replace(registered(name), create_revision=revision), START)
        fleet.ingest(reported(name, sample(1, 0.1, 0, running)), START)
    pool.decided = desired
    return pool


def test_fake_workers_that_claim_load_cost_no_worker_its_place() -> None:
    honest = [(f"honest{number}", 10 + number, number) for number in range(4)]
    fakes = [(f"fake{number}", 50 + number, 1_000) for number in range(20)]
    pool = with_arrivals(*fakes, *honest, desired=4)
    assert {victim.worker for victim in chosen(pool, 20)} == {name for name, _, _ in fakes}
    assert {victim.worker for victim in chosen(pool, 2)} == {"fake18", "fake19"}, "the last registered"
    assert Victim("honest0", 1) in chosen(pool, 21), "a scale-down removes the worker with the least work too"


def test_a_worker_whose_key_was_created_again_registered_last() -> None:
    pool = with_arrivals(("first", 1, 9), ("second", 2, 0), ("first", 3, 9), desired=1)
    assert chosen(pool, 1) == [Victim("first", 1)]


@pytest.mark.parametrize("desired", [None, 3, 5])
def test_without_more_workers_than_desired_the_least_work_decides(desired: int | None) -> None:
    pool = with_arrivals(("first", 1, 1), ("second", 2, 5), ("third", 3, 9), desired=desired)
    assert [victim.worker for victim in chosen(pool, 1)] == ["first"]


def test_a_worker_past_its_start_deadline_leaves_before_the_one_that_replaces_it() -> None:
    pool = with_arrivals(("stuck", 1, 0), ("replacement", 2, 0), desired=1)
    pool.workers["stuck"].overdue = True
    assert chosen(pool, 1) == [Victim("stuck", 1)]


def with_unschedulable(*workers: tuple[str, bool, int], desired: int | None) -> Fleet:
    """Return a fleet with a pool of workers by name, whether they are schedulable, and running requests."""
    fleet = fleet_of(PoolKnobs("decode", "decode", replicas_min=0, replicas_max=100))
    pool = fleet.models["m"].pools["decode"]
    for revision, (name, schedulable, running) in enumerate(workers, 1):
        state: WorkerPhase = "starting" if name == "new" else "ready"
        fleet.register(replace(registered(name, state=state), create_revision=revision), START)
        fleet.ingest(reported(name, replace(sample(1, 0.1, 0, running), schedulable=schedulable)), START)
    pool.decided = desired
    pool.refresh_totals(START, 5_000)
    return fleet


def removed(fleet: Fleet, target: int) -> list[str]:
    removal = select_victims(fleet.models["m"].pools, {"decode": target}, {})["decode"]
    assert removal.replicas == target
    return [victim.worker for victim in removal.victims]


@pytest.mark.parametrize("desired", [3, None])
@pytest.mark.parametrize(
    ("target", "expected"), [(0, ["stuck", "new", "busy"]), (1, ["stuck", "new"]), (2, ["stuck"]), (3, []), (4, [])]
)
def test_a_smaller_count_takes_the_unschedulable_worker_first(
    desired: int | None, target: int, expected: list[str]
) -> None:
    fleet = with_unschedulable(("stuck", False, 9), ("busy", True, 5), ("new", True, 0), desired=desired)
    assert removed(fleet, target) == expected


def test_no_worker_stays_that_the_smaller_count_has_no_place_for() -> None:
    workers = [("stuck", False, 9), ("busy", True, 5), ("idle", True, 0), ("unrequested", True, 9)]
    fleet = with_unschedulable(*workers, desired=3)
    assert removed(fleet, 3) == [], "the unschedulable worker may take work again, or another one replaces it"
    assert removed(fleet, 2) == ["unrequested", "stuck"]


def test_a_worker_that_leaves_already_is_no_victim() -> None:
    fleet = with_unschedulable(("stuck", False, 0), ("leaving", False, 0), ("busy", True, 5), desired=2)
    fleet.start_drain("m", "decode", "leaving", START)
    assert removed(fleet, 1) == ["stuck"]


def test_a_count_does_not_fall_by_more_unschedulable_workers_than_may_drain() -> None:
    stuck = [(f"stuck{number}", False, 0) for number in range(DRAINS_MAX + 5)]
    fleet = with_unschedulable(*stuck, ("ready", True, 0), desired=len(stuck) + 1)
    guardrails = Guardrails(
        GuardrailKnobs(stabilisation_ms=1, warm_up_ms=0, step_down_max=99, cooldown_down_ms=0), HardLimits(0.8, 0, None)
    )
    proposal = guardrails.apply(fleet.models["m"], {"decode": 1}, Constraints(START), START)
    assert [limit.code for limit in proposal.limits] == [ReasonCode.DRAIN_LIMIT]
    assert proposal.targets == {"decode": 6}
    assert len(removed(fleet, 6)) == DRAINS_MAX
