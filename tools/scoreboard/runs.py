"""Execution of the runs of the scoreboard, in a pool of processes."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from loadline.adapters.parent_death import set_death_signal
from loadline.core.state.settings import Settings
from loadline.sim.compare.baselines import baseline, peak_replicas
from loadline.sim.compare.bounds import work_bound
from loadline.sim.fleet import SimulatedFleetKnobs, model_of, objectives_of, pools_of
from loadline.sim.simulation import Scenario, simulate
from loadline.traces import Trace
from tools.scoreboard.cases import Run, kind_of
from tools.scoreboard.fleets import FLEETS, Arrangement, settings, simulated
from tools.scoreboard.results import RunResult
from tools.scoreboard.traces import TraceWindow, scale_for

FIRST_S = 300.0
"""Part of the trace that the fleet is sized for when it begins, by the rule of static peak."""
_PERCENT = 100.0


class Job(Struct, frozen=True):
    """A run that is to be done."""

    key: str
    run: Run
    window: TraceWindow


def run_all(
    jobs: Sequence[Job], processes: int, on_result: Callable[[RunResult], None]
) -> list[tuple[str, BaseException]]:
    """Do all jobs, and pass on each result when it is there; return the names and errors of those that failed."""
    failed: list[tuple[str, BaseException]] = []
    # Spawned, since a fork of a process with threads, as numpy starts, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_end_at_once, initargs=(os.getpid(),)) as pool:
        futures: dict[Future[RunResult], Job] = {pool.submit(execute, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    on_result(future.result())
                else:
                    failed.append((futures[future].run.name, error))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _end_at_once(parent: int) -> None:
    """End this process at once by Ctrl-C, which goes to the whole group, and with its parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    set_death_signal(parent)


def execute(job: Job) -> RunResult:
    """Simulate one run."""
    began = time.monotonic()
    run, case = job.run, job.run.case
    scale = _scale(job.window, case.fleet, case.arrangement)
    trace = _trace(job.window, scale, run.seed)
    ours, fleet = _setup(case.fleet, case.arrangement, case.start_up_s, trace, run)
    model = model_of(fleet, ours)
    scenario = Scenario(run.name, ours, fleet, trace, run.seed, clairvoyant=kind_of(run.policy) == "reference")
    outcome = simulate(scenario, lambda _done: None)
    met = outcome.attainment
    return RunResult(
        key=job.key,
        name=run.name,
        scale=scale,
        requests=outcome.requests,
        ttft_met=met.ttft,
        itl_met=met.itl,
        both_met=met.both,
        gpu_hours=outcome.gpu_hours,
        work_bound_gpu_hours=work_bound(trace, pools_of(fleet, model), objectives_of(fleet, model)).gpu_hours,
        actions=outcome.scaling_actions,
        flaps=outcome.flaps,
        took_s=round(time.monotonic() - began, 1),
    )


def _setup(
    fleet: str, arrangement: Arrangement, start_up_s: float, trace: Trace, run: Run
) -> tuple[Settings, SimulatedFleetKnobs]:
    """Return the settings of the policy, and the fleet with the workers that the first minutes need."""
    kind, is_baseline = FLEETS[fleet], kind_of(run.policy) == "baseline"
    planner = "static" if is_baseline else run.planner
    ours = settings(kind, arrangement, planner, run.case.attainment / _PERCENT)
    empty = simulated(kind, arrangement, start_up_s, {})
    model = model_of(empty, ours)
    first = replace(trace, arrivals=[one for one in trace.arrivals if one.arrival_s < FIRST_S])
    workers = peak_replicas(pools_of(empty, model), model, first, objectives_of(empty, model))
    described = simulated(kind, arrangement, start_up_s, workers)
    return (baseline(run.policy, ours, described, trace) if is_baseline else ours), described


@lru_cache(maxsize=64)
def _scale(window: TraceWindow, fleet: str, arrangement: Arrangement) -> float:
    ours = settings(FLEETS[fleet], arrangement, "static", 1.0)
    described = simulated(FLEETS[fleet], arrangement, 0.0, {})
    return scale_for(window, described, model_of(described, ours))


@lru_cache(maxsize=2)
def _trace(window: TraceWindow, scale: float, seed: int) -> Trace:
    return window.read(scale, seed)
