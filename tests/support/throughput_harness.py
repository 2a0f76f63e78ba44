"""Throughput planner with pools of two roles and a frontend."""

from typing import Any

from msgspec.structs import replace

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.throughput import ThroughputPlanner
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.vocabulary.events import ForecastFitted, TrafficReported
from loadline.core.vocabulary.forecasts import Forecast, ForecastKnobs
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.fleet_harness import FleetHarness

# A prompt of 500 tokens takes 10 ms; 500 requests decode in 50 ms: a worker serves 100 requests a second.
ENGINE = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=1e6, max_batch_requests=1_000))
KNOBS = ThroughputKnobs(attainment=0.0, replicas_step_max=3, forecast=ForecastKnobs(predictor="constant"))


class ThroughputHarness:
    """Throughput planner with a fleet and a frontend."""

    def __init__(self, knobs: ThroughputKnobs = KNOBS, workers: int = 2) -> None:
        pools = [PoolKnobs("p", "prefill", replicas_max=50), PoolKnobs("d", "decode", replicas_max=50)]
        self.world = FleetHarness(pools, workers)
        for pool in self.world.model.pools.values():
            pool.engine, pool.decided = ENGINE, workers
        self.planner = ThroughputPlanner(knobs)
        self.sequence = 0
        self.questions = 0

    def report_traffic(
        self,
        requests_per_s: int,
        seconds: int = 1,
        frontend: str = "f",
        kv_hit_rate: float | None = None,
        **fields: Any,
    ) -> Recommendation:
        for _ in range(seconds):
            self.world.now += 1_000
            self.sequence += 1
            sample = TrafficSample(
                self.sequence,
                1_000,
                requests_per_s,
                requests_per_s,
                isl_tokens=500.0,
                kv_hit_rate=kv_hit_rate,
                osl_tokens=100.0,
            )
            sample = replace(sample, **fields)
            self.world.model.traffic.ingest(TrafficReported("m", frontend, 1, sample), self.world.now)
            recommendation = self.plan()
        return recommendation

    def plan(self) -> Recommendation:
        return self.planner.plan(self.world.refresh(), self.world.now)

    def answer_forecast(self, *requests: float, isl: float = 500.0, osl: float = 100.0) -> Recommendation:
        """Answer the requested forecast with these requests per interval; return the next recommendation."""
        forecast_request = self.planner.forecast_request()
        assert forecast_request is not None
        means = (requests, (isl,) * len(requests), (osl,) * len(requests))
        forecasts: list[Forecast | None] = [Forecast(mean, tuple(2 * x for x in mean), "constant") for mean in means]
        self.planner.ingest_forecast(ForecastFitted("m", forecast_request.request, forecasts))
        return self.plan()


def codes(recommendation: Recommendation) -> set[ReasonCode]:
    return {reason.code for reason in recommendation.reasons}
