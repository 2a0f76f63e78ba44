"""Page of the scoreboard, in Markdown, and its plots."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from loadline.formatting import duration, hours, percent
from loadline.report.page import COLOURS
from loadline.report.plots import BLUE, INK, ORANGE, RED, canvas, name_points, short_numbers
from tools.scoreboard.cases import Case, Run, kind_of
from tools.scoreboard.fleets import FLEETS
from tools.scoreboard.results import RunResult
from tools.scoreboard.scores import Estimate, PolicyInCase, Score, by_case, scores

Row = Sequence[str]

_INTRODUCTION: Final = """\
# Scoreboard

<!-- Written by `make scoreboard`. Do not edit. -->

The planners of this project and the [rules of other autoscalers](simulation.md#the-baselines) on the same traces and
fleets, by simulation. Every planner has its defaults in every row; nothing is tuned to a trace. A baseline is
calibrated to the fleet where its documentation asks for that. A clairvoyant reference is the default planner that sees
the load of one start-up time later, and the [work bound](simulation.md#work-bound-and-clairvoyant-run) is GPU time
below which no fleet serves the trace within the objectives.

- The part of a trace whose load changes most is taken, and scaled so that the busiest minute takes ten workers.
- A pool begins with the workers that the first five minutes take and has at most 16; start-up times vary by a quarter.
- Attainment is the fraction of requests within the TTFT and the ITL objective. A number with ± is the mean over seeds
  with its 95 % confidence interval; seeds vary arrivals and start-up times. Without ± there is one seed, and a
  difference of a point between two rows of a case may be chance.
"""
_SCORES: Final = (
    "Ratios are geometric means over the cases, of GPU-hours and of requests outside of the objectives, to those of "
    "the other policies in the same case: below 1 is less than the others. Fewer GPU-hours are a gain only without "
    "more misses."
)
_PERCENT: Final = 100.0
_TICKS: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0)
_HEADER: Final = ("policy", "kind", "reached", "attainment", "GPU-hours ratio", "misses ratio")
_COLOURS: Final = {"planner": BLUE, "reference": ORANGE, "baseline": INK}
_MARKERS: Final = {"planner": "o", "reference": "D", "baseline": "s"}


class Board(Struct, frozen=True):
    """Results of a selection of runs."""

    results: dict[Run, RunResult]
    runs: int
    """Runs of the selection, with and without results."""
    code: str
    """Digest of the code that was simulated."""
    window_s: float
    """Length of the part of each trace."""
    command: str
    """Command that selects it, without ``ONLY``."""
    only: str = ""
    """Patterns of ``ONLY``."""

    def covered(self) -> dict[str, list[str]]:
        """Return the values that the results cover, by what they are of."""
        cases = {run.case: None for run in self.results}
        return {
            f"traces, up to {duration(self.window_s)} of each": list(dict.fromkeys(case.trace for case in cases)),
            "fleets": list(dict.fromkeys(FLEETS[case.fleet].title for case in cases)),
            "arrangements": list(dict.fromkeys(case.arrangement for case in cases)),
            "start-up times": list(dict.fromkeys(f"{case.start_up_s} s" for case in cases)),
            "objectives": list(dict.fromkeys(f"{case.attainment} %" for case in cases)),
            "seeds": list(dict.fromkeys(str(run.seed) for run in self.results)),
        }


def page(board: Board, plots: Mapping[int, str]) -> str:
    """Return the whole page.

    Args:
        board: Results.
        plots: Name of the file of the plot of each objective, if there is one.
    """
    cases = by_case(board.results)
    covered = [f"- {name}: {', '.join(values)}" for name, values in board.covered().items()]
    command = f"{board.command} ONLY='{board.only}'" if board.only else board.command
    coverage = (
        f"This page has the results of {len(board.results)} of the {board.runs} runs of `{command}`, of the code whose "
        f"digest is `{board.code}`. Nothing else is covered:"
    )
    parts = [_INTRODUCTION, coverage, "", *covered, ""]
    for attainment in dict.fromkeys(case.attainment for case in cases):
        found = scores(cases, attainment)
        if not found:
            continue  # no case has all policies of the selection
        parts += [f"## Attainment {attainment} %", "", *score_table(found), "", _SCORES, ""]
        if attainment in plots:
            parts += [f"![Misses against GPU-hours, relative to the other policies]({plots[attainment]})", ""]
    parts += ["## Cases", "", "Attainment and GPU-hours, by start-up time and objective.", ""]
    for place in dict.fromkeys((case.fleet, case.arrangement, case.trace) for case in cases):
        parts += _case_section(board, cases, place)
    return "\n".join(parts)


def score_table(found: Sequence[Score]) -> list[str]:
    """Return the scores as the lines of a table."""
    rows = [
        (
            one.policy,
            kind_of(one.policy),
            f"{one.cases_met} of {one.cases}",
            percent(one.met),
            f"{one.gpu_hours_ratio:.2f}",
            f"{one.misses_ratio:.2f}",
        )
        for one in found
    ]
    return _table(_HEADER, rows)


def _case_section(
    board: Board, cases: Mapping[Case, Mapping[str, PolicyInCase]], place: tuple[str, str, str]
) -> Iterator[str]:
    """Yield the lines of the table of one fleet, arrangement and trace."""
    fleet, arrangement, trace = place
    columns = {case: row for case, row in cases.items() if (case.fleet, case.arrangement, case.trace) == place}
    scale = next(result.scale for run, result in board.results.items() if run.case in columns)
    yield f"### {trace} on {FLEETS[fleet].title}, {arrangement}"
    yield ""
    names = dict.fromkeys(policy for row in columns.values() for policy in row)
    rows = [(name, *(_cell(row[name]) if name in row else "-" for row in columns.values())) for name in names]
    bounds = [next(iter(row.values())).work_bound for row in columns.values()]
    rows.append(("work bound", *map(_hours, bounds)))
    yield from _table(("policy", *(f"{case.start_up_s} s, {case.attainment} %" for case in columns)), rows)
    yield ""
    only = f"{trace}/{fleet}/{arrangement}/*/*/POLICY"
    yield f"Load of the trace times {scale:g}. A row: `{board.command} ONLY='{only}'`."
    yield ""


def _cell(one: PolicyInCase) -> str:
    met = percent(one.met.mean)
    if one.met.half_width is not None:
        met += f" ± {_PERCENT * one.met.half_width:.1f}"
    return f"{met}, {_hours(one.gpu_hours)}"


def _hours(one: Estimate) -> str:
    return hours(one.mean) if one.half_width is None else f"{hours(one.mean)} ± {hours(one.half_width)}"


def _table(header: Row, rows: Sequence[Row]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def plot(found: Sequence[Score], attainment: int) -> str:
    """Plot misses against GPU-hours, both relative to the other policies, as a file of its own."""
    with canvas(f"scores {attainment}", (4.2,)) as figure:
        [panel] = figure.panels
        for kind, marker in _MARKERS.items():
            points = [(one.gpu_hours_ratio, one.misses_ratio) for one in found if kind_of(one.policy) == kind]
            if points:
                at, missed = zip(*points, strict=True)
                panel.plot(at, missed, linestyle="", marker=marker, color=_COLOURS[kind], label=kind)
        panel.margins(0.15)
        _ratio_axes(panel)
        panel.set_xlabel("GPU-hours, over those of the other policies")
        panel.set_title("requests outside of the objectives, over those of the other policies")
        figure.legend(3)
        name_points(panel, [(one.policy, one.gpu_hours_ratio, one.misses_ratio) for one in found])
        text = figure.svg(f"Misses against GPU-hours at an attainment of {attainment} %, lower left is better")
    root = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    opening, rest = text.replace("<svg", root, 1).split(">", 1)
    return f"{opening}><style>{COLOURS}</style>{rest}\n"


def _ratio_axes(panel: Any) -> None:
    """Make both axes logarithmic, with a line at 1."""
    from matplotlib.ticker import FixedLocator, NullLocator  # noqa: PLC0415 - an extra

    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.axvline(1.0, color=RED, linestyle="--", linewidth=0.8)
    panel.axhline(1.0, color=RED, linestyle="--", linewidth=0.8)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(FixedLocator(_TICKS))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(short_numbers())
