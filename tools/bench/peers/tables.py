"""Table of results: attainment and cost of each policy in each row, and their means over the rows."""

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean

from loadline.formatting import hours, percent
from tools.bench.peers.runs import FIXED, Result


def result_rows(found: Mapping[str, Mapping[str, Result]], policies: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the rows of a table, with a header.

    A cell has the attainment, and the cost: GPU-hours over those of the smallest fixed fleet. The last row has the
    mean attainments and the geometric means of the costs.
    """
    others = [policy for policy in policies if policy != FIXED]
    rows: list[tuple[str, ...]] = [("row", "workers", "GPU-hours", FIXED, *others)]
    for name, results in found.items():
        fixed = results[FIXED]
        workers = " + ".join(map(str, fixed.fleet))
        cells = (_cell(attainment(results[policy]), cost(results[policy], fixed)) for policy in others)
        rows.append((name, workers, hours(fixed.gpu_hours), percent(attainment(fixed)), *cells))
    met = {policy: fmean(attainment(results[policy]) for results in found.values()) for policy in policies}
    costs = {
        policy: geometric_mean(cost(results[policy], results[FIXED]) for results in found.values()) for policy in others
    }
    rows.append(("mean", "", "", percent(met[FIXED]), *(_cell(met[policy], costs[policy]) for policy in others)))
    return rows


def attainment(result: Result) -> float:
    """Return the fraction of the requests that met both objectives."""
    return result.met / result.requests


def cost(result: Result, fixed: Result) -> float:
    """Return the GPU-hours over those of the smallest fixed fleet of the row."""
    return result.gpu_hours / fixed.gpu_hours


def _cell(met: float, relative_cost: float) -> str:
    return f"{percent(met)}, {relative_cost:.2f}"
