"""Play seeds of the fault world: what breaks is printed with the command that plays it again, and can be cut down.

python tools/chaos.py --seeds 0:100 --jobs 2         a hundred seeds, an hour each
python tools/chaos.py --seeds 17:18 --shrink         cut what seed 17 breaks down to a short plan, and keep it
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

from loadline.errors import DataError
from loadline.sim.chaos import saved_plan as kept
from loadline.sim.chaos.plan import FaultPlan, draw
from loadline.sim.chaos.runner import ChaosResult, run_plan
from loadline.sim.chaos.shrink import Shrinker

SEEDS = Path(__file__).parent.parent / "tests" / "simulation" / "seeds"
SHOWN_EVERY_S = 10.0
HOURS_MAX = 1_000.0


def main() -> int:
    """Play what is asked for; 1 where something broke."""
    asked = _arguments()
    try:
        plan = kept.read(asked.plan).plan if asked.plan else None
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.monotonic()
    total: Counter[str] = Counter()
    broken: list[ChaosResult] = []
    hours, played, shown = 0.0, 0, began
    for verdict in [run_plan(plan.seed, plan=plan)] if plan else _play_all(asked.seeds, asked.hours, asked.jobs):
        played += 1
        hours += verdict.hours
        total.update(verdict.counts)
        if verdict.violation:
            broken.append(verdict)
            print(f"seed {verdict.seed}: {verdict.violation}\n  again: {_command(asked, verdict)}", flush=True)
        if time.monotonic() - shown > SHOWN_EVERY_S:
            shown = time.monotonic()
            print(f"... {played} seeds, {hours:.0f} h, {len(broken)} broken, {shown - began:.0f} s", flush=True)
        if asked.verbose:
            print(f"seed {verdict.seed}: {verdict.digest} {verdict.counts} {verdict.injected}", flush=True)
    took_s = time.monotonic() - began
    print(f"{played} seeds, {hours:.1f} simulated hours in {took_s:.0f} s: {len(broken)} broke an invariant")
    print(", ".join(f"{count} {what}" for what, count in total.most_common()))
    if asked.shrink:
        for verdict in broken:
            _shrink(plan or draw(verdict.seed, asked.hours), verdict)
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_span, default=range(100), metavar="FROM:TO", help="seeds to play, or one")
    parser.add_argument("--hours", type=_hours, default=1.0, help="simulated hours of each seed")
    parser.add_argument("--jobs", type=int, choices=range(1, 65), metavar="N", default=2, help="processes")
    parser.add_argument("--plan", type=Path, help="play a kept plan instead")
    parser.add_argument("--shrink", action="store_true", help="cut plans that break something down, and keep them")
    parser.add_argument("--verbose", action="store_true", help="say what happened in every play")
    return parser.parse_args()


def _span(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last) if colon else int(first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: write one, such as 17, or a span, such as 0:100")
    return seeds


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0.0 < hours <= HOURS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write hours, above 0 and at most {HOURS_MAX:g}")
    return hours


def _play_all(seeds: range, hours: float, jobs: int) -> Iterator[ChaosResult]:
    if jobs == 1:
        yield from (run_plan(seed, hours) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(run_plan, hours=hours), seeds)


def _command(asked: argparse.Namespace, verdict: ChaosResult) -> str:
    if asked.plan:
        return f"python tools/chaos.py --plan {asked.plan}"
    return f"python tools/chaos.py --seeds {verdict.seed} --hours {asked.hours:g}"


def _shrink(plan: FaultPlan, verdict: ChaosResult) -> None:
    violation = verdict.violation
    if violation is None:
        return
    shrinker = Shrinker(lambda tried: run_plan(tried.seed, plan=tried).violation, violation.name)
    short = shrinker.shrink(plan)
    path = SEEDS / f"{violation.name.lower()}-{plan.seed}.json"
    kept.write(kept.SavedPlan(violation.name, violation.detail, short), path)
    print(f"{len(plan.faults)} faults cut to {len(short.faults)} in {shrinker.tries} plays: {path}")


if __name__ == "__main__":
    sys.exit(main())
