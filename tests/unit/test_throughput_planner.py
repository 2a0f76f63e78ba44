"""The throughput planner: when it looks, what it believes, and what it does not."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from loadline.core.belief.pool import PoolKnobs
from loadline.core.events import ForecastFailed, ForecastFitted, TrafficReported
from loadline.core.forecasts import Forecast, ForecastKnobs
from loadline.core.models.engine import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.observed import Histogram, TrafficSample
from loadline.core.planning.planners.throughput import ThroughputKnobs, ThroughputPlanner
from loadline.core.report import Code, Opinion
from tests.support.belief import Line

# A prompt of 500 tokens takes 10 ms; 500 requests decode in 50 ms: a worker serves 100 requests a second.
ENGINE = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=1e6, max_batch_requests=1_000))
KNOBS = ThroughputKnobs(attainment=0.0, replicas_step_max=3, forecast=ForecastKnobs(predictor="constant"))


class Desk:
    """A planner, a world and a frontend."""

    def __init__(self, knobs: ThroughputKnobs = KNOBS, workers: int = 2) -> None:
        pools = [PoolKnobs("p", "prefill", replicas_max=50), PoolKnobs("d", "decode", replicas_max=50)]
        self.world = Line(pools, workers)
        for pool in self.world.model.pools.values():
            pool.engine, pool.desired = ENGINE, workers
        self.planner = ThroughputPlanner(knobs)
        self.sequence = 0
        self.questions = 0

    def hear(
        self, requests_per_s: int, seconds: int = 1, frontend: str = "f", kv_hit_rate: float | None = None, **said: Any
    ) -> Opinion:
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
            sample = replace(sample, **said)
            self.world.model.traffic.apply(TrafficReported("m", frontend, 1, sample), self.world.now)
            opinion = self.look()
        return opinion

    def look(self) -> Opinion:
        return self.planner.plan(self.world.look(), self.world.now)

    def answer(self, *requests: float) -> Opinion:
        """The forecast of requests an interval, which was asked for just now."""
        asked = self.planner.asked()
        assert asked is not None
        means = (requests, (500.0,) * len(requests), (100.0,) * len(requests))
        forecasts: list[Forecast | None] = [Forecast(mean, tuple(2 * x for x in mean), "constant") for mean in means]
        self.planner.take(ForecastFitted("m", asked.request, forecasts))
        return self.look()


def codes(opinion: Opinion) -> set[Code]:
    return {reason.code for reason in opinion.reasons}


def test_it_starts_with_some_seconds_of_traffic_and_only_grows() -> None:
    desk = Desk()
    assert codes(desk.look()) == {Code.TRAFFIC_UNKNOWN}
    assert desk.hear(470, 8).targets == {}
    assert desk.hear(470, 2).targets == {"p": 5, "d": 5}
    quiet = Desk(workers=4)
    assert quiet.hear(90, 60).targets == {}, "what has just begun may be untypical"


def test_nothing_grows_for_a_peak_that_is_over_when_no_more_than_one_interval_is_known() -> None:
    desk = Desk()
    assert desk.hear(470, 100).targets == {"p": 5, "d": 5}, "and something else keeps them at two"
    assert desk.hear(20, 20).targets == {}
    desk.hear(20, 61)
    opinion = desk.answer(470 * 180.0)
    assert (opinion.targets, Code.PEAK_OVER in codes(opinion)) == ({}, True)
    assert desk.hear(300, 10).targets == {"p": 5, "d": 5}, "it may be no peak after all"
    desk.hear(300, 170)
    desk.answer(470 * 180.0)
    assert desk.hear(20, 20).targets == {"p": 5, "d": 5}, "of two intervals a forecast can be made"


def test_every_interval_it_asks_for_as_long_as_a_worker_takes_and_an_interval() -> None:
    desk = Desk()
    desk.hear(150, 179)
    assert desk.planner.asked() is None
    desk.hear(150, 2)
    asked = desk.planner.asked()
    assert asked is not None
    assert desk.planner.asked() is None, "once"
    requests, isl, osl = asked.questions
    assert requests.horizon == 2, "a minute to start, and three until the next look"
    assert requests.series.values == (150 * 180,)
    assert (isl.series.values, osl.series.values) == ((500.0,), (100.0,))


def test_it_is_ready_for_the_busiest_interval_ahead_but_moves_by_a_bounded_step() -> None:
    desk = Desk(workers=5)
    desk.hear(470, 181)
    assert desk.answer(470 * 180.0, 730 * 180.0).targets == {}
    assert desk.hear(470, 119).targets == {}, "workers that are asked for later come in time"
    assert desk.hear(470, 2).targets == {"p": 8, "d": 8}, "a minute to come, another until those of the next look do"
    desk = Desk(workers=2)
    desk.hear(150, 181)
    opinion = desk.answer(100 * 730 * 180.0)
    assert opinion.targets == {"p": 5, "d": 5}, "an absurd forecast costs three workers, not hundreds"
    assert desk.planner.outlook is not None


@pytest.mark.parametrize(("start_up_s", "every_s"), [(2, 10), (20, 20), (60, 60), (300, 180)])
def test_it_looks_as_often_as_workers_come(start_up_s: int, every_s: int) -> None:
    desk = Desk(ThroughputKnobs(attainment=0.0, start_up_ms=start_up_s * 1_000), workers=5)
    desk.hear(470, 181)
    desk.answer(*[470 * 180.0] * 4)
    looks = [desk.world.now]
    for _ in range(179):
        before = desk.planner.look_at_ms
        desk.hear(470)
        if desk.planner.look_at_ms != before:
            looks.append(desk.world.now)
    assert {after - before for before, after in pairwise([*looks, looks[0] + 180_000])} == {every_s * 1_000}


def test_an_absurd_forecast_is_one_step_however_often_it_is_looked_at() -> None:
    desk = Desk(replace(KNOBS, start_up_ms=10_000))
    desk.hear(150, 181)
    assert desk.answer(*[100 * 730 * 180.0] * 3).targets == {"p": 5, "d": 5}
    for pool in desk.world.model.pools.values():
        pool.set_desired(5, desk.world.now)
    assert desk.hear(150, 100).targets == {}, "nine looks later"
    desk.hear(700, 10)
    for pool in desk.world.model.pools.values():
        pool.set_desired(7, desk.world.now)
    assert desk.hear(700, 30).targets == {}, "what a surge has added stays"


def test_one_question_is_open_at_a_time_however_long_a_fit_takes() -> None:
    desk = Desk(workers=5)
    desk.hear(470, 181)
    first = desk.planner.asked()
    assert first is not None
    desk.hear(470, 360)
    assert desk.planner.asked() is None, "two more intervals are over, and the fit is not"
    desk.planner.take(ForecastFailed("m", first.request, "late"))
    desk.hear(470, 180)
    second = desk.planner.asked()
    assert second is not None
    assert (second.request, len(second.questions[0].series.values)) == (first.request + 1, 4)


def test_of_an_old_forecast_what_is_over_does_not_count() -> None:
    desk = Desk(workers=5)
    desk.hear(470, 181)
    first = desk.planner.asked()
    assert first is not None
    desk.hear(470, 190)
    means: list[Forecast | None] = [
        Forecast(tuple(means), tuple(means), "constant")
        for means in ((900 * 180.0, 600 * 180.0), (500.0, 400.0), (100.0, 90.0))
    ]
    desk.planner.take(ForecastFitted("m", first.request, means))
    desk.look()
    assert desk.planner.outlook is not None
    assert desk.planner.outlook.requests_per_s == pytest.approx(600)
    assert desk.planner.outlook.isl_tokens == 400


def test_the_upper_quantile_can_be_planned_for() -> None:
    desk = Desk(ThroughputKnobs(attainment=0.0, demand="upper"))
    desk.hear(150, 181)
    assert desk.answer(150 * 180.0).targets == {"p": 3, "d": 3}


def test_a_surge_is_answered_at_once_and_chance_is_not() -> None:
    desk = Desk()
    desk.hear(150, 181)
    desk.answer(150 * 180.0)
    assert desk.hear(155, 30).targets == {}
    found = desk.hear(400, 10)
    assert found.targets == {"p": 4, "d": 4}
    assert Code.TRAFFIC_SURGE in codes(found)


def test_what_prefix_caches_have_needs_no_prefill_workers_until_they_lose_it() -> None:
    desk = Desk()
    desk.hear(400, 181, kv_hit_rate=0.8)
    assert desk.answer(400 * 180.0).targets == {"p": 1, "d": 4}, "a fifth of 400 prompts a second is left to compute"
    assert desk.planner.inputs()["kv_hit_rate"] == pytest.approx(0.8)
    desk.hear(400, 20, kv_hit_rate=0.795)
    assert desk.planner.sized["p"].replicas == 1, "within chance"
    found = desk.hear(400, 10)
    assert found.targets == {"p": 4, "d": 4}
    assert Code.TRAFFIC_SURGE in codes(found)


def test_a_burst_that_no_cache_has_makes_an_interval_busy() -> None:
    desk = Desk()
    desk.hear(100, 100, kv_hit_rate=0.9)
    desk.hear(100, 30, kv_hit_rate=0.6)
    desk.hear(100, 51, kv_hit_rate=0.9)
    asked = desk.planner.asked()
    assert asked is not None
    work, mean = 40.0, (150 * 10 + 30 * 40) / 180
    assert asked.questions[0].series.values[-1] == pytest.approx(100 * 180 * work / mean, rel=0.02)


def test_idle_shrinks_and_silence_holds() -> None:
    desk = Desk(workers=4)
    desk.hear(0, 181)
    assert desk.answer(0.0).targets == {"p": 1, "d": 1}
    desk.world.now += 6_000
    opinion = desk.look()
    assert (opinion.targets, codes(opinion)) == ({}, {Code.TRAFFIC_UNKNOWN})


def test_an_interval_that_was_hardly_heard_is_unknown() -> None:
    desk = Desk()
    desk.hear(150, 60)
    desk.world.now += 121_000
    desk.look()
    asked = desk.planner.asked()
    assert asked is not None
    assert asked.questions[0].series.values == (None,)


def test_a_frontend_that_fell_silent_forbids_a_shrink() -> None:
    desk = Desk(workers=4)
    desk.hear(50, 150, "a")
    desk.hear(50, 31, "b")
    opinion = desk.answer(50 * 180.0)
    assert opinion.targets == {}
    assert Code.TRAFFIC_INCOMPLETE in codes(opinion)


def test_a_shrink_waits_as_long_as_workers_take_to_come() -> None:
    desk = Desk(workers=2)
    for pool in desk.world.model.pools.values():
        pool.set_desired(4, desk.world.now)
    desk.hear(50, 100)
    for name in ("p", "d"):
        desk.world.grow(name, 2)
    desk.hear(50, 81)
    assert desk.planner.start_up_ms == 100_000
    for pool in desk.world.model.pools.values():
        pool.grown_at_ms = desk.world.now - 50_000
    opinion = desk.answer(50 * 180.0)
    assert (opinion.targets, Code.ADJUSTMENT_INTERVAL in codes(opinion)) == ({}, True)
    assert desk.hear(50, 50).targets == {"p": 1, "d": 1}


def test_without_a_forecast_the_last_interval_stands_in() -> None:
    desk = Desk(workers=2)
    desk.hear(150, 181)
    asked = desk.planner.asked()
    assert asked is not None
    desk.planner.take(ForecastFailed("m", asked.request, "no fitter"))
    opinion = desk.look()
    assert Code.FORECAST_FALLBACK in codes(opinion)
    assert desk.planner.outlook is not None
    assert desk.planner.outlook.requests_per_s == pytest.approx(150)


def test_answers_that_nobody_waits_for_change_nothing() -> None:
    desk = Desk()
    desk.hear(150, 181)
    asked = desk.planner.asked()
    assert asked is not None
    before = desk.planner.outlook
    desk.planner.take(ForecastFitted("m", asked.request - 1, [None, None, None]))
    desk.planner.take(ForecastFailed("m", asked.request + 1))
    desk.look()
    assert desk.planner.outlook == before
    desk.planner.take(ForecastFitted("m", asked.request, []))
    desk.look()
    assert desk.planner.outlook is not None, "nonsense is no forecast: the last interval stands in"


def test_a_pool_without_a_profile_holds_and_the_other_goes_on() -> None:
    desk = Desk()
    desk.world.pool("p").engine = EngineProfile(problem="p.npz: not a profile. Profile again")
    opinion = desk.hear(470, 11)
    assert opinion.targets == {"d": 5}
    assert "p: the engine profile cannot be used: p.npz: not a profile. Profile again" in [
        reason.sentence() for reason in opinion.reasons
    ]


def test_an_objective_that_cannot_be_met_is_said_and_the_pools_grow_all_the_same() -> None:
    desk = Desk()
    desk.world.model.objectives = ObjectiveKnobs(ttft_ms=9.0, itl_ms=50.0)
    found = desk.hear(470, 10)
    assert found.targets == {"p": 5, "d": 5}
    assert Code.SLA_INFEASIBLE in codes(found)


def test_prompts_that_differ_in_length_are_no_surge_while_it_may_be_chance() -> None:
    # 160 prompts in 10 s, 40 % longer than usual: 2.2 times what counts alone would swing, 1.1 times what lengths do.
    bins = Histogram((500.0, 10_000.0), (15, 1, 0))
    for histogram, surge in ((bins, False), (None, True)):
        desk = Desk()
        desk.hear(16, 181, isl_tokens=500.0, isl_histogram=histogram)
        desk.answer(16 * 180.0)
        found = desk.hear(16, 10, isl_tokens=700.0, isl_histogram=histogram)
        assert desk.planner.outlook is not None
        assert (found.inputs["requests_per_s"] > 16.0) is surge


def test_long_prompts_are_work_for_prefill_and_one_request_each_for_decode() -> None:
    desk = Desk(workers=1)
    desk.hear(150, 120)
    desk.hear(150, 61, isl_tokens=2_000.0)
    opinion = desk.answer(297 * 180.0)
    assert opinion.targets == {"p": 3, "d": 2}, "150 prompts of 2,000 tokens a second count as 297 of the mean length"


def test_what_has_not_ended_yet_is_long() -> None:
    desk = Desk()
    desk.hear(470, 10, completed=235, osl_tokens=100.0, in_flight=2_350)
    assert desk.planner.outlook is not None
    assert desk.planner.outlook.osl_tokens == pytest.approx(200.0)
    found = desk.hear(470, 20, completed=400, osl_tokens=300.0, in_flight=3_750)
    assert found.targets["d"] == 17, "more of them ended, and later"
    assert desk.hear(470, 151, in_flight=3_750).targets["d"] == 17
    asked = desk.planner.asked()
    assert asked is not None
    (osl,) = asked.questions[2].series.values
    ended = 10 * 235 + 20 * 400 + 150 * 470
    assert osl == pytest.approx((235_000 + 2_400_000 + 7_050_000) / ended * (180 * 470) / ended, rel=0.01)


def test_most_unended_requests_are_not_believed_to_be_endless() -> None:
    desk = Desk()
    desk.hear(470, 10, completed=10, osl_tokens=100.0, queued=1_600, in_flight=3_000)
    assert desk.planner.outlook is not None
    assert desk.planner.outlook.osl_tokens == pytest.approx(200.0)


def test_cancelled_requests_do_not_make_outputs_longer() -> None:
    desk = Desk()
    for _ in range(181):
        desk.hear(100, completed=60, in_flight=90)
    asked = desk.planner.asked()
    assert asked is not None
    (osl,) = asked.questions[2].series.values
    assert osl == pytest.approx(100.0, rel=0.01), "40 % never end, but only 90 are still under way"


@pytest.mark.parametrize("workers", [0, 1])
def test_before_any_length_is_known_nothing_is_sized(workers: int) -> None:
    desk = Desk(workers=workers)
    for pool in desk.world.model.pools.values():
        pool.knobs = replace(pool.knobs, replicas_min=workers)
    found = desk.hear(20, 400, completed=0, osl_tokens=None)
    assert found.targets == {}, "a role without workers is woken whatever the planner"
    assert codes(found) == {Code.TRAFFIC_UNKNOWN}


def test_a_surge_of_long_prompts_asks_for_prefill_alone() -> None:
    desk = Desk(workers=2)
    desk.hear(150, 181)
    desk.answer(150 * 180.0)
    assert desk.hear(150, 12, isl_tokens=1_500.0).targets == {"p": 5}
    assert desk.hear(300, 12, isl_tokens=1_500.0).targets["d"] == 3, "more requests are a surge for both"


@pytest.mark.parametrize(("burst", "peak"), [(102, 1.016), (110, 1.055), (1_000, 1.018)])
def test_what_is_above_the_mean_by_chance_is_swing_and_a_burst_swings_by_itself(burst: int, peak: float) -> None:
    # By chance 3,300 requests in 30 s are at most 3 / sqrt(3,300) = 5 % above their mean, and 30,000 are 1.7 %.
    desk = Desk()
    desk.hear(100, 120)
    desk.hear(burst, 30)
    desk.hear(100, 31)
    desk.answer(burst * 180.0)
    assert desk.planner.outlook is not None
    assert desk.planner.outlook.decode_peak == pytest.approx(peak, abs=0.001)


@pytest.mark.parametrize(("window_ms", "requests_per_s"), [(60_000, 100.0), (600_000, (181 * 150 + 60 * 100) / 241)])
def test_what_has_arrived_in_the_window_of_traffic_is_expected_to_go_on(window_ms: int, requests_per_s: float) -> None:
    desk = Desk()
    desk.world.model.traffic.window_ms = window_ms
    desk.hear(150, 181)
    desk.hear(100, 60)
    desk.answer(100 * 180.0)
    assert desk.planner.outlook is not None
    assert desk.planner.outlook.requests_per_s == pytest.approx(requests_per_s, rel=0.01)
