"""Page of a comparison: results, attainment against GPU-hours with the work bound, and the workers of every run."""

from itertools import pairwise

from loadline import formatting
from loadline.report.charts import STEPS_MAX, draw_workers
from loadline.report.page import card, code, folded, grid, page, paragraph, section, table
from loadline.report.plots import BLUE, FAINT, INK, ORANGE, RED, canvas, name_points, time_axis
from loadline.report.rows import (
    COMPARISON_HEADER,
    MIGRATION_HEADER,
    comparison_rows,
    migration_rows,
    run_label,
    trace_summary,
)
from loadline.sim.compare.comparison import ComparedRun, Comparison

_PAGE_STEPS_MAX = 2_500
"""Steps of workers in a page: each takes up to 300 bytes, and a page should stay below 1 MB."""
_COLOURS = {"config": BLUE, "clairvoyant": ORANGE, "baseline": INK}
_MARKERS = {"config": "o", "clairvoyant": "D", "baseline": "s"}
_MEANINGS = {
    "config": "configuration",
    "clairvoyant": "reference: the same planner with perfect forecasts",
    "baseline": "built-in baseline",
}
_EXPLAINED = (
    "Attainment is the fraction of requests that met both objectives. The work bound is the GPU time of the requests "
    "at the highest throughput that meets the objectives, without idle time: a lower bound for every fleet that "
    "meets them. Clairvoyant is a reference, not a bound: the same planner with perfect forecasts of one start-up time."
)


def comparison_page(comparison: Comparison, configurations: list[tuple[str, str]], command: str) -> str:
    """Build the page of a comparison.

    Args:
        comparison: Results of all runs.
        configurations: Name and text of each configuration.
        command: Command line that reproduces it.

    Raises:
        LoadlineError: matplotlib is not installed.
    """
    first = comparison.runs[0].outcome
    rows = comparison_rows(comparison)
    highest = highest_counts(comparison)
    duration_s = max(run.outcome.duration_s for run in comparison.runs)
    panels = sum(len(run.outcome.series.pools) for run in comparison.runs)
    steps_max = min(STEPS_MAX, _PAGE_STEPS_MAX // max(1, panels))
    return page(
        f"loadline compare: {first.trace}",
        f"{first.model}; {trace_summary(first)}; seed {first.seed}; TTFT {first.ttft_objective_ms:g} ms, "
        f"ITL {first.itl_objective_ms:g} ms",
        [
            section(
                "Results",
                table(COMPARISON_HEADER, rows, set(range(2, len(COMPARISON_HEADER))), set()),
                paragraph(_EXPLAINED),
            ),
            *_migration(comparison),
            section("Attainment against GPU-hours", f'<div class="card narrow">{scatter(comparison)}</div>'),
            section(
                "Workers over time",
                grid(
                    card(run_label(run), _workers(run, place, highest, duration_s, steps_max))
                    for place, run in enumerate(comparison.runs)
                ),
            ),
            section("Configurations", *(folded(name, code(text)) for name, text in configurations)),
            section("Reproduce", code(command)),
        ],
    )


def _migration(comparison: Comparison) -> list[str]:
    rows = migration_rows(comparison)
    return (
        [section("Migration", table(MIGRATION_HEADER, rows, set(range(1, len(MIGRATION_HEADER))), set()))]
        if rows
        else []
    )


def scatter(comparison: Comparison) -> str:
    """Plot attainment against GPU-hours: a labelled point per run, and the work bound."""
    with canvas("scatter", (3.6,)) as figure:
        [panel] = figure.panels
        bound = comparison.work_bound.gpu_hours
        panel.axvline(bound, color=RED, linestyle="--", label=f"work bound, {formatting.hours(bound)} GPU-hours")
        for kind, marker in _MARKERS.items():
            points = [_point(run) for run in comparison.runs if run.kind == kind]
            if points:
                at, met = zip(*points, strict=True)
                panel.plot(at, met, linestyle="", marker=marker, color=_COLOURS[kind], label=_MEANINGS[kind])
        for before, run in pairwise(comparison.runs):
            if run.kind == "clairvoyant":
                panel.plot(*zip(_point(before), _point(run), strict=True), color=FAINT, linewidth=0.8, zorder=0)
        highest = max(bound, *(run.outcome.gpu_hours for run in comparison.runs))
        panel.set_xlim(0.0, 1.15 * highest or 1.0)
        panel.margins(y=0.15)
        panel.set_xlabel("GPU-hours")
        panel.set_title("requests that met both objectives, %")
        figure.legend(2)
        # A line connects a clairvoyant run to its named run.
        names = ["" if run.kind == "clairvoyant" else run.outcome.name for run in comparison.runs]
        name_points(panel, [(name, *_point(run)) for name, run in zip(names, comparison.runs, strict=True)])
        return figure.svg("Attainment against GPU-hours of every run, with the work bound")


def _point(run: ComparedRun) -> tuple[float, float]:
    return run.outcome.gpu_hours, 100.0 * run.outcome.attainment.both


def highest_counts(comparison: Comparison) -> dict[str, int]:
    """Return the most workers of each pool in any run: all panels of a pool have the same axis."""
    found: dict[str, int] = {}
    for run in comparison.runs:
        for pool in run.outcome.series.pools:
            found[pool.pool] = max(found.get(pool.pool, 1), *pool.desired, *pool.ready)
    return found


def _workers(run: ComparedRun, place: int, highest: dict[str, int], duration_s: float, steps_max: int) -> str:
    """Plot the workers of every pool of one run."""
    outcome = run.outcome
    pools = outcome.series.pools
    with canvas(f"run {place}", (1.5,) * len(pools)) as figure:
        unit_s = time_axis(figure.panels[-1], duration_s)
        for panel, pool in zip(figure.panels, pools, strict=True):
            draw_workers(panel, [at_s / unit_s for at_s in outcome.series.at_s], pool, steps_max)
            panel.set_title(f"{pool.pool}: workers ready (green), starting (blue), desired (dots)")
            panel.set_ylim(0.0, 1.1 * highest[pool.pool])
        return figure.svg(f"Workers over time of {run_label(run)}")
