"""Forecast requests of planners and their answers, over turns and effects."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import field

from loadline.core.controller import Controller
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning import planners
from loadline.core.planning.encode_pools import EncodePools
from loadline.core.planning.planner import ForecastRequest, Planner
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.effects import AnyEffect, FitForecast
from loadline.core.vocabulary.events import AnyEvent, ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import Fallback, Forecast, ForecastQuery, Series
from loadline.core.vocabulary.reasons import Recommendation
from loadline.sim.world.agent import NullLog
from loadline.sim.world.fitter import InlineFitter
from tests.support.fleet_harness import START, settings_of
from tests.support.memory import effect_runner

QUERY = ForecastQuery(Series((1.0, 2.0, 3.0), 60_000), 2)


class RequestingPlanner(Planner):
    """Planner that requests one forecast per turn and records all answers."""

    answers: list[ForecastFitted | ForecastFailed] = field(default_factory=list)
    request: int = 0

    def plan(self, model: Model, now: int) -> Recommendation:
        del model, now
        return Recommendation("curious", {}, (), {})

    def next_wake(self) -> int:
        return START + 1_000_000

    def forecast_request(self) -> ForecastRequest | None:
        self.request += 1
        return ForecastRequest(self.request, [QUERY])

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        self.answers.append(answer)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setitem(planners.PLANNERS, "static", RequestingPlanner)
    return Controller(
        settings_of(ModelKnobs("m", (PoolKnobs("p", "decode"), PoolKnobs("e", "encode")), planner="static"))
    )


def planner(controller: Controller) -> RequestingPlanner:
    found = controller._planners["m"]
    assert isinstance(found, RequestingPlanner)
    return found


def fits(effects: list[AnyEffect]) -> list[FitForecast]:
    return [effect for effect in effects if isinstance(effect, FitForecast)]


def test_a_follower_requests_forecasts_too(controller: Controller) -> None:
    assert fits(controller.handle([], START)) == [FitForecast("m", 1, [QUERY])]
    assert fits(controller.handle([], START + 1)) == [], "the model is not due"


def test_only_the_answer_to_the_pending_request_has_its_model_planned(controller: Controller) -> None:
    controller.handle([], START)
    answer = ForecastFitted("m", 1, [None])
    assert len(fits(controller.handle([answer, ForecastFitted("n", 1, [])], START + 1))) == 1
    failed = ForecastFailed("m", 2, "gone")
    controller.handle([failed], START + 2)
    assert planner(controller).answers == [answer, failed]
    assert controller.state.counters["forecasts_failed"] == 1


@pytest.mark.parametrize(
    ("fallback", "counted"),
    [("", 0), ("flat", 0), ("points", 0), ("failed", 1), ("absurd", 1), ("late", 1), ("away", 1)],
)
def test_an_answer_with_a_failed_fit_is_counted_once(controller: Controller, fallback: Fallback, counted: int) -> None:
    """The child that fits is late or away, and the adapter answers with the last value."""
    controller.handle([], START)
    last = Forecast((3.0,), (3.0,), "constant", fallback)
    controller.handle([ForecastFitted("m", 1, [Forecast((3.0,), (3.0,), "kalman"), last, last])], START + 1)
    assert controller.state.counters.get("forecasts_failed", 0) == counted


def test_a_request_survives_a_fault_in_its_turn(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner waits for the answer to its request, and makes no other meanwhile."""

    def fault(*_arguments: object) -> Recommendation:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(EncodePools, "add_to", fault)
        assert fits(controller.handle([], START)) == []
    assert controller.state.counters["planner_failures"] == 1
    assert fits(controller.handle([], START + 60_000)) == [FitForecast("m", 1, [QUERY])]


def test_a_performed_request_is_answered_by_a_forecast() -> None:
    put: list[AnyEvent] = []
    asyncio.run(effect_runner(put.append, log=SilentLog()).perform(FitForecast("m", 7, [QUERY, QUERY])))
    (event,) = put
    assert isinstance(event, ForecastFitted)
    assert (event.model, event.request, len(event.forecasts)) == ("m", 7, 2)
    assert msgspec.json.decode(msgspec.json.encode(event), type=AnyEvent) == event


class BrokenPredictor(InlineFitter):
    """Predictor that raises an undocumented exception."""

    async def fit(self, query: ForecastQuery, deadline_s: float) -> Forecast | None:
        raise RuntimeError(f"{query.horizon} {deadline_s}")


class SilentLog(NullLog):
    """Log that discards exceptions."""

    def exception(self, event: str, **fields: Any) -> None:
        """Ignore the exception."""


def test_a_failed_fit_is_answered_by_a_failure() -> None:
    put: list[AnyEvent] = []
    asyncio.run(
        effect_runner(put.append, fitter=BrokenPredictor(), log=SilentLog()).perform(FitForecast("m", 7, [QUERY]))
    )
    (event,) = put
    assert isinstance(event, ForecastFailed)
    assert (event.model, event.request) == ("m", 7)
    assert "RuntimeError" in event.detail
