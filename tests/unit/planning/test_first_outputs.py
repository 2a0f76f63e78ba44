"""Output of a request while the first ones complete: at first only the short ones do."""

import random
from collections.abc import Callable
from statistics import fmean, median

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.sizing.evidence.first_outputs import COMPLETED_MIN, FirstOutputs
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from tests.support.fleet_harness import FleetHarness, reported
from tests.unit.planning.test_auto_planner import AutoWorld

ITL_MS = 20.0
OSL = 250.0


class ColdStart:
    """An idle fleet to which requests come at a constant rate, with outputs of a distribution."""

    def __init__(self, output: Callable[[random.Random], float], role: str = "decode", seed: int = 1) -> None:
        self.fleet = FleetHarness([PoolKnobs("p", "aggregated" if role == "aggregated" else "decode")], 1)
        self.first, self.lengths = FirstOutputs(), Lengths()
        self.output, self.source = output, random.Random(seed)
        self.second, self.running = 0, list[tuple[float, float]]()
        """Time at which each running request ends, and its output."""

    def run(self, seconds: int, *, per_s: int = 10) -> None:
        for _ in range(seconds):
            self.second += 1
            for _ in range(per_s):
                osl = self.output(self.source)
                self.running.append((self.second + osl * ITL_MS / 1_000.0, osl))
            ended = [osl for at, osl in self.running if at <= self.second]
            self.running = [one for one in self.running if one[0] > self.second]
            self.fleet.report("p", running=len(self.running))
            sample = TrafficSample(
                self.second, 1_000, per_s, len(ended), isl_tokens=1_000.0, osl_tokens=fmean(ended) if ended else None,
                itl_ms=ITL_MS if ended else None,
            )  # fmt: skip
            interval = TrafficTotals().with_report(sample, 1_000)
            least = self.first.osl_tokens(self.fleet.refresh(), interval, 1_000 * self.second)
            self.lengths.add(interval, least)


def exponential(source: random.Random) -> float:
    return source.expovariate(1.0 / OSL)


@pytest.mark.parametrize("seconds", [10, 14, 18])
def test_the_output_is_known_long_before_those_that_completed_tell_it(seconds: int) -> None:
    worlds = [ColdStart(exponential, seed=seed) for seed in range(9)]
    for world in worlds:
        world.run(seconds)
    assert median(world.lengths.osl_tokens for world in worlds) == pytest.approx(OSL, rel=0.25)
    assert all(0.6 * OSL < world.lengths.osl_tokens < 1.7 * OSL for world in worlds)
    if seconds == 10:  # two durations of a request
        assert all(world.lengths.completed_osl_tokens < 0.75 * OSL for world in worlds)


def test_equal_outputs_are_exact_once_as_many_requests_complete_as_arrive() -> None:
    world = ColdStart(lambda _: OSL)
    world.run(30)
    assert world.lengths.osl_tokens == pytest.approx(OSL, rel=0.1)


@pytest.mark.parametrize("output", [exponential, lambda _: OSL])
def test_after_four_durations_the_requests_that_completed_count_alone(output: Callable[[random.Random], float]) -> None:
    world = ColdStart(output)
    world.run(15)
    assert not world.first.ended
    world.run(15)
    assert world.first.ended
    assert world.lengths.osl_tokens == world.lengths.completed_osl_tokens


def test_requests_of_an_aggregated_pool_may_wait_for_their_prompts_and_tell_nothing() -> None:
    world = ColdStart(exponential, role="aggregated")
    world.run(12)
    assert world.lengths.osl_tokens == world.lengths.completed_osl_tokens


def test_a_few_completed_requests_tell_nothing() -> None:
    world = ColdStart(lambda _: OSL)
    world.run(9, per_s=4)
    assert 0 < world.first.total < COMPLETED_MIN
    assert world.lengths.osl_tokens == world.lengths.completed_osl_tokens


def test_a_fleet_that_served_before_has_no_first_outputs() -> None:
    world = ColdStart(exponential)
    world.run(60)
    world.first = FirstOutputs()
    world.run(1)
    assert world.first.ended


def test_no_traffic_begins_nothing() -> None:
    world = ColdStart(exponential)
    world.run(60, per_s=0)
    assert world.first.since_ms == -1
    world.run(10)
    assert world.lengths.osl_tokens == pytest.approx(OSL, rel=0.5)


def test_the_first_request_does_not_tell_the_mean_of_the_next_hundred() -> None:
    lengths = Lengths(are_early=True)
    for isl in [100.0, *[1_000.0] * 99]:
        lengths.add(TrafficTotals().with_report(TrafficSample(1, 1_000, 1, 0, isl_tokens=isl), 1_000))
    assert lengths.isl_tokens == pytest.approx(1_000.0, rel=0.05)


def test_a_successor_does_not_begin_with_first_outputs() -> None:
    world = AutoWorld(workers=2)
    world.run(20.0, 60)
    exported = world.planner.export_learned()
    assert exported is not None
    successor = AutoWorld(workers=2).planner
    assert not successor.first_outputs.ended
    successor.import_learned(exported)
    assert successor.first_outputs.ended
    assert successor.lengths.osl_tokens == pytest.approx(world.planner.lengths.osl_tokens)


def test_a_successor_continues_with_the_inferred_output() -> None:
    world = ColdStart(exponential)
    world.run(10)
    inherited = world.lengths.inherited()
    inherited.add(TrafficTotals().with_report(TrafficSample(1, 1_000, 10, 0, isl_tokens=1_000.0), 1_000))
    assert inherited.osl_tokens == world.lengths.osl_tokens > 1.5 * world.lengths.completed_osl_tokens


def test_evidence_of_an_earlier_version_keeps_its_lengths() -> None:
    world = AutoWorld(workers=2)
    world.run(20.0, 60)
    exported = world.planner.export_learned()
    assert exported is not None
    evidence = msgspec.json.decode(exported)
    for name in ("isl_requests", "osl_requests", "completed_osl_tokens"):
        del evidence["lengths"][name]
    successor = AutoWorld(workers=2).planner
    successor.import_learned(msgspec.json.encode(evidence))
    known = replace(successor.lengths)
    successor.lengths.add(TrafficTotals().with_report(TrafficSample(1, 1_000, 3, 0, isl_tokens=100.0), 1_000))
    assert successor.lengths.osl_tokens == known.osl_tokens > 0
    assert successor.lengths.isl_tokens == pytest.approx(known.isl_tokens, rel=0.05)


class ColdDecode(AutoWorld):
    """Decode workers with an ITL of 20 ms and caches for 30 requests, whose outputs vary."""

    def __init__(self, seed: int, output: Callable[[random.Random], float] = exponential) -> None:
        super().__init__(2, seed=seed)
        self.fleet = FleetHarness([PoolKnobs("engine", "decode", replicas_max=32)], 2)
        self.pool = self.fleet.pool("engine")
        self.pool.decided = 2
        self.running: list[tuple[int, int]] = []
        self.output = output

    def _second(self, requests_per_s: float, *, frontend: bool) -> None:
        arrivals, now = self._begin_second(requests_per_s), self.fleet.now
        for _ in range(arrivals):
            osl = 1 + round(self.output(self._source))
            self.running.append((now + round(osl * ITL_MS), osl))
        ended = [osl for at_ms, osl in self.running if at_ms <= now]
        self.running = [one for one in self.running if one[0] > now]
        batch = len(self.running) / self.pool.ready
        for worker in self.pool.workers:
            one = WorkerSample(
                self.sequence, 0, kv_usage_ratio=min(1.0, batch / 30), waiting_requests=0, running_requests=round(batch)
            )
            self.fleet.fleet.ingest(reported(worker, one, pool="engine"), now)
        sample = TrafficSample(
            self.sequence, 1_000, arrivals, len(ended), isl_tokens=1_000.0, osl_tokens=fmean(ended) if ended else None,
            ttft_ms=60.0 if ended else None, itl_ms=ITL_MS if ended else None,
        )  # fmt: skip
        if frontend:
            self.fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), now)
        self._end_second()


@pytest.mark.parametrize("seed", range(4))
def test_a_decode_pool_does_not_grow_beyond_its_need_while_only_short_requests_have_completed(seed: int) -> None:
    world = ColdDecode(seed)
    world.run(10.0, 90)
    assert max(world.counts) <= 4  # 50 requests run, and 26 fill a cache to 85 %


@pytest.mark.parametrize("seconds", [30, 300])
def test_time_without_frontends_is_no_time_that_the_completed_requests_ran(seconds: int) -> None:
    world = ColdDecode(0)
    world.run(10.0, 12)
    world.run(10.0, seconds, frontend=False)
    world.run(10.0, 20)
    assert max(world.counts) <= 4
    assert world.planner.lengths.osl_tokens < 2 * OSL


def test_reports_of_ten_seconds_tell_the_output_as_well() -> None:
    world, least = ColdStart(exponential), 0.0
    world.fleet.report("p", running=50)
    reports = {
        second: TrafficSample(1, 10_000, 100, completed, isl_tokens=1_000.0, osl_tokens=100.0, itl_ms=ITL_MS)
        for second, completed in ((10, 57), (20, 100))
    }
    for second in range(1, 21):
        report = reports.get(second)
        interval = TrafficTotals() if report is None else TrafficTotals().with_report(report, 10_000)
        least = world.first.osl_tokens(world.fleet.refresh(), interval, 1_000 * second)
    assert least == pytest.approx(OSL)


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_outputs_of_less_than_a_second_at_first_do_not_tell_what_a_worker_serves(seed: int) -> None:
    world = ColdDecode(
        seed, lambda source: source.lognormvariate(5.0, 1.0)
    )  # half of them are below 150, the mean is 245
    world.run(20.0, 60)
    assert max(world.counts) <= 8  # 98 requests run, and 26 fill a cache to 85 %


def test_equal_long_outputs_are_no_longer_than_the_time_since_the_first_arrival() -> None:
    world = ColdStart(lambda _: 2_000.0)
    world.run(60)  # a request takes 40 s
    assert world.lengths.osl_tokens < 1.5 * 2_000.0
