"""Planners continue with changed knobs and changed pools."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.controller import Controller
from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners import PLANNERS
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.planners.sla import SlaPlanner
from loadline.core.planning.planners.throughput import ThroughputPlanner
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import AnyEffect, FitForecast
from loadline.core.vocabulary.events import (
    AnyEvent,
    ForecastFitted,
    LoadReported,
    SettingsChanged,
    TrafficReported,
    WorkerRegistered,
)
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.samples import RegisteredWorker, TrafficSample, WorkerRecord, WorkerSample
from loadline.forecast import forecast
from tests.support.fleet_harness import START

ENGINE = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=1e6, max_batch_requests=1_000))
NAMES = ("first", "more", "other")
INTERVAL_MS, START_UP_MS = 30_000, 10_000
BY_TRAFFIC = [name for name, kind in PLANNERS.items() if kind.needs.traffic != "no"]


class Busy:
    """A controller with one model, whose pools have two workers each, under slowly rising traffic."""

    def __init__(self, planner: str, knobs: Any) -> None:
        model = ModelKnobs("m", (_pool("first"), _pool("more")), planner=planner, planner_knobs={planner: knobs})
        profiles = {"m": dict.fromkeys(NAMES, ENGINE)}
        self.controller = Controller(Settings("agent-1", "all", (model,), profiles=profiles))
        self.now, self.sequence = START, 0
        self.unanswered: list[AnyEvent] = []
        self.answering = True
        for name in NAMES:
            for worker in ("a", "b"):
                record = WorkerRecord("m", name, worker, "aggregated", 1)
                self.handle(WorkerRegistered(RegisteredWorker(record, 5)))

    @property
    def planner(self) -> Any:
        return self.controller._planners["m"]

    def handle(self, *events: AnyEvent) -> list[AnyEffect]:
        return self.controller.handle(events, self.now)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now, self.sequence = self.now + 1_000, self.sequence + 1
            effects = self.handle(
                self._traffic(), *(self._load(pool, worker) for pool in NAMES for worker in ("a", "b"))
            )
            for effect in effects:
                if isinstance(effect, FitForecast):
                    found = [forecast(question) for question in effect.queries]
                    self.unanswered.append(ForecastFitted("m", effect.request, found))
            if self.answering and self.unanswered:
                self.handle(*self.unanswered)
                self.unanswered.clear()

    def change(self, **knobs: Any) -> None:
        settings = self.controller.settings
        settings = replace(settings, models=(replace(settings.models[0], **knobs),))
        self.handle(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings))))

    def _traffic(self) -> TrafficReported:
        arrivals = 100 + self.sequence
        sample = TrafficSample(self.sequence, 1_000, arrivals, arrivals, isl_tokens=500.0, osl_tokens=100.0)
        return TrafficReported("m", "f", 1, sample)

    def _load(self, pool: str, worker: str) -> LoadReported:
        blocks = 500 + self.sequence % 7 * 10
        sample = WorkerSample(
            self.sequence,
            0,
            kv_usage_ratio=0.5,
            kv_blocks_used=blocks,
            waiting_requests=1,
            running_requests=9,
            queued_prefill_tokens=blocks,
            isl_tokens=500.0,
            ttft_ms=10.0 + 0.02 * blocks,
            itl_ms=10.0 + 0.05 * blocks,
        )
        return LoadReported("m", pool, worker, 1, [sample])


def _pool(name: str) -> PoolKnobs:
    return PoolKnobs(name, "aggregated", replicas_max=20)


def _knobs(name: str) -> Any:
    """Return knobs with short intervals, each with several evaluations."""
    return _changed(PLANNERS[name].Knobs(), _shorter)


def _shorter(key: str, value: Any) -> Any:
    return {"throughput_adjustment_interval_ms": INTERVAL_MS, "start_up_ms": START_UP_MS}.get(key, value)


def _changed(knobs: Any, change: Any) -> Any:
    """Apply a function to all values of knobs, nested ones included."""
    values = {one.name: getattr(knobs, one.name) for one in msgspec.structs.fields(knobs)}
    return replace(
        knobs,
        **{
            key: _changed(value, change) if isinstance(value, msgspec.Struct) else change(key, value)
            for key, value in values.items()
        },
    )


def _longer(key: str, value: Any) -> Any:
    """Make a duration a quarter longer."""
    return value * 5 // 4 if key.endswith("_ms") and isinstance(value, int) else value


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_a_planner_continues_with_changed_pools_and_knobs(name: str) -> None:
    shorter, longer = _knobs(name), _changed(_knobs(name), _longer)
    busy = Busy(name, shorter)
    busy.run(65)
    for pools, knobs in (("more",), longer), (("other",), shorter), (NAMES, longer), (("first", "other"), shorter):
        busy.change(pools=tuple(map(_pool, pools)), planner_knobs={name: knobs})
        busy.run(15)
        (hold,) = (model.hold for model in busy.controller.state.fleet.models.values() if model.hold is not None)
        assert {reason.pool for recommendation in hold.recommendations for reason in recommendation.reasons} <= {
            "",
            *pools,
        }
        assert not _remembered(busy.planner) - set(pools)
        assert "planner_failures" not in busy.controller.state.counters, hold
        assert busy.planner.knobs == knobs


@pytest.mark.parametrize("name", sorted(set(BY_TRAFFIC) - {"auto", "hybrid"}))
def test_changed_intervals_clear_the_series_and_keep_the_sizes(name: str) -> None:
    busy = Busy(name, _knobs(name))
    busy.run(95)
    part = _sized(busy.planner)
    sized, request = dict(part.sizer.sizes.sized), part.demand.forecast.request
    assert sized
    assert request
    assert part.demand.intervals is not None
    assert len(part.demand.intervals.requests) >= 3
    busy.answering = False
    busy.run(28)
    busy.change(planner_knobs={name: _changed(_knobs(name), _longer)})
    assert part.demand.intervals.interval_ms == INTERVAL_MS * 5 // 4
    assert part.demand.intervals.requests == []
    assert part.sizer.sizes.sized.keys() == sized.keys()
    assert (part.demand.forecast.request >= request, part.demand.forecast.is_pending) == (True, False)
    busy.answering = True
    busy.run(80)
    assert len(part.demand.intervals.requests) == 2
    assert "planner_failures" not in busy.controller.state.counters


@pytest.mark.parametrize("name", sorted(BY_TRAFFIC))
def test_a_pool_added_between_two_forecasts_is_sized(name: str) -> None:
    busy = Busy(name, _knobs(name))
    busy.run(95)
    busy.change(pools=tuple(map(_pool, NAMES)))
    busy.run(25)
    assert "planner_failures" not in busy.controller.state.counters
    (hold,) = (model.hold for model in busy.controller.state.fleet.models.values() if model.hold is not None)
    assert not [
        r
        for recommendation in hold.recommendations
        for r in recommendation.reasons
        if r.code is ReasonCode.TRAFFIC_UNKNOWN
    ]


def test_changed_knobs_with_the_same_intervals_keep_the_series() -> None:
    busy = Busy("throughput", _knobs("throughput"))
    busy.run(35)
    before = list(busy.planner.demand.intervals.requests)
    busy.change(planner_knobs={"throughput": replace(_knobs("throughput"), busiest_ms=5_000, attainment=0.5)})
    assert busy.planner.demand.intervals.requests == before
    assert busy.planner.demand.intervals.busiest_ms == 5_000


@pytest.mark.parametrize("between", ["", "static"])
def test_a_forecast_for_an_earlier_planner_is_ignored(between: str) -> None:
    busy = Busy("sla", _knobs("sla"))
    busy.run(35)
    busy.answering = False
    busy.run(30)
    [late] = busy.unanswered
    if between:
        busy.change(planner=between)
        busy.run(5)
    busy.change(planner="throughput", planner_knobs={"throughput": _knobs("throughput")})
    busy.run(65)
    assert len(busy.unanswered) == 2, "the new planner has requested its own forecast"
    busy.handle(late)
    assert _sized(busy.planner).demand.forecast.is_pending
    busy.handle(busy.unanswered[1])
    assert not _sized(busy.planner).demand.forecast.is_pending


def _remembered(planner: Any) -> set[str]:
    """Return the pools for which a planner has state."""
    found: set[str] = set()
    if isinstance(planner, dict):
        found |= {key for key in planner if key in NAMES}
        inner = list(planner.values())
    elif isinstance(planner, msgspec.Struct):
        inner = [getattr(planner, name) for name in planner.__struct_fields__]
    else:
        inner = list(planner) if isinstance(planner, list | tuple) else []
    return found.union(*map(_remembered, inner))


def _sized(planner: Any) -> ThroughputPlanner | QueueingPlanner | SlaPlanner:
    assert isinstance(planner, ThroughputPlanner | QueueingPlanner | SlaPlanner)
    return planner
