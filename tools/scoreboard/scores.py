"""Scores of the policies: means over seeds with confidence intervals, and geometric means over cases."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Final

from msgspec import Struct

from tools.scoreboard.cases import Case, Run, kind_of
from tools.scoreboard.results import RunResult

# Student's t for a two-sided 95 % interval, by degrees of freedom from 1; beyond these that of a normal distribution.
_T95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
_T95_MANY: Final = 1.96
_MISSES_MIN: Final = 0.001
"""Fraction of misses below which policies count as equal, since a ratio to 0 says nothing."""
_PERCENT: Final = 100.0


class Estimate(Struct, frozen=True):
    """Mean over seeds, and half of its 95 % confidence interval; None for a single seed."""

    mean: float
    half_width: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Estimate from the values of all seeds."""
        if len(values) == 1:
            return cls(values[0], None)
        degrees = len(values) - 1
        t = _T95[degrees - 1] if degrees <= len(_T95) else _T95_MANY
        return cls(fmean(values), t * stdev(values) / math.sqrt(len(values)))


class PolicyInCase(Struct, frozen=True):
    """Result of one policy in one case, over all seeds."""

    met: Estimate
    """Fraction of the requests within both objectives."""
    gpu_hours: Estimate
    work_bound: Estimate
    seeds: int


class Score(Struct, frozen=True):
    """Result of one policy over all cases of an objective."""

    policy: str
    met: float
    """Mean fraction of the requests within both objectives."""
    cases_met: int
    """Cases in which that fraction reaches the objective."""
    cases: int
    gpu_hours_ratio: float
    """Geometric mean of GPU-hours over those of the other policies."""
    misses_ratio: float
    """Geometric mean of misses over those of the other policies."""


Scored = Mapping[Case, Mapping[str, PolicyInCase]]


def by_case(results: Mapping[Run, RunResult]) -> dict[Case, dict[str, PolicyInCase]]:
    """Return the results of each policy by case, in the order of the runs."""
    grouped: dict[Case, dict[str, list[RunResult]]] = {}
    for run, result in results.items():
        grouped.setdefault(run.case, {}).setdefault(run.policy, []).append(result)
    return {case: {policy: _over_seeds(found) for policy, found in row.items()} for case, row in grouped.items()}


def _over_seeds(found: Sequence[RunResult]) -> PolicyInCase:
    return PolicyInCase(
        Estimate.of([one.both_met for one in found]),
        Estimate.of([one.gpu_hours for one in found]),
        Estimate.of([one.work_bound_gpu_hours for one in found]),
        len(found),
    )


def scores(cases: Scored, attainment: int) -> list[Score]:
    """Return the scores for an objective, the policies that reach it most often first.

    Only cases with results of all policies count, so that all policies are scored by the same cases.
    """
    rows = {case: row for case, row in cases.items() if case.attainment == attainment}
    everyone = list(dict.fromkeys(policy for row in rows.values() for policy in row))
    whole = [row for row in rows.values() if len(row) == len(everyone)]
    found = [_score(policy, whole, attainment / _PERCENT) for policy in everyone] if whole else []
    return sorted(found, key=lambda one: (-one.cases_met, one.gpu_hours_ratio, one.policy))


def _score(policy: str, rows: Sequence[Mapping[str, PolicyInCase]], objective: float) -> Score:
    mine = [row[policy] for row in rows]
    # A clairvoyant reference is compared with the policies, and is none of the others itself.
    others = [[one for name, one in row.items() if name != policy and kind_of(name) != "reference"] for row in rows]
    return Score(
        policy=policy,
        met=fmean(one.met.mean for one in mine),
        cases_met=sum(one.met.mean >= objective for one in mine),
        cases=len(rows),
        gpu_hours_ratio=_ratio(
            [one.gpu_hours.mean for one in mine], [[o.gpu_hours.mean for o in row] for row in others]
        ),
        misses_ratio=_ratio([_misses(one) for one in mine], [[_misses(o) for o in row] for row in others]),
    )


def _misses(one: PolicyInCase) -> float:
    return max(1.0 - one.met.mean, _MISSES_MIN)


def _ratio(mine: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Return the geometric mean of the ratios of mine to the geometric mean of the others; 1 without others."""
    return geometric_mean(value / geometric_mean(row) if row else 1.0 for value, row in zip(mine, others, strict=True))


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(fmean(math.log(value) for value in values))
