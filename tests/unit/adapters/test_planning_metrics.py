"""Metrics of planning: events through a controller that leads, and a scrape of it."""

import pytest

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.planning.planners.auto import AutoPlanner
from loadline.core.planning.planners.hybrid import HybridKnobs
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.vocabulary.effects import FitForecast
from loadline.core.vocabulary.events import ForecastFitted, LeaseRenewalFailed, PausesRead, TrafficReported
from loadline.core.vocabulary.forecasts import Forecast
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.controller_world import ControllerWorld
from tests.support.exposed import exposed

ENGINE = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=1e6, max_batch_requests=1_000))
"""A prompt of 500 tokens takes 10 ms; a decode iteration takes 10 ms and 0.08 ms for each request of the batch."""
INTERVAL_S = 60
START_UP_S = 20
SIZED = {"throughput_adjustment_interval_ms": INTERVAL_S * 1_000, "start_up_ms": START_UP_S * 1_000}


class Serving(ControllerWorld):
    """A prefill and a decode pool of two workers each, with a frontend; forecasts are given by the test."""

    def __init__(self, planner: str, knobs: object = None, forecast: float = 0.0) -> None:
        super().__init__(planner=planner, planner_knobs={} if knobs is None else {planner: knobs})
        self.forecast = forecast
        for pool in self.controller.state.fleet.models["m"].pools.values():
            pool.engine = ENGINE
        self.boot()

    def serve(self, requests_per_s: int, seconds: int, **figures: float) -> None:
        """Report traffic and workers; answer forecast requests with ``forecast`` requests/s."""
        values = {"isl_tokens": 500.0, "osl_tokens": 100.0, "ttft_ms": 40.0, "itl_ms": 15.0} | figures
        for _ in range(seconds):
            self.now += 1_000
            self.sequence += 1
            sample = TrafficSample(self.sequence, 1_000, requests_per_s, requests_per_s, **values)  # type: ignore[arg-type]
            effects = [*self.handle(TrafficReported("m", "f", 1, sample)), *self.report()]
            self.handle(*(self._answer(effect) for effect in effects if isinstance(effect, FitForecast)))

    def _answer(self, asked: FitForecast) -> ForecastFitted:
        means = (self.forecast * INTERVAL_S, 500.0, 100.0)
        return ForecastFitted("m", asked.request, [Forecast((mean,) * 3, (mean,) * 3, "constant") for mean in means])

    def scraped(self, name: str) -> dict[str, float]:
        return exposed(self.controller, self.now, name)


def test_a_forecast_is_exposed_next_to_what_came() -> None:
    world = Serving("queueing", QueueingKnobs(**SIZED), forecast=30.0)  # type: ignore[arg-type]
    world.serve(20, INTERVAL_S + 2)
    found = world.scraped("loadline_forecast")
    assert found["loadline_forecast_requests_per_second m"] == 30.0
    assert found["loadline_forecast_lead_seconds m"] == START_UP_S
    assert "loadline_forecast_due_requests_per_second m" not in found, "its time has not come"
    assert found["loadline_forecast_error_requests_total m"] == 0.0
    world.serve(20, INTERVAL_S)
    found = world.scraped("loadline_forecast")
    assert found["loadline_forecast_due_requests_per_second m"] == 30.0
    assert found["loadline_forecast_observed_requests_per_second m"] == pytest.approx(20.0)
    assert found["loadline_forecast_error_requests_total m"] == pytest.approx(10.0 * INTERVAL_S)
    assert found["loadline_forecast_observed_requests_total m"] == pytest.approx(20.0 * INTERVAL_S)


@pytest.mark.parametrize("planner", ["queueing", "hybrid"])
def test_the_queueing_model_exposes_what_it_predicts_and_what_a_worker_serves(planner: str) -> None:
    knobs = QueueingKnobs(**SIZED)  # type: ignore[arg-type]
    world = Serving(planner, knobs if planner == "queueing" else HybridKnobs(queueing=knobs), forecast=50.0)
    world.serve(50, INTERVAL_S + 2)
    found = world.scraped("loadline_predicted") | world.scraped("loadline_worker_capacity")
    # Half of 50 prompts/s of 10 ms each keep a prefill worker busy for a quarter of the time.
    assert found["loadline_predicted_utilisation_ratio m prefill prefill"] == pytest.approx(0.25, rel=0.1)
    assert 0.010 < found["loadline_predicted_ttft_seconds m prefill prefill"] < 0.025
    # 25 requests/s of 100 tokens in about 13 ms each are a batch of 32: 10 + 0.08 * 32 ms.
    assert found["loadline_predicted_itl_seconds m decode decode"] == pytest.approx(0.0127, rel=0.05)
    assert "loadline_predicted_itl_seconds m prefill prefill" not in found
    assert found["loadline_worker_capacity_requests_per_second m prefill prefill"] > 50.0


def test_a_higher_load_is_predicted_before_workers_start() -> None:
    world = Serving("queueing", QueueingKnobs(**SIZED), forecast=150.0)  # type: ignore[arg-type]
    world.serve(50, INTERVAL_S + 2)
    found = world.scraped("loadline_predicted_utilisation")
    assert found["loadline_predicted_utilisation_ratio m prefill prefill"] == pytest.approx(0.75, rel=0.1)


def test_correction_factors_are_exposed_while_they_are_learned() -> None:
    plain = Serving("queueing", QueueingKnobs(**SIZED), forecast=20.0)  # type: ignore[arg-type]
    plain.serve(20, 3)
    assert plain.scraped("loadline_correction") == {}
    learning = Serving("queueing", QueueingKnobs(**SIZED, no_correction=False), forecast=20.0)  # type: ignore[arg-type]
    learning.serve(20, 3)
    factors = {"loadline_correction_factor m prefill": 1.0, "loadline_correction_factor m decode": 1.0}
    assert learning.scraped("loadline_correction") == factors
    learning.serve(20, 3 * INTERVAL_S)
    slower = learning.scraped("loadline_correction")
    assert slower["loadline_correction_factor m prefill"] > 1.5, "40 ms instead of 10 ms, half of the way at a time"


def test_auto_exposes_what_a_worker_serves() -> None:
    world = Serving("auto")
    world.serve(20, 3)
    found = world.scraped("loadline_worker_capacity")
    assert found["loadline_worker_capacity_requests_per_second m prefill prefill"] > 20.0, "by its profile"
    assert world.scraped("loadline_predicted") == {}
    assert world.scraped("loadline_forecast_requests")["loadline_forecast_requests_per_second m"] > 19.0


def test_what_a_limit_takes_of_a_recommendation_is_unmet() -> None:
    world = Serving("saturation")
    world.register("decode", *(f"d{number}" for number in range(3, 9)))
    world.run(30)
    assert set(world.scraped("loadline_unmet").values()) == {0.0}
    world.kv = 1.0
    world.run(30)
    unmet = world.scraped("loadline_unmet_replicas")
    assert [value for name, value in unmet.items() if " decode" in name] == [4.0], "12 needed, 8 allowed"
    assert "loadline_hold m decode replicas_max" in world.scraped("loadline_hold")


def test_holds_are_exposed_by_reason_and_only_by_the_leader() -> None:
    world = Serving("threshold")
    world.run(30)
    held = world.scraped("loadline_hold")
    assert held["loadline_hold m decode within_thresholds"] == 1.0
    assert not [name for name in held if name.startswith("loadline_hold m  ")]
    world.handle(PausesRead({"m": "ada"}))
    world.kv = 0.99
    world.run(5)
    assert "loadline_hold m  paused" in world.scraped("loadline_hold")
    world.handle(LeaseRenewalFailed("all", 77, lost=True))
    assert not world.controller.leading
    assert world.scraped("loadline_hold") == {}


def test_a_planner_that_cannot_estimate_leaves_the_other_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Serving("auto")
    world.serve(20, 3)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(AutoPlanner, "estimates", fails)
    found = world.scraped("loadline_")
    assert found["loadline_traffic_arrivals_total m"] == 60
    assert not [name for name in found if name.startswith("loadline_forecast_requests")]
