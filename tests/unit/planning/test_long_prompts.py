"""Planner auto with a prefill pool whose prompts have very different lengths, so that they wait for each other."""

import random
import re

import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.planning.sizing.evidence.prompt_speed import PromptSpeed, service_ms
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import Histogram, TrafficSample, WorkerSample
from tests.support.fleet_harness import FleetHarness, reported
from tests.unit.planning.test_auto_planner import AutoWorld

MS_PER_TOKEN = 0.1
TTFT_MS = 500.0
BOUNDS = (250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000)
OBJECTIVES = ObjectiveKnobs(ttft_ms=TTFT_MS, itl_ms=50)


class LongPrompts(AutoWorld):
    """Prefill workers that compute one prompt after the other; a prompt goes to the worker with the least work."""

    def __init__(self, workers: int, *, median: float = 700.0, sigma: float = 1.2, has_histogram: bool = True) -> None:
        super().__init__(workers)
        self.fleet = FleetHarness([PoolKnobs("engine", "prefill", replicas_max=32)], workers)
        self.fleet.model.objectives = OBJECTIVES
        self.pool = self.fleet.pool("engine")
        self.pool.decided = workers
        self.median, self.sigma, self.slower, self.has_histogram = median, sigma, 1.0, has_histogram
        self.free_ms: dict[str, float] = {}
        self.late = self.feasible = 0
        self.lengths = random.Random(7)

    def _second(self, requests_per_s: float, *, frontend: bool) -> None:  # noqa: ARG002 - frontends always report
        world, arrivals = self.fleet, self._begin_second(requests_per_s)
        begin_ms = float(world.now - 1_000)
        self.free_ms = {name: self.free_ms.get(name, begin_ms) for name in self.pool.workers}
        tokens = [min(30_000.0, self.lengths.lognormvariate(0.0, self.sigma) * self.median) for _ in range(arrivals)]
        ttfts = []
        for at, isl in zip(sorted(self.lengths.uniform(0.0, 1_000.0) for _ in tokens), tokens, strict=True):
            worker = min(self.free_ms, key=lambda name: max(self.free_ms[name], begin_ms + at))
            alone_ms = self.slower * MS_PER_TOKEN * isl
            self.free_ms[worker] = max(self.free_ms[worker], begin_ms + at) + alone_ms
            ttfts.append(self.free_ms[worker] - begin_ms - at)
            self.feasible += alone_ms <= TTFT_MS
            self.late += alone_ms <= TTFT_MS < ttfts[-1]
        for worker, free_ms in self.free_ms.items():
            waiting = int(max(0.0, free_ms - world.now) / (self.slower * MS_PER_TOKEN * 1_500.0))
            one = WorkerSample(self.sequence, 0, kv_usage_ratio=0.0, waiting_requests=waiting, running_requests=0)
            world.fleet.ingest(reported(worker, one, pool="engine"), world.now)
        counts = [0] * (len(BOUNDS) + 1)
        for isl in tokens:
            counts[sum(isl > bound for bound in BOUNDS)] += 1
        mean_isl = sum(tokens) / arrivals if arrivals else None
        traffic = TrafficSample(
            self.sequence, 1_000, arrivals, arrivals, isl_tokens=mean_isl, osl_tokens=200.0 if arrivals else None,
            ttft_ms=sum(ttfts) / arrivals if arrivals else None, itl_ms=20.0 if arrivals else None,
            isl_histogram=Histogram(BOUNDS, tuple(counts)) if arrivals and self.has_histogram else None,
        )  # fmt: skip
        world.model.traffic.ingest(TrafficReported("m", "f", 1, traffic), world.now)
        self._end_second()

    def late_share(self) -> float:
        """Return the share of the prompts that could meet the objective and did not; begin to count anew."""
        share, self.late, self.feasible = self.late / max(1, self.feasible), 0, 0
        return share


@pytest.mark.parametrize("requests_per_s", [2.0, 4.0])
def test_a_light_load_of_long_prompts_keeps_one_or_two_workers(requests_per_s: float) -> None:
    """One worker, which is busy for a fifth of the time, lets 7 % of the prompts wait too long; three gain nothing."""
    world = LongPrompts(2)
    world.run(requests_per_s, 900)
    world.late_share()
    world.run(requests_per_s, 2_400)
    settled = world.counts[900:]
    assert 1.5 <= sum(settled) / len(settled) <= 2.5
    assert max(settled) <= 4
    assert world.late_share() <= 0.03


@pytest.mark.parametrize("has_histogram", [True, False])
def test_the_estimate_names_the_time_of_prompts(*, has_histogram: bool) -> None:
    world, said = LongPrompts(2, median=500.0, sigma=1.5, has_histogram=has_histogram), set[str]()
    for _ in range(240):
        world.run(1.0, 10)
        said |= {one.basis for one in world.last.estimates if one.estimator == "fitted"}
    times = [int(one) for one in re.findall(r"as prompts take (\d+) ms per 1,000 tokens", "; ".join(said))]
    assert times
    assert 90 <= min(times) <= max(times) <= 115, "100 ms are right"


@pytest.mark.parametrize("has_histogram", [True, False])
@pytest.mark.parametrize(("median", "requests_per_s"), [(3_000.0, 4.0), (200.0, 40.0)])
def test_the_objective_counts_for_prompts_of_any_length(
    median: float, requests_per_s: float, *, has_histogram: bool
) -> None:
    """Prompts of 3,000 tokens take 0.3 s, so the objective leaves them 0.2 s to wait; those of 200 have 0.48 s."""
    world = LongPrompts(2, median=median, sigma=0.3, has_histogram=has_histogram)
    world.run(requests_per_s, 900)
    world.late_share()
    world.run(requests_per_s, 1_200)
    assert world.late_share() <= 0.05
    settled = world.counts[900:]
    computing = requests_per_s * median * 1.05 * MS_PER_TOKEN / 1_000.0
    assert sum(settled) / len(settled) <= 3.0 * computing + 1.0


@pytest.mark.parametrize(("median", "requests_per_s"), [(4_000.0, 8.0), (4_500.0, 1.0), (6_000.0, 0.5)])
def test_prompts_that_are_late_alone_do_not_keep_adding_workers(median: float, requests_per_s: float) -> None:
    """They take 0.4 s, 0.45 s and 0.6 s on an idle worker, and keep 3.2, 0.45 and 0.3 of one busy."""
    world = LongPrompts(4, median=median, sigma=0.1)
    world.run(requests_per_s, 1_800)
    computing = requests_per_s * median * MS_PER_TOKEN / 1_000.0
    assert max(world.counts) <= 3.0 * computing + 6.0
    assert max(world.counts[-600:]) <= 3.0 * computing + 3.0


def test_an_overload_after_a_light_load_is_served_by_enough_workers() -> None:
    """25 requests/s of 1,400 tokens take 3.5 workers."""
    world = LongPrompts(2)
    world.run(1.0, 1_500)
    world.run(25.0, 300)
    world.late_share()
    world.run(25.0, 600)
    assert world.target >= 5
    assert world.late_share() <= 0.05


@pytest.mark.parametrize("requests_per_s", [2.6, 4.0])
def test_a_worker_that_computes_half_as_fast_counts_as_such(requests_per_s: float) -> None:
    """1,000 requests later, as after a change of the engines: these take 0.75 and 1.15 of a worker."""
    world = LongPrompts(3)
    world.run(requests_per_s, 1_500)
    before = sum(world.counts[-600:])
    world.slower = 2.0
    world.run(requests_per_s, 2_400)
    assert sum(world.counts[-600:]) > before


def evidence(*points: tuple[float, float]) -> PoolEvidence:
    """Return evidence of prefill workers with a TTFT (ms) at each rate (prompt tokens/s)."""
    found = PoolEvidence()
    for rate, ttft_ms in points:
        found.ttft.add(rate, ttft_ms, 0.5 * ttft_ms, 0)
        found.speed.add(100, 1_000.0, 0.1, 0.0, 1)
    return found


def test_prompt_times_are_known_only_if_the_ttft_does_not_rise_with_the_load() -> None:
    rising = evidence((500.0, 110.0), (2_000.0, 150.0), (8_000.0, 900.0))
    assert rising.prompt_line(OBJECTIVES) is None
    by_chance = evidence((500.0, 900.0), (2_000.0, 150.0), (8_000.0, 160.0))
    line = by_chance.prompt_line(OBJECTIVES)
    assert line is not None
    assert line.at(1_000.0) == pytest.approx(100.0)
    assert PoolEvidence().prompt_line(OBJECTIVES) is None


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("utilisation", [0.0, 0.3, 0.8, 0.97])
def test_the_time_of_a_prompt_is_found_however_many_workers_share_the_wait(workers: int, utilisation: float) -> None:
    """One queue for all workers, exponential service times of 100 ms: Erlang's formula for the mean wait."""
    busy = workers * utilisation
    blocked = 1.0
    for n in range(1, workers + 1):
        blocked = busy * blocked / (n + busy * blocked)
    wait_ms = 100.0 * blocked / (1.0 - utilisation * (1.0 - blocked)) / (workers - busy)
    assert service_ms(100.0 + wait_ms, 10.0 * utilisation, workers) == pytest.approx(100.0, rel=0.03)


def test_recent_prompts_outweigh_older_ones_and_more_of_them_are_surer() -> None:
    speed = PromptSpeed()
    assert (speed.ms_per_token, speed.error) == (0.0, float("inf"))
    for _ in range(100):
        speed.add(100, 1_000.0, 0.1, 0.0, 1)
    assert 0.05 < speed.error < 0.08
    for _ in range(30):
        speed.add(100, 1_000.0, 0.2, 0.0, 1)
    assert speed.ms_per_token == pytest.approx(0.2, rel=0.05)


def test_a_wait_that_prompts_do_not_explain_hardly_changes_their_time() -> None:
    speed = PromptSpeed()
    for _ in range(20):
        speed.add(50, 1_000.0, 0.1, 0.0, 1)
    speed.add(50, 1_000.0, 9.0, 300.0, 8)
    assert speed.ms_per_token == pytest.approx(0.1, rel=0.1)
