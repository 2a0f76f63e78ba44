"""KEDA planner: manual calculations for the rules of llm-d's guides."""

from collections.abc import Mapping

import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.baselines.keda import KedaKnobs, KedaPlanner, controlled_count
from loadline.core.planning.sizing.baselines.epp_signals import dispatched_requests, held_requests
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported

SYNC_MS = 15_000


class KedaHarness(FleetHarness):
    """Pool whose workers report the samples of a test; counts are applied at once."""

    def __init__(self, workers: int, role: Role = "aggregated", **knobs: object) -> None:
        super().__init__([PoolKnobs("p", role, replicas_max=1_000)], workers)
        self.planner = KedaPlanner(KedaKnobs(**knobs))  # type: ignore[arg-type]
        self.model.objectives = ObjectiveKnobs(ttft_ms=1_000.0, itl_ms=100.0)
        self.pool("p").reset_decided(workers, self.now)

    def report_all(self, *reports: Mapping[str, float], silent: int = 0, only: bool = False) -> None:
        """Report from each worker; the last report is that of all further workers.

        Fields of the load that a report lacks are 0, unless a worker reports its fields ``only``.
        """
        self.sequence += 1
        workers = list(self.pool("p").workers)
        for number, worker in enumerate(workers[: len(workers) - silent]):
            fields: dict[str, float] = (
                {} if only else {"kv_usage_ratio": 0.0, "waiting_requests": 0, "running_requests": 0}
            )
            fields |= reports[min(number, len(reports) - 1)]
            sample = WorkerSample(self.sequence, 0, **fields)  # type: ignore[arg-type]
            self.fleet.ingest(reported(worker, sample, pool="p"), self.now)

    def evaluate(self) -> Recommendation:
        return self.planner.plan(self.refresh(), self.now)

    def proposed(self, *reports: Mapping[str, float], silent: int = 0) -> tuple[int, ReasonCode]:
        """Return the count that the next evaluation recommends, with its first reason."""
        self.report_all(*reports, silent=silent)
        recommendation = self.evaluate()
        return recommendation.targets.get("p", self.pool("p").ready), recommendation.reasons[0].code

    def sync(self, *reports: Mapping[str, float]) -> int:
        """Return the count after the next sync, which is applied at once."""
        self.now += SYNC_MS
        count, _ = self.proposed(*reports)
        self.apply(count)
        return count

    def apply(self, count: int) -> None:
        """Set the target and the ready workers."""
        self.pool("p").set_decided(count, self.now)
        while self.pool("p").ready > count:
            self.remove_newest("p")
        self.add_workers("p", count - self.pool("p").ready)


def at_once(rule: str, workers: int, role: Role = "aggregated", **knobs: object) -> KedaHarness:
    """Return a pool that does not wait for the start-up time before it grows."""
    return KedaHarness(workers, role, rule=rule, start_up_ms=0, **knobs)


# -- queue: waiting requests beyond the 5 that a worker accepts, or all of them at KV usage 0.8; 16 dispatched --------

QUEUES: dict[str, tuple[list[dict[str, float]], int, ReasonCode]] = {
    "6 and 7 beyond 5 accepted": (
        [{"waiting_requests": 11}, {"waiting_requests": 12}],
        4,
        ReasonCode.FLOW_CONTROL_QUEUE,
    ),
    "a full cache accepts none": (
        [{"waiting_requests": 3, "kv_usage_ratio": 0.8}, {}],
        3,
        ReasonCode.FLOW_CONTROL_QUEUE,
    ),
    "50 running of 16 each": ([{"running_requests": 25}], 4, ReasonCode.CONCURRENCY_TARGET),
    "accepted requests run": ([{"waiting_requests": 5, "running_requests": 20}], 4, ReasonCode.CONCURRENCY_TARGET),
    "35 of 32 running are within a tenth": (
        [{"running_requests": 17}, {"running_requests": 18}],
        2,
        ReasonCode.WITHIN_TOLERANCE,
    ),
}


@pytest.mark.parametrize("case", QUEUES)
def test_queue_sizes_for_held_and_dispatched_requests(case: str) -> None:
    reports, count, code = QUEUES[case]
    assert at_once("queue", 2).proposed(*reports) == (count, code)


def test_held_requests_are_not_dispatched() -> None:
    harness = at_once("queue", 2)
    harness.report_all({"waiting_requests": 6, "running_requests": 27})
    pool = harness.refresh().pools["p"]
    assert (held_requests(pool), dispatched_requests(pool)) == (2.0, 64.0)


def test_silent_workers_have_the_mean_of_the_others() -> None:
    # 3 of 4 workers report 20 running each: 80 in flight of 16 each are 5 workers.
    assert at_once("queue", 4).proposed({"running_requests": 20}, silent=1)[0] == 5


# -- saturation: mean of max(waiting / 5, KV usage / 0.8), target 0.7 for the pool -------------------------------------


@pytest.mark.parametrize(
    ("reports", "silent", "count"),
    [
        ([{"kv_usage_ratio": 0.8}], 0, 2),  # 1.0 / 0.7, whatever the number of workers
        ([{"waiting_requests": 10, "kv_usage_ratio": 0.8}, {"kv_usage_ratio": 0.4}], 0, 2),  # (2 + 0.5) / 2 = 1.25
        ([{"waiting_requests": 20}], 0, 6),  # 4.0 / 0.7
        ([{"waiting_requests": 15}], 1, 3),  # (3 + 1) / 2 = 2.0: a silent worker is saturated
    ],
)
def test_saturation_is_a_mean_over_the_workers(reports: list[dict[str, float]], silent: int, count: int) -> None:
    harness = at_once("saturation", 2)
    harness.planner.histories["p"] = harness.planner.new_history()
    harness.planner.histories["p"].expected = 2  # no initial recommendation, which would delay a scale-down
    found, code = harness.proposed(*reports, silent=silent)
    assert (found, code) == (min(count, 4), ReasonCode.POOL_SATURATION)  # a sync doubles the count at most
    assert harness.planner.histories["p"].recommendations.values == [count]


# -- tokens: seconds of prefill, and sum of KV usage over 0.8 ----------------------------------------------------------


def tokens(role: Role, workers: int = 4) -> KedaHarness:
    return at_once("tokens", workers, role, prefill_tokens_per_s=10_000.0, backlog_s=1.5)


@pytest.mark.parametrize(
    ("role", "wanted", "code"),
    [
        ("prefill", 8.0, ReasonCode.PREFILL_BACKLOG),  # 4 x 28,000 tokens take 11.2 s, of 1.5 s each
        ("decode", 5.0, ReasonCode.KV_USAGE_TARGET),  # 4 x 0.95 / 0.8
        ("aggregated", 8.0, ReasonCode.PREFILL_BACKLOG),
    ],
)
def test_tokens_size_by_role(role: Role, wanted: float, code: ReasonCode) -> None:
    harness = tokens(role)
    harness.report_all({"queued_prefill_tokens": 20_000, "active_prefill_tokens": 8_000, "kv_usage_ratio": 0.95})
    reason = harness.evaluate().reasons[0]
    assert (reason.code, reason.numbers["wanted"]) == (code, wanted)


def test_tokens_add_a_worker_in_three_minutes_and_remove_one_in_five() -> None:
    harness = tokens("prefill", 2)
    counts = [harness.sync({"queued_prefill_tokens": 100_000}) for _ in range(26)]
    # 180 s are 12 syncs: the next worker is added once the last one was 180 s ago.
    assert counts == [3] * 12 + [4] * 12 + [5] * 2
    counts = [harness.sync({}) for _ in range(60)]
    # The highest recommendation leaves the window after 300 s, 20 syncs; then one worker leaves per 300 s.
    assert counts == [5] * 19 + [4] * 20 + [3] * 20 + [2]


# -- latency: the control law, and its signal --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "count", "ready", "wanted"),
    [
        (0.55, 4, 4, 4),  # the band
        (0.4, 4, 4, 4),
        (0.66, 5, 5, 6),  # 5 x 0.2 = 1 more
        (0.67, 5, 5, 7),  # 5 x 0.218, rounded up
        (2.0, 3, 3, 11),  # 3 x 2.636 = 7.9
        (1.1, 6, 3, 6),  # 3 of 6 are ready: 1.1 / 2 is the band's upper end
        (0.3, 8, 8, 6),  # 8 x 0.25 = 2 fewer
        (0.3, 7, 7, 6),  # 1.75, rounded down
        (0.0, 4, 4, 0),  # without traffic
        (0.3, 8, 4, 6),  # a scale-down has no credit
    ],
)
def test_the_control_law(ratio: float, count: int, ready: int, wanted: int) -> None:
    assert controlled_count(ratio, count, ready) == wanted


@pytest.mark.parametrize(("role", "ratio"), [("prefill", 0.9), ("decode", 0.5), ("aggregated", 0.9)])
def test_the_signal_is_the_worse_p90_over_its_objective(role: Role, ratio: float) -> None:
    harness = KedaHarness(10, role, rule="latency")
    # Of ten values the ninth is the P90: TTFT 900 of 1,000 ms, ITL 50 of 100 ms.
    ttfts = [{"ttft_ms": 100.0 * number, "itl_ms": 50.0, "running_requests": 1} for number in range(1, 11)]
    harness.report_all(*ttfts)
    reason = harness.evaluate().reasons[0]
    assert reason.code == ReasonCode.LATENCY_RATIO
    assert reason.numbers["value"] == pytest.approx(ratio)


def test_a_repeated_ttft_counts_once_and_leaves_after_a_minute() -> None:
    harness = KedaHarness(2, "prefill", rule="latency")
    signals = []
    for _ in range(8):
        harness.report_all({"ttft_ms": 600.0})
        harness.evaluate()
        signals.append(harness.planner.histories["p"].latencies.signal.values[-1])
        harness.now += SYNC_MS
    assert signals == [pytest.approx(0.6)] * 4 + [0.0] * 4


def test_an_evaluation_without_a_report_counts_no_latency_again() -> None:
    harness = KedaHarness(2, "decode", rule="latency")
    harness.report_all({"itl_ms": 50.0, "running_requests": 1})
    harness.evaluate()
    harness.planner.plan(harness.model, harness.now)
    assert harness.planner.histories["p"].latencies.itls.values == [0.5, 0.5]


def test_the_signal_is_cut_and_averaged_over_three_syncs() -> None:
    harness = KedaHarness(2, "prefill", rule="latency")
    means = []
    for ttft_ms in (300.0, 90_000.0, 90_001.0, 90_002.0):
        harness.report_all({"ttft_ms": ttft_ms})
        harness.evaluate()
        signal = harness.planner.histories["p"].latencies.signal.values
        means.append(sum(signal) / len(signal))
        harness.now += SYNC_MS
    assert means == [pytest.approx(value) for value in (0.3, 1.15, 4.3 / 3, 2.0)]


def test_the_latency_rule_scales_down_by_one_worker_in_two_minutes() -> None:
    harness = KedaHarness(6, "prefill", rule="latency")
    counts = [harness.sync({}) for _ in range(40)]
    # The initial count is in the window for 180 s, 12 syncs.
    assert counts == [6] * 12 + [5] * 8 + [4] * 8 + [3] * 8 + [2] * 4


# -- what workers do not report ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "role", "sample", "code"),
    [
        ("queue", "decode", {"kv_usage_ratio": 0.99}, ReasonCode.NO_DATA),
        ("saturation", "decode", {"kv_usage_ratio": 0.99}, ReasonCode.NO_DATA),
        ("tokens", "prefill", {"waiting_requests": 40, "running_requests": 4}, ReasonCode.NO_DATA),
        ("tokens", "decode", {"waiting_requests": 0, "running_requests": 200}, ReasonCode.NO_DATA),
        ("tokens", "aggregated", {"running_requests": 200, "queued_prefill_tokens": 0}, ReasonCode.METRIC_MISSING),
        ("tokens", "aggregated", {"waiting_requests": 40, "kv_usage_ratio": 0.1}, ReasonCode.METRIC_MISSING),
        ("latency", "aggregated", {"running_requests": 200}, ReasonCode.NO_DATA),
    ],
)
def test_what_no_worker_reports_is_not_0(rule: str, role: Role, sample: dict[str, float], code: ReasonCode) -> None:
    harness = at_once(rule, 6, role)
    for _ in range(40):
        harness.now += SYNC_MS
        harness.report_all(sample, only=True)
        recommendation = harness.evaluate()
        assert (recommendation.targets, [reason.code for reason in recommendation.reasons]) == ({}, [code])


def test_one_idle_moment_does_not_shrink_a_pool_that_reports_no_latency() -> None:
    harness = at_once("latency", 6)
    full, idle = {"running_requests": 200}, {"running_requests": 0}
    assert [harness.sync(report) for report in [full] * 40 + [idle] + [full] * 40] == [6] * 81
    assert [harness.sync(idle) for _ in range(13)] == [6] * 11 + [5] * 2


def test_an_idle_worker_says_nothing_of_workers_whose_prompts_have_an_unknown_length() -> None:
    idle, busy = {"waiting_requests": 0, "running_requests": 0}, {"waiting_requests": 40, "running_requests": 4}
    harness = at_once("tokens", 6, "prefill")
    for _ in range(40):
        harness.now += SYNC_MS
        harness.report_all(idle, busy, only=True)
        assert harness.evaluate().targets == {}
    counts: list[int] = []
    for _ in range(40):
        harness.now += SYNC_MS
        harness.report_all(idle, only=True)
        counts += harness.evaluate().targets.values()
    assert set(counts) == {5}, "a pool that is known to be idle shrinks"


def test_a_known_trigger_adds_workers_though_another_is_unknown() -> None:
    harness = tokens("aggregated")
    harness.report_all({"queued_prefill_tokens": 20_000, "active_prefill_tokens": 8_000}, only=True)
    assert harness.evaluate().targets == {"p": 5}


def test_prompts_have_the_length_that_frontends_report_where_workers_report_none() -> None:
    harness = tokens("prefill")
    sample = TrafficSample(1, 1_000, 10, isl_tokens=2_000.0)
    harness.model.traffic.ingest(TrafficReported("m", "f", 1, sample), harness.now)
    harness.report_all({"waiting_requests": 13, "running_requests": 2}, only=True)
    [reason] = [one for one in harness.evaluate().reasons if one.code == ReasonCode.PREFILL_BACKLOG]
    assert reason.numbers["value"] == pytest.approx(4 * (13 + 2 / 2) * 2_000 / 10_000)


# -- time --------------------------------------------------------------------------------------------------------------


def test_growth_waits_for_the_start_up_time() -> None:
    harness = KedaHarness(2, rule="queue", start_up_ms=60_000)
    counts = [harness.sync({"running_requests": 160}) for _ in range(5)]
    # The initial count leaves the window after 60 s, four syncs. Then the lowest of the window is 20.
    assert counts == [2, 2, 2, 2, 4]


def test_a_short_burst_does_not_outlast_the_window() -> None:
    harness = KedaHarness(2, rule="queue", start_up_ms=60_000)
    assert [harness.sync({"running_requests": 16}) for _ in range(5)] == [2] * 5
    assert [harness.sync({"running_requests": 160}) for _ in range(3)] == [2] * 3
    assert [harness.sync({"running_requests": 16}) for _ in range(5)] == [2] * 5


def test_other_settings_resize_the_windows() -> None:
    harness = KedaHarness(2, rule="queue", start_up_ms=600_000)
    harness.sync({})
    harness.planner.apply_settings(KedaKnobs("tokens"))
    history = harness.planner.histories["p"]
    assert (history.recommendations.window_ms, history.counts.window_ms) == (299_999, 299_999)
    assert harness.planner.next_wake() == 0
