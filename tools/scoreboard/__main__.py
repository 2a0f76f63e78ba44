"""Run the scoreboard: every planner and baseline on every trace, fleet, arrangement, start-up time and objective.

make scoreboard                                  all of it, which takes many hours; what is done is kept
make scoreboard ARGS=--quick                     one case in a minute or two
make scoreboard TRACES=DIR                       the traces of a folder too
make scoreboard ONLY='*/70b/aggregated/20/95'    a part; its tables are printed, and no page is written by default
make scoreboard ARGS='--window-s 86400'          up to a day of each trace, not 40 minutes; printed, too

What a run depends on, the code of the simulation included, is part of its key: a changed planner runs again.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadline.cli.progress import progress_display
from loadline.errors import DataError
from loadline.report import plots
from tools.scoreboard.cases import Run, all_runs, is_selected
from tools.scoreboard.page import Board, page, plot
from tools.scoreboard.results import Keys, RunResult, append_result, read_results, shared_keys
from tools.scoreboard.runs import Job, run_all
from tools.scoreboard.scores import by_case, scores
from tools.scoreboard.traces import ROOT, TraceWindow, prepared, trace_files

WINDOW_S: Final = 2_400.0
_WINDOW_S_MIN: Final = 60.0
SEEDS: Final = 3
QUICK: Final = ("azure2023_conv/70b/aggregated/110/95",)
QUICK_WINDOW_S: Final = 600.0
QUICK_SEEDS: Final = 2
PAGE: Final = ROOT / "docs/explanation/scoreboard.md"
RESULTS: Final = ROOT / ".scoreboard/results.jsonl"
_STOPPED: Final = 130
_SEEDS_MAX: Final = 100
_JOBS_MAX: Final = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the selected runs that have no result yet, and write the page; return the exit code."""
    options = _options(arguments)
    seeds = QUICK_SEEDS if options.quick else options.seeds
    duration_s = options.window_s or (QUICK_WINDOW_S if options.quick else WINDOW_S)
    files, patterns = trace_files(options.traces), options.only.split() or (QUICK if options.quick else ())
    selected = [run for run in all_runs(list(files), seeds) if is_selected(run, patterns)]
    windows = _windows({name: files[name] for name in dict.fromkeys(run.case.trace for run in selected)}, duration_s)
    runs = [run for run in selected if run.case.trace in windows]
    if not runs:
        print("no run is selected: write --only as in azure2023_conv/8b/*", file=sys.stderr)
        return 2
    keys = shared_keys({name: files[name] for name in windows}, duration_s)
    try:
        results = _results(runs, windows, keys, options)
    except KeyboardInterrupt:
        print("stopped; the results so far are kept, and the same command continues", file=sys.stderr)
        return _STOPPED
    if results:
        path = options.page or (None if options.only or options.window_s else PAGE)
        _write(Board(results, len(runs), keys.code, duration_s, _command(options), options.only), path)
    return 0 if len(results) == len(runs) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--traces", type=Path, metavar="DIR", help="folder with more traces")
    add("--only", default="", metavar="PATTERNS", help="runs whose name matches one, or begins so; with spaces between")
    add("--quick", action="store_true", help="ten minutes of each trace and two seeds; without --only one case")
    add(
        "--seeds",
        type=int,
        choices=range(1, _SEEDS_MAX),
        metavar="N",
        default=SEEDS,
        help="seeds of a run (default: 3)",
    )
    add("--window-s", type=_window_s, metavar="S", help=f"part of each trace, in seconds (default: {WINDOW_S:.0f})")
    add("--jobs", type=int, choices=range(1, _JOBS_MAX), metavar="N", help="processes (default: one per core)")
    add("--results", type=Path, default=RESULTS, metavar="FILE", help="file that keeps results (default: %(default)s)")
    add("--page", type=Path, metavar="FILE", help=f"page to write (default: {PAGE}, with --only or --window-s none)")
    return parser.parse_args(arguments)


def _window_s(text: str) -> float:
    try:
        window_s = float(text)
    except ValueError:
        window_s = 0.0
    if not _WINDOW_S_MIN <= window_s < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, {_WINDOW_S_MIN:.0f} or more")
    return window_s


def _windows(files: dict[str, Path], duration_s: float) -> dict[str, TraceWindow]:
    """Return the window of each trace; print those that cannot be used."""
    found = {}
    for name, window in prepared(files, duration_s):
        if isinstance(window, DataError):
            print(f"left out: {window}", file=sys.stderr)
        else:
            found[name] = window
    return found


def _results(
    runs: Sequence[Run], windows: dict[str, TraceWindow], keys: Keys, options: argparse.Namespace
) -> dict[Run, RunResult]:
    """Do the runs without a stored result; return all results."""
    by_run = {run: keys.of(run) for run in runs}
    stored = read_results(options.results)
    waiting = {key: run for run, key in by_run.items() if key not in stored}
    jobs = [Job(key, run, windows[run.case.trace]) for key, run in waiting.items()]
    done = len(stored)

    with progress_display("simulating", "runs", quiet=not jobs) as on_progress:

        def on_result(result: RunResult) -> None:
            append_result(options.results, result)
            stored[result.key] = result
            on_progress(len(stored) - done, len(jobs))

        failed = run_all(jobs, options.jobs or len(os.sched_getaffinity(0)), on_result)
    for name, error in failed:
        print(f"failed: {name}: {error!r}", file=sys.stderr)
    return {run: stored[key] for run, key in by_run.items() if key in stored}


def _write(board: Board, path: Path | None) -> None:
    """Write the page and its plots, or print the page."""
    if path is None:
        print(page(board, {}))
        return
    found = {}
    if plots.available():
        for attainment in dict.fromkeys(run.case.attainment for run in board.results):
            scored = scores(by_case(board.results), attainment)
            if scored:
                drawn = path.with_name(f"{path.stem}-{attainment}.svg")
                drawn.write_text(plot(scored, attainment), "utf-8")
                found[attainment] = drawn.name
    path.write_text(page(board, found), "utf-8")
    print(f"wrote {path}")


def _command(options: argparse.Namespace) -> str:
    """Return the command of this selection, without its patterns."""
    traces = f" TRACES={options.traces}" if options.traces else ""
    arguments = ["--quick"] if options.quick else [f"--seeds {options.seeds}"] if options.seeds != SEEDS else []
    if options.window_s:
        arguments.append(f"--window-s {options.window_s:.10g}")
    return f"make scoreboard{traces}" + (f" ARGS='{' '.join(arguments)}'" if arguments else "")


if __name__ == "__main__":
    sys.exit(main())
