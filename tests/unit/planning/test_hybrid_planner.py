"""Hybrid planner: combination of two recommendations; ``arbitrate`` has tests of its own."""

import pytest
from msgspec import field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.planners.hybrid import HybridKnobs, HybridPlanner
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.planners.saturation import SaturationKnobs, SaturationPlanner
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from tests.support.fleet_harness import FleetHarness

STANDING = 5
A = PoolKnobs("a", "aggregated", replicas_max=20)
B = PoolKnobs("b", "aggregated", replicas_max=20)


class GivenQueueing(QueueingPlanner):
    """Queueing planner with given counts, without a recommendation for other pools."""

    needs_: tuple[RoleDemand, ...] = ()
    wants: dict[str, int] = field(default_factory=dict)

    def plan(self, model: Model, now: int) -> Recommendation:
        targets = {
            name: count for name, count in self.wants.items() if count != model.pools[name].effective_target(now)
        }
        reasons = [Reason(ReasonCode.QUEUEING_TARGET, name, detail="queues") for name in self.wants]
        reasons.append(Reason(ReasonCode.FORECAST_FALLBACK))
        return Recommendation(self.name, targets, tuple(reasons), {"requests_per_s": 7.0}, self.needs_)

    def hold_reason(self, model: Model, pool: Pool, now: int) -> Reason | None:  # noqa: ARG002
        return None if pool.name in self.wants else Reason(ReasonCode.TRAFFIC_UNKNOWN, pool.name)


class GivenSaturation(SaturationPlanner):
    """Saturation planner with given counts; other pools have no data."""

    needs_: tuple[RoleDemand, ...] = ()
    wants: dict[str, int] = field(default_factory=dict)

    def plan(self, model: Model, now: int) -> Recommendation:
        targets = {
            name: count for name, count in self.wants.items() if count != model.pools[name].effective_target(now)
        }
        reasons = [
            Reason(ReasonCode.SATURATION_WITHIN if name in self.wants else ReasonCode.NO_DATA, name, detail="workers")
            for name in model.pools
        ]
        return Recommendation(self.name, targets, tuple(reasons), {"a.held_low": 1.0}, self.needs_)


class HybridHarness:
    """Hybrid planner with two given recommendations."""

    def __init__(self, *pools: PoolKnobs) -> None:
        self.line = FleetHarness(pools or (A,), STANDING)
        for pool in self.line.model.pools.values():
            pool.decided = STANDING
        self.queues, self.workers = GivenQueueing(QueueingKnobs()), GivenSaturation(SaturationKnobs())
        self.planner = HybridPlanner(HybridKnobs(), self.queues, self.workers)

    def plan(self, queueing: dict[str, int], saturation: dict[str, int], *, safe: bool = True) -> Recommendation:
        self.queues.wants, self.workers.wants = queueing, saturation
        self.workers.removable = dict.fromkeys(self.line.model.pools, safe)
        return self.planner.plan(self.line.refresh(), self.line.now)


@pytest.mark.parametrize(
    ("queueing", "saturation", "safe", "target", "code"),
    [
        ({"a": 8}, {"a": 5}, True, 8, ReasonCode.QUEUEING_LEADS),
        ({"a": 5}, {"a": 7}, False, 7, ReasonCode.SATURATION_LEADS),
        ({"a": 6}, {"a": 7}, False, 7, ReasonCode.SATURATION_LEADS),
        ({"a": 8}, {"a": 7}, False, 8, ReasonCode.QUEUEING_LEADS),
        ({"a": 4}, {"a": 7}, False, None, ReasonCode.SATURATION_VETO),
        ({"a": 4}, {"a": 5}, False, None, ReasonCode.SHRINK_UNSAFE),
        ({"a": 4}, {"a": 5}, True, 4, ReasonCode.QUEUEING_LEADS),
        ({"a": 5}, {"a": 3}, True, None, ReasonCode.QUEUEING_KEEPS),
        ({}, {"a": 3}, True, 3, ReasonCode.SATURATION_ALONE),
        ({}, {"a": 7}, False, 7, ReasonCode.SATURATION_ALONE),
        ({"a": 3}, {}, False, 3, ReasonCode.QUEUEING_ALONE),
        ({}, {}, False, None, ReasonCode.NO_RECOMMENDATION),
    ],
)
def test_arbitration_selects_the_count_of_a_pool(
    queueing: dict[str, int], saturation: dict[str, int], *, safe: bool, target: int | None, code: ReasonCode
) -> None:
    found = HybridHarness().plan(queueing, saturation, safe=safe)
    assert found.targets.get("a") == target
    assert code in {reason.code for reason in found.reasons}


@pytest.mark.parametrize(("queueing", "saturation", "allowed"), [(0, 5, 4), (1, 5, 4), (1, 3, 3), (3, 1, 3), (4, 5, 4)])
def test_a_scale_down_is_limited_to_safe_workers(queueing: int, saturation: int, allowed: int) -> None:
    found = HybridHarness().plan({"a": queueing}, {"a": saturation})
    assert found.targets == {"a": allowed}
    assert (ReasonCode.SHRINK_STEPWISE in {reason.code for reason in found.reasons}) is (allowed > queueing)


def test_pools_without_a_recommendation_do_not_affect_others() -> None:
    found = HybridHarness(A, B).plan({"a": 8}, {"b": 7})
    assert found.targets == {"a": 8, "b": 7}
    codes = {(reason.pool, reason.code) for reason in found.reasons}
    assert {("a", ReasonCode.QUEUEING_ALONE), ("b", ReasonCode.SATURATION_ALONE)} <= codes


def test_the_explanation_has_the_row_and_the_reasons_of_both_planners() -> None:
    found = HybridHarness().plan({"a": 8}, {"a": 7})
    assert found.reasons[0] == Reason(ReasonCode.QUEUEING_LEADS, "a", {"saturation": 7.0, "queueing": 8.0})
    assert found.reasons[0].sentence() == "a: the queueing model recommends 8, saturation 7"
    assert [reason.detail for reason in found.reasons[1:3]] == ["queues", "workers"]
    assert found.reasons[-1].code is ReasonCode.FORECAST_FALLBACK, "reasons of the whole model"
    assert found.inputs == {"requests_per_s": 7.0, "a.held_low": 1.0}


def test_every_row_has_a_sentence_with_the_known_counts() -> None:
    for queueing in ({}, {"a": 3}, {"a": 5}, {"a": 8}):
        for saturation in ({}, {"a": 3}, {"a": 5}, {"a": 8}):
            for safe in (False, True):
                found = HybridHarness().plan(queueing, saturation, safe=safe)
                assert found.reasons[0].pool == "a"
                assert found.reasons[0].sentence().startswith("a: ")


def test_the_next_wake_is_the_earlier_one_of_both_planners() -> None:
    table = HybridHarness()
    table.queues.demand.next_ms, table.workers.next_ms = 2_000, 1_000
    assert table.planner.next_wake() == 1_000
    table.queues.demand.next_ms = 500
    assert table.planner.next_wake() == 500


# -- demand ------------------------------------------------------------------------------------------------------------

OURS = RoleDemand("aggregated", 30.0, {"a": 4.0, "b": 10.0})
THEIRS = RoleDemand("aggregated", 6.5, {"a": 1.0, "b": 1.0})


def needs(
    table: HybridHarness, queueing: dict[str, int], saturation: dict[str, int], *, safe: bool = True
) -> tuple[RoleDemand, ...]:
    table.queues.needs_, table.workers.needs_ = (OURS,) if queueing else (), (THEIRS,)
    return table.plan(queueing, saturation, safe=safe).demands


def test_the_demand_is_that_of_the_planner_that_knows_it() -> None:
    assert needs(HybridHarness(A, B), {"a": 5, "b": 6}, {"a": 5, "b": 5}) == (OURS,)
    assert needs(HybridHarness(A, B), {}, {"a": 7, "b": 5}) == (THEIRS,)


def test_counts_of_the_other_planner_become_a_demand_of_their_capacity() -> None:
    (grown,) = needs(HybridHarness(A, B), {"a": 5, "b": 5}, {"a": 7, "b": 5})
    assert grown == RoleDemand("aggregated", 7 * 4.0 + 5 * 10.0, OURS.capacities)
    (kept,) = needs(HybridHarness(A, B), {"a": 5, "b": 4}, {"a": 5, "b": 5}, safe=False)
    assert kept == RoleDemand("aggregated", 5 * 4.0 + 5 * 10.0, OURS.capacities)


def test_learned_parameters_of_both_planners_survive_a_restart() -> None:
    planner = HybridPlanner(HybridKnobs(saturation=SaturationKnobs(capacity="tokens")))
    successor = HybridPlanner(planner.knobs)
    assert planner.export_learned() is None
    sides = planner
    sides.queueing.import_learned(b'{"lines":{"a":{"decode":{"slope":0.1,"intercept_ms":9.0}}}}')
    sides.saturation.import_learned(b'{"a":{"by_bucket":{"1":[60000.0]}}}')
    data = planner.export_learned()
    assert data is not None
    successor.import_learned(data)
    assert successor.export_learned() == data
    assert successor.queueing.export_learned() == sides.queueing.export_learned() is not None
    assert successor.saturation.export_learned() == sides.saturation.export_learned() is not None
