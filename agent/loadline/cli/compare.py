"""Command ``compare``: configurations and built-in baselines on the same trace and seed."""

import argparse
import os
from collections.abc import Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from loadline import report
from loadline.cli import output, progress, simulation_inputs
from loadline.cli.output_files import check_output_files, write_files
from loadline.cli.parallel import simulate_all
from loadline.core.planning.planners.static import StaticPlanner
from loadline.core.state.settings import Settings
from loadline.errors import ConfigError
from loadline.sim.compare.baselines import BASELINES, USUAL_BASELINES, baseline
from loadline.sim.compare.bounds import work_bound
from loadline.sim.compare.comparison import ComparedRun, Comparison, RunKind
from loadline.sim.fleet import SimulatedFleetKnobs, model_of, objectives_of, pools_of
from loadline.sim.simulation import Scenario
from loadline.traces import Trace

_NONE: Final = "none"
_ALL: Final = "all"
_JOBS_MAX: Final = 256
_NARROW: Final = frozenset({
    "configuration", "TTFT met", "ITL met", "both met", "GPU-hours", "actions", "flaps",
    "longest gap p99", "commands", "refused", "requests migrated",
})  # fmt: skip
"""Columns that fit 80 characters; ``--wide`` prints all."""
_NAME_CHARS_MAX: Final = 24


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    simulation_inputs.arguments(parser)
    add = parser.add_argument
    add(
        "--config",
        type=Path,
        required=True,
        action="append",
        metavar="FILE",
        help="configuration of an agent; repeatable",
    )
    add(
        "--baseline",
        action="append",
        choices=[*BASELINES, _ALL, _NONE],
        help=f"baseline derived from the first configuration; repeatable (default: {', '.join(USUAL_BASELINES)})",
    )
    add("--wide", action="store_true", help="print all columns (default: those that fit 80 characters)")
    add("--jobs", type=int, default=0, metavar="N", help="parallel simulations (default: one per core)")


def compare(options: argparse.Namespace) -> int:
    """Simulate all configurations and baselines, and print them side by side."""
    jobs = _jobs(options.jobs)
    selected = _baselines(options.baseline)
    check_output_files(options, options.trace, options.fleet, *options.config)
    fleet = simulation_inputs.fleet(options)
    configs = [simulation_inputs.settings(path, options, fleet) for path in options.config]
    first = model_of(fleet, configs[0])
    objectives = objectives_of(fleet, first)
    fleet = replace(fleet, ttft_ms=objectives.ttft_ms, itl_ms=objectives.itl_ms)  # the same objectives for all runs
    trace = simulation_inputs.trace(options)
    named = list(_named([path.stem for path in options.config], configs, selected, fleet, trace))
    plan = [
        (kind, Scenario(name, settings, fleet, trace, options.seed, clairvoyant=kind == "clairvoyant"))
        for name, settings, kind in named
    ]
    bound = work_bound(trace, pools_of(fleet, first), objectives)
    what, length_s = f"simulating {trace.name} {len(plan)} times", trace.duration_s * len(plan)
    with progress.progress_display(what, "simulated s", quiet=options.quiet) as on_progress:
        scenarios = [scenario for _, scenario in plan]
        outcomes = simulate_all(scenarios, jobs, lambda part: on_progress(part * length_s, length_s))
    runs = [ComparedRun(kind, outcome) for (kind, _), outcome in zip(plan, outcomes, strict=True)]
    comparison = Comparison(bound, runs)
    output.print_result(options, comparison, "\n".join(_lines(comparison, wide=options.wide)))
    texts = [
        (name, simulation_inputs.knobs_text(settings, fleet)) for name, settings, kind in named if kind != "clairvoyant"
    ]
    _write(options, comparison, texts)
    return 0


def _jobs(requested: int) -> int:
    if not 0 <= requested <= _JOBS_MAX:
        raise ConfigError("--jobs", f"is {requested}", f"Write 1 to {_JOBS_MAX}, or omit it.")
    return requested or len(os.sched_getaffinity(0))


def _baselines(requested: list[str] | None) -> list[str]:
    if requested is None:
        return list(USUAL_BASELINES)
    if _NONE in requested and set(requested) != {_NONE}:
        raise ConfigError("--baseline", "combines none with a baseline", "Write none alone.")
    return [name for name in BASELINES if name in requested or _ALL in requested]


def _named(
    stems: list[str], configs: list[Settings], selected: list[str], fleet: SimulatedFleetKnobs, trace: Trace
) -> Iterator[tuple[str, Settings, RunKind]]:
    """Yield the name, settings and kind of each run; a fixed count has no forecast, so no clairvoyant run."""
    names = unique([*selected, *stems])
    for name, settings in zip(names[len(selected) :], configs, strict=True):
        yield name, settings, "config"
        if model_of(fleet, settings).planner != StaticPlanner.name:
            yield name, settings, "clairvoyant"
    for name in selected:
        yield name, baseline(name, configs[0], fleet, trace), "baseline"


def unique(names: Iterable[str]) -> list[str]:
    """Make names unique by appending a number to repeated ones."""
    found: list[str] = []
    for name in names:
        tried = chain([name], (f"{name}-{number}" for number in count(2)))
        found.append(next(one for one in tried if one not in found))
    return found


def _lines(comparison: Comparison, *, wide: bool) -> Iterator[str]:
    one = comparison.runs[0].outcome
    objectives = f"objectives of every request: TTFT {one.ttft_objective_ms:g} ms, ITL {one.itl_objective_ms:g} ms"
    yield f"{report.trace_summary(one)}; seed {one.seed}"
    yield objectives
    yield output.table(_columns([report.COMPARISON_HEADER, *report.comparison_rows(comparison)], wide=wide))
    migrations = report.migration_rows(comparison)
    if migrations:
        yield output.table(_columns([report.MIGRATION_HEADER, *migrations], wide=wide))


def _columns(rows: list[tuple[str, ...]], *, wide: bool) -> list[tuple[str, ...]]:
    """Return all columns, or those that fit 80 characters, with names cut to fit."""
    if wide:
        return rows
    kept = [place for place, title in enumerate(rows[0]) if title in _NARROW]
    return [tuple(_cut(row[place]) if place == 0 else row[place] for place in kept) for row in rows]


def _cut(label: str) -> str:
    """Shorten the name in a label, and keep what follows it."""
    name, comma, kind = label.partition(", ")
    room = _NAME_CHARS_MAX - len(comma) - len(kind)
    return label if len(name) <= room else f"{name[: room - 1]}…{comma}{kind}"


def _write(options: argparse.Namespace, comparison: Comparison, texts: list[tuple[str, str]]) -> None:
    contents = {}
    if options.json is not None:
        contents[options.json] = msgspec.json.encode(comparison) + b"\n"
    if options.html is not None:
        contents[options.html] = report.comparison_page(comparison, texts, options.line).encode()
    write_files(contents)
