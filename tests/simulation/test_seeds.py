"""Fault simulation of a hundred seeds, 18 minutes each, and of saved plans that once violated an invariant."""

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from loadline.sim.chaos import saved_plan
from loadline.sim.chaos.faults import FAULTS
from loadline.sim.chaos.plan import FAULT_KINDS
from loadline.sim.chaos.runner import ChaosResult, run_plan
from tests.simulation.mutation_runs import CI_HOURS, CI_SEEDS

CHUNK = 10
SEEDS = Path(__file__).parent / "seeds"
SAVED_PLANS = sorted(SEEDS.glob("*.json"))

Runs = dict[int, Future[ChaosResult]]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """Run all seeds in processes of their own."""
    beside_others = "PYTEST_XDIST_WORKER" in os.environ
    jobs = 1 if beside_others else len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield {seed: pool.submit(run_plan, seed, CI_HOURS) for seed in CI_SEEDS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("first", CI_SEEDS[::CHUNK])
def test_no_seed_violates_an_invariant(first: int, runs: Runs) -> None:
    for seed in range(first, first + CHUNK):
        result = runs[seed].result()
        assert result.violation is None, (
            f"{result.violation}\n  reproduce: python tools/chaos.py --seeds {seed} --hours {CI_HOURS}"
        )
        assert result.hours == CI_HOURS


def test_the_runs_cover_all_faults_and_most_effects(runs: Runs) -> None:
    results = [runs[seed].result() for seed in CI_SEEDS]
    injected = {kind for result in results for kind in result.injected}
    assert injected == set(FAULT_KINDS) == set(FAULTS)
    total = Counter[str]()
    for result in results:
        total.update(result.counts)
    minimum = {"decisions": 1_000, "lives": 250, "SendDrain": 500, "samples_replayed": 10, "RemoveWorker": 5}
    minimum |= {"requests": 80_000, "restarted": 5_000, "migrations switched": 5_000, "migrations aborted": 2_000}
    minimum |= {"FitForecast": 2_500}
    assert {what: total[what] for what in minimum if total[what] < minimum[what]} == {}


@pytest.mark.parametrize("path", SAVED_PLANS, ids=lambda path: path.stem)
def test_a_saved_plan_violates_no_invariant(path: Path) -> None:
    plan = saved_plan.read(path).plan
    assert run_plan(plan.seed, plan=plan).violation is None
