"""Conditions of a model: status, reason, remedy and transition time."""

import pytest

from loadline.cli.explain_output import format_explanation
from loadline.cli.status_output import format_statuses
from loadline.core.controller import Controller
from loadline.core.decisions.leadership import LeadershipKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.conditions import conditions
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.queries import status as query
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.conditions import Condition
from loadline.core.vocabulary.effects import CommitDecision, ReadDecisions
from loadline.core.vocabulary.events import (
    AnyEvent,
    BusConnectionChanged,
    DecisionCommitted,
    DecisionsRead,
    LeadershipWon,
    LoadReported,
    PausesRead,
    RegistryRead,
    TrafficReported,
)
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.samples import RegisteredWorker, TrafficSample, WorkerRecord
from loadline.core.vocabulary.status import ModelStatus
from tests.support.controller_world import ControllerWorld, booted
from tests.support.fleet_harness import START, sample


def seen(world: ControllerWorld) -> dict[str, Condition]:
    status = query.status(world.settings, world.controller.state, "0", START, world.now)
    return {one.name: one for one in status.models[0].conditions}


def conditions_of(world: ControllerWorld) -> dict[str, tuple[bool, str]]:
    return {name: (one.status, one.reason) for name, one in seen(world).items()}


def test_all_conditions_are_true_for_a_model_that_reports_and_is_planned() -> None:
    world = booted()
    world.run(30)
    assert conditions_of(world) == {
        "MetricsAvailable": (True, "MetricsFound"),
        "OptimizationReady": (True, "OptimizationSucceeded"),
        "DemandWithinMaximum": (True, "WithinMaximum"),
    }
    metrics = seen(world)["MetricsAvailable"]
    assert metrics.message == "enough ready workers of every pool report"
    world.run(10)
    assert seen(world)["MetricsAvailable"].since_ms == metrics.since_ms < world.now - 10_000


def test_metrics_are_missing_before_the_first_report_and_stale_after_the_last() -> None:
    world = booted()
    world.run(10, only={"p1", "p2"})
    missing = seen(world)["MetricsAvailable"]
    assert (missing.status, missing.reason) == (False, "MetricsMissing")
    assert (
        "0 of 2 ready workers of pool decode report, and none has ever reported: check that they run" in missing.message
    )
    world.run(10)
    assert conditions_of(world)["MetricsAvailable"] == (True, "MetricsFound")
    fell_silent_at = world.now
    world.run(20, only={"p1", "p2"})
    stale = seen(world)["MetricsAvailable"]
    assert (stale.status, stale.reason) == (False, "MetricsStale")
    assert fell_silent_at < stale.since_ms <= fell_silent_at + 10_000
    assert conditions_of(world)["OptimizationReady"] == (False, "MetricsUnavailable")


def test_a_new_reason_with_the_same_status_keeps_the_transition_time() -> None:
    world = booted()
    world.run(10, only={"p1", "p2"})
    since_ms = seen(world)["MetricsAvailable"].since_ms
    world.report(only={"d1"})
    world.run(20, only={"p1", "p2"})
    stale = seen(world)["MetricsAvailable"]
    assert (stale.reason, stale.since_ms) == ("MetricsStale", since_ms)


def test_a_paused_model_is_skipped_even_without_a_change() -> None:
    world = booted()
    world.run(30)
    world.handle(PausesRead({"m": "ada"}))
    found = seen(world)["OptimizationReady"]
    assert (found.status, found.reason, found.since_ms) == (False, "SkippedProcessing", world.now)
    assert found.message == "the model is paused: resume it with `loadline resume MODEL`"
    world.handle(PausesRead({}))
    assert conditions_of(world)["OptimizationReady"] == (True, "OptimizationSucceeded")


def test_a_standby_reports_skipped_processing() -> None:
    world = ControllerWorld()
    world.controller.handle([RegistryRead([])], world.now)
    assert conditions_of(world)["OptimizationReady"] == (False, "SkippedProcessing")


def test_an_exception_of_the_planner_is_reported_as_failed_optimization(monkeypatch: pytest.MonkeyPatch) -> None:
    world = booted()
    world.run(30)

    def broken(*_: object) -> Recommendation:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(ThresholdPlanner, "plan", broken)
    world.run(1)
    found = seen(world)["OptimizationReady"]
    assert (found.status, found.reason) == (False, "OptimizationFailed")
    assert "ZeroDivisionError: of all things" in found.message


@pytest.mark.parametrize(
    ("limited", "code", "status", "reason"),
    [
        (False, ReasonCode.PROFILE_UNUSABLE, False, "InvalidConfiguration"),
        (False, ReasonCode.TRAFFIC_UNKNOWN, False, "MetricsUnavailable"),
        (False, ReasonCode.SATURATION_ALONE, True, "CapacityOnlyMode"),
        (False, ReasonCode.SATURATION_VETO, True, "CapacitySafetyOverride"),
        (True, ReasonCode.NO_DATA_NO_SHRINK, True, "CapacitySafetyOverride"),
        (True, ReasonCode.NOT_LEADER, False, "SkippedProcessing"),
        (True, ReasonCode.REPLICAS_MAX, True, "OptimizationSucceeded"),
        (True, ReasonCode.CAPACITY_LIMITED, False, "ResourceConstrained"),
        (True, ReasonCode.QUOTA_LIMITED, False, "ResourceConstrained"),
        (True, ReasonCode.GIVES_WAY, False, "ResourceConstrained"),
        (True, ReasonCode.GPUS_OCCUPIED, False, "ResourceConstrained"),
        (True, ReasonCode.GPU_BUDGET_MAX, False, "ResourceConstrained"),
        (True, ReasonCode.GPU_BUDGET_HOLD, False, "ResourceConstrained"),
        (True, ReasonCode.GPU_BUDGET_RECONCILE, False, "ResourceConstrained"),
        (True, ReasonCode.FLEET_GPU_BUDGET_MAX, False, "ResourceConstrained"),
    ],
)
def test_the_most_severe_reason_determines_the_condition(
    *, limited: bool, code: ReasonCode, status: bool, reason: str
) -> None:
    world = booted()
    model = world.controller.state.fleet.models["m"]
    numbers = dict.fromkeys(
        ("fresh", "ready", "saturation", "queueing", "limit", "free", "gpus", "budget", "allowed"), 1.0
    )
    found = Reason(code, "decode", numbers | {"wanted": 2.0})
    calm = Reason(ReasonCode.WITHIN_THRESHOLDS)
    recommendation = Recommendation("p", {}, (calm,) if limited else (calm, found), {})
    limits = [found] if limited else []
    fleet = world.settings.fleet
    ready = conditions(model, recommendation, limits, (), world.now, fleet=fleet, traffic="no", scales_to_zero=False)[1]
    assert (ready.name, ready.status, ready.reason) == ("OptimizationReady", status, reason)
    skipped = [Reason(ReasonCode.STOPPING), *limits]
    assert (
        conditions(model, recommendation, skipped, (), 0, fleet=fleet, traffic="no", scales_to_zero=False)[1].reason
        == "SkippedProcessing"
    )


def test_a_budget_that_prevents_a_shrink_is_not_a_shortage() -> None:
    world = booted()
    model = world.controller.state.fleet.models["m"]
    held = Reason.of(ReasonCode.GPU_BUDGET_HOLD, "decode", wanted=1, allowed=2, gpus=2)
    recommendation = Recommendation("p", {}, (Reason(ReasonCode.WITHIN_THRESHOLDS),), {})
    found = conditions(
        model, recommendation, [held], (), world.now, fleet=world.settings.fleet, traffic="no", scales_to_zero=False
    )
    assert found[1].reason == "OptimizationSucceeded"


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ((ReasonCode.SATURATION_ALONE, ReasonCode.TRAFFIC_UNKNOWN), "CapacityOnlyMode"),
        ((ReasonCode.SATURATION_ALONE, ReasonCode.PROFILE_UNUSABLE), "CapacityOnlyMode"),
        ((ReasonCode.QUEUEING_ALONE, ReasonCode.NO_DATA), "OptimizationSucceeded"),
        ((ReasonCode.NO_RECOMMENDATION, ReasonCode.NO_DATA, ReasonCode.TRAFFIC_UNKNOWN), "MetricsUnavailable"),
        ((ReasonCode.SATURATION_ALONE, ReasonCode.NO_RECOMMENDATION), "MetricsUnavailable"),
    ],
)
def test_missing_inputs_of_one_planner_are_no_failure_if_the_other_decides(
    codes: tuple[ReasonCode, ...], reason: str
) -> None:
    world = booted()
    model = world.controller.state.fleet.models["m"]
    numbers = dict.fromkeys(("fresh", "ready", "known", "saturation", "queueing"), 1.0)
    recommendation = Recommendation("hybrid", {}, tuple(Reason(code, "decode", numbers) for code in codes), {})
    found = conditions(
        model, recommendation, (), (), world.now, fleet=world.settings.fleet, traffic="required", scales_to_zero=False
    )
    assert found[1].reason == reason


def test_a_pool_with_target_zero_misses_no_metrics() -> None:
    world = ControllerWorld()
    model = world.controller.state.fleet.models["m"]
    recommendation = Recommendation("p", {}, (Reason(ReasonCode.NO_WORKERS, "decode"),), {})
    fleet = world.settings.fleet
    for pool in model.pools.values():
        pool.decided = 1
    lacking = conditions(model, recommendation, (), (), world.now, fleet=fleet, traffic="no", scales_to_zero=False)
    assert [one.reason for one in lacking[:2]] == ["MetricsMissing", "MetricsUnavailable"]
    for pool in model.pools.values():
        pool.decided = 0
    empty = conditions(model, recommendation, (), lacking, world.now, fleet=fleet, traffic="no", scales_to_zero=False)
    assert [one.reason for one in empty[:2]] == ["MetricsFound", "OptimizationSucceeded"]
    by_traffic = conditions(
        model, recommendation, (), (), world.now, fleet=fleet, traffic="required", scales_to_zero=False
    )
    assert by_traffic[0].message.startswith("no frontend reports traffic: check")


def test_auto_plans_without_frontends_but_misses_one_that_has_reported() -> None:
    world = booted(planner="auto")
    world.run(30)
    metrics = seen(world)["MetricsAvailable"]
    assert (metrics.status, metrics.reason) == (True, "MetricsFound")
    assert metrics.message.endswith("; no frontend has reported traffic, so objectives cannot be judged")
    assert conditions_of(world)["OptimizationReady"] == (True, "OptimizationSucceeded")
    world.handle(TrafficReported("m", "f", 1, TrafficSample(1, 1_000, 0)))
    assert seen(world)["MetricsAvailable"].message == "enough ready workers of every pool report"
    world.run(30)
    silent = seen(world)["MetricsAvailable"]
    assert (silent.status, silent.reason) == (False, "MetricsMissing"), "half of its evidence is gone"


class TwoModels:
    """Controller of two models, one of which becomes silent."""

    def __init__(self) -> None:
        pool = PoolKnobs("decode", "decode")
        self.settings = Settings(
            agent="a",
            scope="all",
            models=(
                ModelKnobs("loud", (pool,), planner="saturation"),
                ModelKnobs("mute", (pool,), planner="static", planner_knobs={"static": StaticKnobs({"decode": 1})}),
            ),
            leadership=LeadershipKnobs(lease_ttl_s=100_000),
        )
        self.controller = Controller(self.settings)
        self.now, self.sequence, self.revision = START, 0, 10
        workers = [
            RegisteredWorker(WorkerRecord(model, "decode", f"{model}-{n}", "decode", 1, "ready"), 5)
            for model in ("loud", "mute")
            for n in range(2)
        ]
        self.handle(BusConnectionChanged(connected=True), RegistryRead(workers))
        self.handle(LeadershipWon("all", 11, 77, START, 11))

    def handle(self, *events: AnyEvent) -> None:
        for effect in self.controller.handle(events, self.now):
            if isinstance(effect, ReadDecisions):
                self.handle(DecisionsRead(effect.request, [], self.revision))
            elif isinstance(effect, CommitDecision):
                self.revision += 1
                self.handle(DecisionCommitted(effect.decision.decision_id, effect.decision.model, self.revision))

    def run(self, seconds: int, *models: str) -> None:
        for _ in range(seconds):
            self.now += 1_000
            self.sequence += 1
            self.handle(
                *(
                    LoadReported(model, "decode", f"{model}-{n}", 1, [sample(self.sequence, 0.99)])
                    for model in models
                    for n in range(2)
                )
            )

    def model(self, name: str) -> ModelStatus:
        status = query.status(self.settings, self.controller.state, "0", START, self.now)
        return next(one for one in status.models if one.model == name)


def test_a_silent_model_keeps_its_counts_while_others_are_planned() -> None:
    fleet = TwoModels()
    fleet.run(4, "loud", "mute")  # no decision yet: the model would shrink to one, but not during warm-up
    fleet.run(600, "loud")
    mute, loud = fleet.model("mute"), fleet.model("loud")
    assert loud.pools[0].desired > 2
    assert (mute.settled, mute.pools[0].desired) == (True, 2)
    assert [one.reason for one in mute.conditions[:2]] == ["MetricsStale", "CapacitySafetyOverride"]
    assert loud.conditions[0].status is True


def test_a_condition_is_formatted_as_one_line() -> None:
    world = booted()
    world.run(30)
    world.handle(PausesRead({"m": "ada"}))
    status = query.status(world.settings, world.controller.state, "0", START, world.now)
    lines = format_statuses([status]).splitlines()
    found = [line.strip() for line in lines if "=True since" in line or "=False since" in line]
    assert found == [
        (
            "MetricsAvailable=True since 2023-11-14T22:13:21+00:00: MetricsFound: "
            "enough ready workers of every pool report"
        ),
        (
            "OptimizationReady=False since 2023-11-14T22:13:50+00:00: SkippedProcessing: the model is paused: "
            "resume it with `loadline resume MODEL`"
        ),
        (
            "DemandWithinMaximum=True since 2023-11-14T22:13:20+00:00: WithinMaximum: "
            "no pool needs more workers than its replicas_max"
        ),
    ]


def full_world() -> ControllerWorld:
    """Return a world in which the load of a decode pool needs more than its maximum of 8 workers."""
    world = booted(planner="saturation")
    world.register("decode", *(f"d{number}" for number in range(3, 9)))
    world.run(30)
    world.kv = 1.0
    world.run(30)
    return world


def test_a_demand_above_the_maximum_is_a_condition_until_it_ends() -> None:
    world = full_world()
    above = seen(world)["DemandWithinMaximum"]
    assert (above.status, above.reason) == (False, "AboveMaximum")
    # Eight workers at a KV usage of 1 are 10 at the threshold of 0.8, and 12 at 90 %.
    assert above.message == "pool decode needs 12 workers, replicas_max is 8: raise it if latency suffers"
    assert world.now - 30_000 < above.since_ms < world.now - 10_000
    assert conditions_of(world)["OptimizationReady"] == (True, "OptimizationSucceeded")
    world.run(20)
    assert seen(world)["DemandWithinMaximum"].since_ms == above.since_ms
    world.kv = 0.7
    world.run(20)
    assert conditions_of(world)["DemandWithinMaximum"] == (True, "WithinMaximum")


def test_a_hold_at_the_maximum_says_what_the_load_needs() -> None:
    world = full_world()
    status = query.status(world.settings, world.controller.state, "0", START, world.now)
    [model] = status.models
    assert {pool.pool: (pool.desired, pool.recommended) for pool in model.pools}["decode"] == (8, 12)
    assert "decode: 12 limited to replicas_max 8" in model.hold
    explained = "\n".join(format_explanation(one) for one in query.explain(world.controller.state, "", "m"))
    assert "the saturation planner recommends decode 12" in explained
    assert "decode 8 -> 8" in explained


def test_a_pool_above_a_lowered_maximum_is_above_it_until_it_has_shrunk() -> None:
    world = booted()
    model, fleet = world.controller.state.fleet.models["m"], world.settings.fleet
    recommendation = Recommendation("p", {}, (Reason(ReasonCode.WITHIN_THRESHOLDS),), {})
    model.pools["decode"].decided = 9
    found = conditions(model, recommendation, (), (), world.now, fleet=fleet, traffic="no", scales_to_zero=False)[2]
    assert (found.status, found.reason) == (False, "AboveMaximum")


@pytest.mark.parametrize("planner", ["threshold", "auto"])
def test_conditions_agree_with_the_missing_inputs_before_the_first_worker(planner: str) -> None:
    world = ControllerWorld(planner=planner)
    world.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    world.run(10)
    (model,) = query.status(world.settings, world.controller.state, "0", START, world.now).models
    assert "m: no worker of pool prefill is ready" in model.missing
    assert conditions_of(world)["MetricsAvailable"] == (False, "MetricsMissing")
    assert conditions_of(world)["OptimizationReady"][0] is False
