"""Tables of results: attainment and cost of each policy in each row, and over all rows."""

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Final

from loadline.report.formatting import hours, percent
from tools.bench.peers.runs import FIXED, Result

_HEADER: Final = ("row", "policy", "attainment", "GPU-hours", "cost")


def result_rows(found: Mapping[str, Mapping[str, Result]], policies: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the rows of a table, with a header.

    Cost is GPU-hours over those of the smallest fixed fleet. The last rows have mean attainments and geometric means
    of costs.
    """
    rows: list[tuple[str, ...]] = [_HEADER]
    for name, by_policy in found.items():
        for policy in policies:
            one = by_policy[policy]
            numbers = percent(attainment(one)), hours(one.gpu_hours), f"{cost(one, by_policy):.2f}"
            rows.append((name, _policy(policy, one), *numbers))
    for policy in policies:
        met = fmean(attainment(by_policy[policy]) for by_policy in found.values())
        costs = geometric_mean(cost(by_policy[policy], by_policy) for by_policy in found.values())
        rows.append(("mean", policy, percent(met), "", f"{costs:.2f}"))
    return rows


def attainment(result: Result) -> float:
    """Return the fraction of the requests that met both objectives."""
    return result.met / result.requests


def cost(result: Result, by_policy: Mapping[str, Result]) -> float:
    """Return the GPU-hours over those of the smallest fixed fleet of the row."""
    return result.gpu_hours / by_policy[FIXED].gpu_hours


def _policy(policy: str, result: Result) -> str:
    return f"{policy}, {' + '.join(map(str, result.fleet))} workers" if result.fleet else policy
