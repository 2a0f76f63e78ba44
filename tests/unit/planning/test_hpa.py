"""HPA planner: manual calculations, and cases of the documents and tests of Kubernetes."""

from collections.abc import Sequence

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.knobs import GuardrailKnobs, HardLimits
from loadline.core.planning.planners.baselines.hpa import HpaKnobs, HpaPlanner
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported, sample

SYNC_MS = 15_000
ASIDE = GuardrailKnobs(
    step_up_max=1_000_000, step_down_max=1_000_000, stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0
)
"""Guardrails that never limit, as in the baseline: only replica bounds apply."""


class HpaHarness(FleetHarness):
    """Pool whose workers report the values of a test; None: the worker is silent."""

    def __init__(self, workers: int, role: Role = "decode", current: int | None = None, **knobs: float) -> None:
        super().__init__([PoolKnobs("p", role, replicas_max=1_000)], workers)
        self.planner = HpaPlanner(HpaKnobs(**knobs))  # type: ignore[arg-type]
        self.pool("p").reset_decided(workers if current is None else current, self.now)

    def report_values(self, values: Sequence[float | None], *, queue: bool = False) -> None:
        """Report KV usage or waiting requests of each ready worker, without the other metric."""
        self.sequence += 1
        for worker, value in zip(self.pool("p").workers, values, strict=False):
            if value is not None:
                kv, waiting = (None, int(value)) if queue else (value, None)
                self.fleet.ingest(reported(worker, sample(self.sequence, kv, waiting, 0), pool="p"), self.now)

    def evaluate(self) -> Recommendation:
        return self.planner.plan(self.refresh(), self.now)

    def sync(self, values: Sequence[float | None], *, queue: bool = False) -> int:
        """Return the count after the next sync, which is applied at once."""
        self.now += SYNC_MS
        self.report_values(values, queue=queue)
        count = self.evaluate().targets.get("p", self.pool("p").effective_target(self.now))
        self.apply_target(count)
        return count

    def apply_target(self, count: int) -> None:
        pool = self.pool("p")
        pool.set_decided(count, self.now)
        while pool.ready > count:
            self.remove_newest("p")
        self.add_workers("p", count - pool.ready)

    def level(self, kv: float) -> int:
        """Sync with all workers at this KV usage."""
        return self.sync([kv] * self.pool("p").ready)


# -- one metric: KV usage of ready workers (None: silent), pending workers, target, count ------------------------------

KV_CASES: dict[str, tuple[list[float | None], int, float, int]] = {
    "documented: twice the target doubles": ([1.0] * 4, 0, 0.5, 8),
    "documented: half the target halves": ([0.25] * 4, 0, 0.5, 2),
    "documented: within a tenth it stays": ([0.55] * 4, 0, 0.5, 4),
    "exactly a tenth above": ([0.77] * 4, 0, 0.7, 4),
    "just beyond a tenth above": ([0.771] * 4, 0, 0.7, 5),
    "exactly a tenth below": ([0.63] * 4, 0, 0.7, 4),
    "just beyond a tenth below": ([0.6] * 10, 0, 0.7, 9),
    "a whole quotient is not rounded up": ([0.35] * 6, 0, 0.7, 3),
    "ScaleUp": ([0.3, 0.5, 0.7], 0, 0.3, 5),
    "ScaleUpUnreadyLessScale": ([0.5, 0.7], 1, 0.3, 4),
    "ScaleUpUnreadyNoScale": ([0.4], 2, 0.3, 3),
    "ScaleDown": ([0.1, 0.3, 0.5, 0.25, 0.25], 0, 0.5, 3),
    "ScaleDownIncludeUnreadyPods": ([0.1, 0.3, 0.5], 2, 0.5, 2),
    "ScaleDownExcludeUnscheduledPods": ([0.1], 4, 0.5, 1),
    "MissingMetrics": ([0.4, 0.095, None, None], 0, 1.0, 3),
    "MissingMetricsNoChangeEq": ([1.0, None], 0, 1.0, 2),
    "MissingMetricsNoChangeGt": ([0.95, None], 0, 0.5, 2),
    "MissingMetricsNoChangeLt": ([0.6, None], 0, 1.0, 2),
    "MissingMetricsUnreadyChange": ([0.45, None], 1, 0.5, 3),
    "MissingMetricsUnreadyScaleUp": ([1.0, None], 1, 0.25, 4),
    "silent workers cannot turn growth into a shrink": ([0.9, None, None, None], 0, 0.7, 4),
    "silent workers keep their share in a shrink": ([0.1, 0.1, 0.1, None], 0, 0.5, 2),
    "late workers cannot turn growth into a shrink": ([0.9] * 4, 4, 0.7, 8),
    "what silence leaves of growth is within a tenth": ([1.0, 1.0, None], 0, 0.63, 3),
    "what silence leaves of a shrink is within a tenth, whoever is yet to come": ([0.6, None, None], 3, 0.7, 6),
    "more are there than should be, and silence does not make them stay": ([0.4, 0.4, None, None], -2, 0.7, 2),
    "idle": ([0.0] * 3, 0, 0.7, 1),
}


@pytest.mark.parametrize("case", KV_CASES)
def test_kv_usage_proposes_counts_by_its_ratio_to_the_target(case: str) -> None:
    values, starting, target, count = KV_CASES[case]
    harness = HpaHarness(len(values), current=len(values) + starting, kv_usage_target=target, down_stabilisation_ms=0)
    assert harness.sync(values) == count


QUEUE_CASES = {
    "ScaleUpCM": ([20, 10, 30], 15, 4),
    "ScaleDownCM": ([12] * 5, 20, 3),
    "one long queue counts like many short ones": ([30, 0, 0], 5, 6),
    "no queue": ([0] * 4, 5, 1),
}


@pytest.mark.parametrize("case", QUEUE_CASES)
@pytest.mark.parametrize(("role", "key"), [("aggregated", "waiting_requests"), ("prefill", "prefill_requests")])
def test_waiting_requests_propose_counts_by_their_ratio_to_the_target(case: str, role: Role, key: str) -> None:
    values, target, count = QUEUE_CASES[case]
    knobs = {f"{key}_target": float(target), "kv_usage_target": 0.0, "down_stabilisation_ms": 0}
    assert HpaHarness(len(values), role, None, **knobs).sync(values, queue=True) == count


def test_starting_workers_count_as_pending() -> None:
    harness = HpaHarness(1, current=3, kv_usage_target=0.3, down_stabilisation_ms=0)
    harness.add_workers("p", 2, "starting")
    assert harness.sync([0.4]) == 3


def test_overdue_workers_count_as_pending() -> None:
    harness = HpaHarness(4, current=8, down_stabilisation_ms=0)
    harness.now += harness.pool("p").knobs.start_deadline_ms
    assert harness.sync([0.9] * 4) == 8


def test_running_and_waiting_prefills_count() -> None:
    harness = HpaHarness(2, "prefill", prefill_requests_target=2.0)
    harness.report("p", waiting=3, running=2)  # 7 in flight at two workers, the target is 2: ceil(7 / 2)
    assert harness.evaluate().targets == {"p": 4}


# -- several metrics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv", "waiting", "count", "code"),
    [
        (0.9, 0, 6, ReasonCode.KV_USAGE_TARGET),  # 3.6 / 0.7, and 0 / 5
        (0.1, 40, 8, ReasonCode.WAITING_REQUESTS_TARGET),  # 0.4 / 0.7, and 40 / 5
        (0.7, 0, 4, ReasonCode.WITHIN_TOLERANCE),  # the current count is a proposal like any other
        (0.3, 10, 2, ReasonCode.KV_USAGE_TARGET),  # 1.2 / 0.7 and 10 / 5: of equal proposals, the first one is named
    ],
)
def test_the_highest_proposal_of_several_metrics_applies(kv: float, waiting: int, count: int, code: ReasonCode) -> None:
    harness = HpaHarness(4, "aggregated", down_stabilisation_ms=0)
    harness.report("p", kv, waiting)
    recommendation = harness.evaluate()
    assert recommendation.targets.get("p", 4) == count
    assert recommendation.reasons[0].code == code


@pytest.mark.parametrize(
    ("kv", "count", "code"), [(0.1, 4, ReasonCode.METRIC_MISSING), (0.9, 6, ReasonCode.KV_USAGE_TARGET)]
)
def test_while_a_metric_is_unknown_others_only_scale_up(kv: float, count: int, code: ReasonCode) -> None:
    harness = HpaHarness(4, "aggregated", down_stabilisation_ms=0)
    harness.report_values([kv] * 4)
    recommendation = harness.evaluate()
    assert recommendation.targets.get("p", 4) == count
    assert recommendation.reasons[0].code == code


def test_a_target_of_0_disables_its_metric() -> None:
    harness = HpaHarness(4, "aggregated", down_stabilisation_ms=0, waiting_requests_target=0.0)
    assert harness.level(0.1) == 1


def test_without_any_known_metric_the_pool_is_held() -> None:
    harness = HpaHarness(4)
    harness.report_without_load("p")
    recommendation = harness.evaluate()
    assert (recommendation.targets, [r.code for r in recommendation.reasons]) == ({}, [ReasonCode.NO_DATA])


# -- time --------------------------------------------------------------------------------------------------------------


def test_between_syncs_the_recommendation_is_repeated() -> None:
    harness = HpaHarness(4)
    harness.report_values([1.0] * 4)
    assert harness.evaluate().targets == {"p": 6}
    for _ in range(14):
        harness.now += 1_000
        assert harness.planner.next_wake() == harness.now
        harness.report_values([0.7] * 4)
        assert harness.evaluate().targets == {"p": 6}
    harness.now += 1_000
    assert harness.planner.next_wake() == harness.now
    harness.report_values([0.7] * 4)
    assert harness.evaluate().targets == {}


def test_a_recommendation_is_discarded_when_the_data_ends() -> None:
    harness = HpaHarness(4)
    harness.report_values([1.0] * 4)
    assert harness.evaluate().targets == {"p": 6}
    harness.now += harness.fleet.knobs.stale_after_ms + 1
    recommendation = harness.evaluate()
    assert (recommendation.targets, [r.code for r in recommendation.reasons]) == ({}, [ReasonCode.NO_DATA])


def test_no_change_does_not_undo_changes_from_outside() -> None:
    harness = HpaHarness(4)
    harness.report_values([0.7] * 4)
    assert harness.evaluate().targets == {}
    harness.now += 1_000
    harness.pool("p").set_decided(6, harness.now)
    assert harness.evaluate().targets == {}


def test_a_scale_down_takes_the_highest_recommendation_of_the_window() -> None:
    harness = HpaHarness(10)
    assert harness.level(0.7) == 10
    for _ in range(
        19
    ):  # the window is 300 s: at the twentieth sync the recommendation of 10 is 300 s old and has left it
        assert harness.level(0.07) == 10
    assert harness.level(0.07) == 1


def test_a_scale_down_takes_the_highest_and_not_the_last_recommendation() -> None:
    harness = HpaHarness(10)
    harness.level(0.7)
    harness.level(0.35)  # recommends 5
    for _ in range(18):
        assert harness.level(0.07) == 10
    assert harness.level(0.07) == 5
    assert harness.level(0.07) == 1  # the recommendation of 5 has left the window: 5 x 0.07 / 0.7 rounded up


def test_after_a_start_nothing_scales_down_for_a_window() -> None:
    harness = HpaHarness(4)
    counts = [harness.level(0.0) for _ in range(21)]
    assert counts == [4] * 20 + [1]


def test_workers_added_from_outside_are_kept_for_a_window() -> None:
    harness = HpaHarness(2)
    for _ in range(30):
        assert harness.level(0.7) == 2
    harness.apply_target(6)
    counts = [harness.level(0.0) for _ in range(21)]
    assert counts == [6] * 20 + [1]


def test_growth_by_the_planner_is_not_recorded_as_outside() -> None:
    harness = HpaHarness(4, down_stabilisation_ms=60_000)
    assert harness.level(1.0) == 6
    # The 6 was recommended at the sync before, so it leaves after four syncs and not after five.
    assert [harness.level(0.0) for _ in range(4)] == [6, 6, 6, 1]


@pytest.mark.parametrize(("workers", "count"), [(1, 5), (3, 7), (4, 8), (10, 20)])
def test_a_sync_scales_up_to_twice_or_four_more(workers: int, count: int) -> None:
    harness = HpaHarness(workers, "prefill")
    assert harness.sync([1_000] * workers, queue=True) == count
    assert harness.sync([1_000] * count, queue=True) == max(2 * count, count + 4)


def test_a_limited_scale_up_has_a_reason() -> None:
    harness = HpaHarness(2, "prefill", prefill_requests_target=2.0)
    harness.report_values([50, 50], queue=True)
    recommendation = harness.evaluate()
    assert [r.code for r in recommendation.reasons] == [ReasonCode.PREFILL_REQUESTS_TARGET, ReasonCode.SCALE_UP_LIMIT]
    assert recommendation.reasons[1].numbers == {"wanted": 50.0, "allowed": 6.0}
    assert recommendation.inputs == {"p.ready": 2.0, "p.prefill_requests_target": 50.0}


def test_limited_growth_continues_by_the_recommendations_of_the_window() -> None:
    harness = HpaHarness(4, "prefill", prefill_requests_target=2.0)
    assert harness.sync([10] * 4, queue=True) == 8  # recommends 20
    assert harness.sync([1] * 8, queue=True) == 16  # recommends 4, but 20 is the highest of the window


# -- convergence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("demand", [0.4, 1.3, 3.7, 6.0, 40.0])
def test_a_shared_metric_converges_to_its_target(demand: float) -> None:
    harness = HpaHarness(3)
    for _ in range(200):
        count = harness.level(min(1.0, demand / harness.pool("p").ready))
    usage = demand / count
    assert usage <= 0.77 + 1e-6
    assert count == 1 or demand / (count - 1) > 0.63


def test_disabled_guardrails_change_nothing() -> None:
    harness = HpaHarness(10)
    guard = Guardrails(ASIDE, HardLimits(quorum_ratio=0.8, gpu_budget_min=0, gpu_budget_max=None))
    counts = []
    for kv in [0.7] * 3 + [1.0] * 3 + [0.01] * 45 + [0.9] * 5:
        for part in range(15):
            harness.now += 1_000
            harness.report_values([kv] * harness.pool("p").ready)
            proposed = harness.evaluate().targets
            draft = guard.apply(harness.model, proposed, Constraints(harness.now), harness.now)
            current = harness.pool("p").effective_target(harness.now)
            assert (draft.targets, draft.limits) == ({"p": proposed.get("p", current)}, []), part
            harness.apply_target(draft.targets["p"])
        counts.append(harness.pool("p").ready)
    assert max(counts) > 20
    assert min(counts) == 1


def test_default_guardrails_allow_its_scale_down() -> None:
    harness = HpaHarness(6)
    guard = Guardrails(GuardrailKnobs(), HardLimits(quorum_ratio=0.8, gpu_budget_min=0, gpu_budget_max=None))
    began = harness.now
    for _ in range(600):
        harness.now += 1_000
        harness.report_values([0.1] * harness.pool("p").ready)
        harness.apply_target(
            guard.apply(harness.model, harness.evaluate().targets, Constraints(began), harness.now).targets["p"]
        )
    assert harness.pool("p").ready == 1
