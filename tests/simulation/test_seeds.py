"""The set that CI plays: a hundred seeds, half an hour each, with faults; and the seeds that once broke something."""

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from loadline.sim.chaos import saved_plan as kept
from loadline.sim.chaos.faults import FAULTS
from loadline.sim.chaos.plan import FAULT_KINDS
from loadline.sim.chaos.runner import ChaosResult, run_plan
from tests.simulation.mutation_runs import CI_SEEDS

CHUNK = 10
HOURS = 0.5
"""Of each seed: a hundred whole hours took six minutes of two cores, and more seeds find more than longer ones."""
SEEDS = Path(__file__).parent / "seeds"
KEPT = sorted(SEEDS.glob("*.json"))

Plays = dict[int, Future[ChaosResult]]


@pytest.fixture(scope="module")
def plays() -> Iterator[Plays]:
    """All plays, under way in processes of their own."""
    jobs = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield {seed: pool.submit(run_plan, seed, HOURS) for seed in CI_SEEDS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("first", CI_SEEDS[::CHUNK])
def test_no_invariant_breaks(first: int, plays: Plays) -> None:
    for seed in range(first, first + CHUNK):
        verdict = plays[seed].result()
        assert verdict.violation is None, (
            f"{verdict.violation}\n  reproduce: python tools/chaos.py --seeds {seed} --hours {HOURS}"
        )
        assert verdict.hours == HOURS


def test_much_happens_in_these_hours(plays: Plays) -> None:
    verdicts = [plays[seed].result() for seed in CI_SEEDS]
    struck = {kind for verdict in verdicts for kind in verdict.injected}
    assert struck == set(FAULT_KINDS) == set(FAULTS)
    total = Counter[str]()
    for verdict in verdicts:
        total.update(verdict.counts)
    least = {"decisions": 1_500, "lives": 250, "SendDrain": 500, "samples_replayed": 50, "RevokeWorkerLease": 5}
    least |= {"requests": 150_000, "restarted": 5_000, "migrations switched": 7_000, "migrations aborted": 2_000}
    assert {what: total[what] for what in least if total[what] < least[what]} == {}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_was_mended_stays_mended(path: Path) -> None:
    plan = kept.read(path).plan
    assert run_plan(plan.seed, plan=plan).violation is None
