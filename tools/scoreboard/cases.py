"""Cases of the scoreboard: every policy on every trace, fleet, arrangement, start-up time and objective.

A run is named by its place, such as ``azure2023_conv/8b/aggregated/110/95/hpa/0``: trace, fleet, arrangement, start-up
time in s, attainment in percent, policy and seed.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import fields

from loadline.core.planning.planners import BUILT_IN, PLANNERS
from loadline.core.state.settings import ModelKnobs
from loadline.sim.compare.baselines import BASELINES
from tools.scoreboard.fleets import FLEETS, Arrangement, sized_for

ARRANGEMENTS: Final[tuple[Arrangement, ...]] = ("aggregated", "disaggregated")
START_UPS_S: Final = (20, 110, 300)
ATTAINMENTS: Final = (95, 99)
CLAIRVOYANT: Final = ", clairvoyant"
"""End of the name of a clairvoyant reference."""
_ONLY_AS_BASELINES: Final = frozenset({"apa", "hpa", "keda", "kpa", "static"})
"""Planners that run with the settings of a baseline, which a user would calibrate."""

PolicyKind = Literal["planner", "reference", "baseline"]


class Case(Struct, frozen=True):
    """Circumstances in which policies are compared."""

    trace: str
    fleet: str
    arrangement: Arrangement
    start_up_s: int
    attainment: int
    """Objective, in percent of the requests."""

    @property
    def name(self) -> str:
        """Name of the case, the beginning of the names of its runs."""
        return f"{self.trace}/{self.fleet}/{self.arrangement}/{self.start_up_s}/{self.attainment}"


class Run(Struct, frozen=True):
    """One simulation: a policy in a case, with a seed."""

    case: Case
    policy: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run."""
        return f"{self.case.name}/{self.policy.replace(CLAIRVOYANT, '-clairvoyant')}/{self.seed}"

    @property
    def planner(self) -> str:
        """Name of the planner, or of the baseline."""
        return self.policy.removesuffix(CLAIRVOYANT)

    @property
    def sizes_for_attainment(self) -> bool:
        """True if the result depends on the attainment; otherwise one run is that of all objectives."""
        if kind_of(self.policy) == "baseline":
            return False
        kind = PLANNERS[self.planner]
        return "attainment" in kind.needs.objectives or sized_for(kind, 0.5) != kind.Knobs()


def policies() -> list[str]:
    """Return all policies: the planners of the registry, the default one with perfect forecasts, and the baselines."""
    default = next(field.default for field in fields(ModelKnobs) if field.name == "planner")
    planners = sorted(kind.name for kind in BUILT_IN if kind.name not in _ONLY_AS_BASELINES)
    return [*planners, f"{default}{CLAIRVOYANT}", *BASELINES]


def kind_of(policy: str) -> PolicyKind:
    """Return the kind of a policy."""
    if policy.endswith(CLAIRVOYANT):
        return "reference"
    return "baseline" if policy in BASELINES else "planner"


def all_runs(traces: Sequence[str], seeds: int) -> Iterator[Run]:
    """Yield all runs; those of one case and seed follow each other, so that they share a trace and compare early."""
    for trace in traces:
        for fleet in FLEETS:
            for arrangement in ARRANGEMENTS:
                for start_up_s in START_UPS_S:
                    for attainment in ATTAINMENTS:
                        case = Case(trace, fleet, arrangement, start_up_s, attainment)
                        yield from (Run(case, policy, seed) for seed in range(seeds) for policy in policies())


def is_selected(run: Run, patterns: Sequence[str]) -> bool:
    """Return True if the name of a run matches a pattern, or begins with it; without patterns all are selected."""
    return not patterns or any(fnmatch(run.name, pattern) or fnmatch(run.name, f"{pattern}/*") for pattern in patterns)
