"""Victims among workers that have moved: selected where they serve, and named to the scaler that started them."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from loadline.core.decisions.drains import DrainKnobs, Drains
from loadline.core.decisions.victims import Removal, select_victims
from loadline.core.fleet.fleet import Fleet
from loadline.core.fleet.moved_workers import recount_moved
from loadline.core.fleet.pool import DRAINS_MAX, Pool, PoolKnobs
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.knobs import GuardrailKnobs, HardLimits
from loadline.core.vocabulary.decisions import Victim, VictimRule
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import START, fleet_of, reported, sample

STARTED = {"prefill": 3, "decode": 2}


def fleet_with_a_move(moved: str = "prefill-2", prefill_rule: VictimRule | None = None) -> Fleet:
    """Return a fleet of three prefill and two decode workers, one of which has moved to the other pool."""
    fleet = fleet_of(
        PoolKnobs("prefill", "prefill", replicas_min=0), PoolKnobs("decode", "decode", replicas_min=0), knobs=None
    )
    for pool, count in STARTED.items():
        fleet.models["m"].pools[pool].decided = count
        for number in range(count):
            role: Role = "decode" if pool == "decode" else "prefill"
            record = WorkerRecord("m", pool, f"{pool}-{number}", role, 1)
            if record.worker == moved:
                other: Role = "prefill" if pool == "decode" else "decode"
                record = replace(record, pool=other, role=other, home_pool=pool)
            assert fleet.register(RegisteredWorker(record, 5), START) is None
    fleet.models["m"].pools["prefill"].victim_rule = prefill_rule
    return fleet


def pools_of(fleet: Fleet) -> dict[str, Pool]:
    return fleet.models["m"].pools


def removals(fleet: Fleet, targets: Mapping[str, int]) -> dict[str, tuple[int, list[str]]]:
    def plain(one: Removal) -> tuple[int, list[str]]:
        return one.replicas, [victim.worker for victim in one.victims]

    return {name: plain(one) for name, one in select_victims(pools_of(fleet), targets, {}).items()}


def test_targets_follow_a_worker_and_the_counts_of_scalers_do_not() -> None:
    fleet = fleet_with_a_move()
    assert {name: pool.target for name, pool in pools_of(fleet).items()} == {"prefill": 2, "decode": 3}
    assert removals(fleet, {"prefill": 2, "decode": 3}) == {"prefill": (3, []), "decode": (2, [])}
    fleet.deregister("m", "decode", "prefill-2", START)
    assert {name: pool.target for name, pool in pools_of(fleet).items()} == {"prefill": 3, "decode": 2}
    assert pools_of(fleet)["prefill"].worker_counts(START).pending == 1, "it is replaced where it was started"


def test_the_scaler_that_started_a_victim_ends_it() -> None:
    fleet = fleet_with_a_move()
    for name in ("decode-0", "decode-1"):
        fleet.ingest(reported(name, sample(1, 0.5, 0, 4)), START)
    assert removals(fleet, {"prefill": 2, "decode": 2}) == {"prefill": (2, ["prefill-2"]), "decode": (2, [])}


def test_an_unschedulable_worker_that_has_moved_is_ended_by_its_scaler() -> None:
    fleet = fleet_with_a_move()
    decode = pools_of(fleet)["decode"]
    for name in decode.workers:
        fleet.ingest(reported(name, replace(sample(1, 0.5, 0, 4), schedulable=name != "prefill-2")), START)
    decode.refresh_totals(START, 5_000)
    assert (decode.ready, decode.target) == (2, 3)
    knobs = GuardrailKnobs(stabilisation_ms=1, warm_up_ms=0, step_down_max=9, cooldown_down_ms=0)
    wanted = {"prefill": 2, "decode": 0}
    proposal = Guardrails(knobs, HardLimits(0.8, 0, None)).apply(fleet.models["m"], wanted, Constraints(START), START)
    assert proposal.targets == wanted
    assert removals(fleet, wanted) == {"prefill": (2, ["prefill-2"]), "decode": (0, ["decode-0", "decode-1"])}
    assert removals(fleet, {"prefill": 2, "decode": 2}) == {"prefill": (2, ["prefill-2"]), "decode": (2, [])}


def test_another_victim_is_ended_by_the_scaler_of_its_pool() -> None:
    fleet = fleet_with_a_move()
    fleet.ingest(reported("prefill-2", sample(1, 0.5, 0, 4)), START)
    assert removals(fleet, {"prefill": 2, "decode": 2}) == {"prefill": (3, []), "decode": (1, ["decode-0"])}


def test_a_pool_grows_beside_workers_that_have_moved() -> None:
    assert removals(fleet_with_a_move(), {"prefill": 3, "decode": 4}) == {"prefill": (4, []), "decode": (3, [])}


def test_a_draining_worker_is_replaced_at_home() -> None:
    fleet = fleet_with_a_move()
    fleet.start_drain("m", "decode", "prefill-2", START)
    assert {name: pool.target for name, pool in pools_of(fleet).items()} == {"prefill": 3, "decode": 2}
    fleet.cancel_drain("m", "decode", "prefill-2", START)
    assert {name: pool.target for name, pool in pools_of(fleet).items()} == {"prefill": 2, "decode": 3}


@pytest.mark.parametrize("rule", ["newest", "highest_ordinal", "unknown"])
def test_no_worker_is_named_that_the_platform_cannot_be_told_to_remove(rule: VictimRule) -> None:
    fleet = fleet_with_a_move(prefill_rule=rule)
    for name in ("decode-0", "decode-1"):
        fleet.ingest(reported(name, sample(1, 0.5, 0, 4)), START)
    assert removals(fleet, {"prefill": 2, "decode": 2}) == {"prefill": (3, []), "decode": (1, ["decode-0"])}


@pytest.mark.parametrize(
    ("moved", "rule", "wanted", "allowed"),
    [
        ("prefill-2", "highest_ordinal", {"prefill": 1, "decode": 3}, {"prefill": 2, "decode": 3}),
        ("prefill-2", "newest", {"prefill": 1, "decode": 3}, {"prefill": 2, "decode": 3}),
        ("prefill-2", None, {"prefill": 1, "decode": 3}, {"prefill": 1, "decode": 3}),
        ("prefill-2", "highest_ordinal", {"prefill": 2, "decode": 0}, {"prefill": 2, "decode": 1}),
        ("prefill-2", None, {"prefill": 2, "decode": 0}, {"prefill": 2, "decode": 0}),
        ("decode-1", "highest_ordinal", {"prefill": 0, "decode": 1}, {"prefill": 1, "decode": 1}),
    ],
)
def test_a_pool_does_not_shrink_below_workers_that_no_platform_can_remove(
    moved: str, rule: VictimRule | None, wanted: dict[str, int], allowed: dict[str, int]
) -> None:
    fleet = fleet_with_a_move(moved, rule)
    knobs = GuardrailKnobs(stabilisation_ms=1, warm_up_ms=0, step_down_max=9, cooldown_down_ms=0)
    for pool in pools_of(fleet).values():
        for name in pool.workers:
            fleet.ingest(replace(reported(name, sample(1, 0.5, 0, 0)), pool=pool.name), START)
        pool.refresh_totals(START, 5_000)
    proposal = Guardrails(knobs, HardLimits(0.8, 0, None)).apply(fleet.models["m"], wanted, Constraints(START), START)
    assert proposal.targets == allowed
    assert [limit.code for limit in proposal.limits] == ([ReasonCode.MOVED_WORKER] if wanted != allowed else [])


def test_a_pool_that_is_configured_later_counts_its_moved_workers() -> None:
    fleet = fleet_with_a_move()
    pools = pools_of(fleet)
    prefill = pools.pop("prefill")
    recount_moved(pools, START)
    assert (pools["decode"].target, pools["decode"].moved) == (2, 0), "nobody else counts the worker"
    pools["prefill"] = prefill
    recount_moved(pools, START)
    assert {name: pool.target for name, pool in pools.items()} == {"prefill": 2, "decode": 3}


@pytest.mark.parametrize("draining", [0, 10])
def test_a_decision_counts_each_worker_that_it_cannot_name_any_more(draining: int) -> None:
    knobs = [PoolKnobs(role, role, replicas_min=0, replicas_max=500) for role in ("prefill", "decode")]
    fleet = fleet_of(*knobs, knobs=None)
    for number in range(200):
        record = WorkerRecord("m", "prefill", f"p{number}", "prefill", 1)
        if number >= 100:
            record = replace(record, pool="decode", role="decode", home_pool="prefill")
        assert fleet.register(RegisteredWorker(record, 5), START) is None
    pools_of(fleet)["prefill"].decided, pools_of(fleet)["decode"].decided = 200, 0
    known = [Victim(f"gone-{number}", 1) for number in range(draining)]
    found = select_victims(pools_of(fleet), {"prefill": 50, "decode": 50}, {"prefill": known})["prefill"]
    assert len(found.victims) == DRAINS_MAX
    assert found.replicas == 200 - (DRAINS_MAX - draining), "otherwise its scaler would end workers without a drain"


def test_a_drain_counts_in_the_pool_that_started_its_worker_too() -> None:
    fleet = fleet_with_a_move()
    drains = Drains(DrainKnobs())
    for pool, worker in (("decode", "prefill-2"), ("decode", "decode-0")):
        drains.start(fleet, "m", pool, Victim(worker, 1), "d", START)
    assert drains.counts("m") == {"decode": 2, "prefill": 1}
