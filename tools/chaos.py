"""Run seeds of the fault simulation; print violations with the command that reproduces them, and shrink their plans.

python tools/chaos.py --seeds 0:100 --jobs 2         run 100 seeds of one hour
python tools/chaos.py --seeds 17:18 --shrink         shrink the failing plan of seed 17 and save it
python tools/chaos.py --plan tests/simulation/seeds/NAME.json
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from loadline.cli.progress import progress_display
from loadline.errors import DataError
from loadline.sim.chaos import saved_plan
from loadline.sim.chaos.plan import FaultPlan, draw
from loadline.sim.chaos.runner import ChaosResult, run_plan
from loadline.sim.chaos.shrink import Shrinker

SEEDS = Path(__file__).parent.parent / "tests" / "simulation" / "seeds"
HOURS_MAX = 1_000.0


def main() -> int:
    """Run the selected seeds or plan; return 1 on a violation."""
    options = _arguments()
    try:
        plan = saved_plan.read(options.plan).plan if options.plan else None
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.monotonic()
    total: Counter[str] = Counter()
    failed: list[ChaosResult] = []
    hours, done = 0.0, 0
    outcomes = [run_plan(plan.seed, plan=plan)] if plan else _run_all(options.seeds, options.hours, options.jobs)
    with progress_display("injecting faults", "seeds") as on_progress:
        for outcome in outcomes:
            done += 1
            on_progress(done, 1 if plan else len(options.seeds))
            hours += outcome.hours
            total.update(outcome.counts)
            if outcome.violation:
                failed.append(outcome)
                reproduce = _command(options, outcome)
                print(f"seed {outcome.seed}: {outcome.violation}\n  reproduce: {reproduce}", flush=True)
            if options.verbose:
                print(f"seed {outcome.seed}: {outcome.digest} {outcome.counts} {outcome.injected}", flush=True)
    took_s = time.monotonic() - began
    print(f"{done} seeds, {hours:.1f} simulated hours in {took_s:.0f} s: {len(failed)} violated an invariant")
    print(", ".join(f"{count} {name}" for name, count in total.most_common()))
    if options.shrink:
        for outcome in failed:
            _shrink(plan or draw(outcome.seed, options.hours), outcome)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_span, default=range(100), metavar="FROM:TO", help="range of seeds, or one")
    parser.add_argument("--hours", type=_hours, default=1.0, help="simulated hours per seed")
    parser.add_argument("--jobs", type=int, choices=range(1, 65), metavar="N", default=2, help="number of processes")
    parser.add_argument("--plan", type=Path, help="run a saved plan instead")
    parser.add_argument("--shrink", action="store_true", help="shrink failing plans and save them")
    parser.add_argument("--verbose", action="store_true", help="print the counts of every seed")
    return parser.parse_args()


def _span(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last) if colon else int(first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; write one such as 17, or a range such as 0:100")
    return seeds


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0.0 < hours <= HOURS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write hours above 0 and at most {HOURS_MAX:g}")
    return hours


def _run_all(seeds: range, hours: float, jobs: int) -> Iterator[ChaosResult]:
    if jobs == 1:
        yield from (run_plan(seed, hours) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(run_plan, hours=hours), seeds)


def _command(options: argparse.Namespace, outcome: ChaosResult) -> str:
    if options.plan:
        return f"python tools/chaos.py --plan {options.plan}"
    return f"python tools/chaos.py --seeds {outcome.seed} --hours {options.hours:g}"


def _shrink(plan: FaultPlan, outcome: ChaosResult) -> None:
    violation = outcome.violation
    if violation is None:
        return
    shrinker = Shrinker(lambda tried: run_plan(tried.seed, plan=tried).violation, violation.name)
    short = shrinker.shrink(plan)
    path = SEEDS / f"{violation.name.lower()}-{plan.seed}.json"
    saved_plan.write(saved_plan.SavedPlan(violation.name, violation.detail, short), path)
    print(f"{len(plan.faults)} faults shrunk to {len(short.faults)} in {shrinker.tries} runs: {path}")


if __name__ == "__main__":
    sys.exit(main())
