"""Results of several configurations on the same trace and seed: the structure of the JSON output of ``compare``."""

from typing import Literal

from msgspec import Struct

from loadline.sim.compare.bounds import WorkBound
from loadline.sim.result import SimulationResult

RunKind = Literal["config", "clairvoyant", "baseline"]
"""Kind of a run: a given configuration, the clairvoyant reference of one, or a built-in baseline."""


class ComparedRun(Struct, frozen=True):
    """One run of a comparison."""

    kind: RunKind
    outcome: SimulationResult


class Comparison(Struct, frozen=True):
    """Runs in the order of the configurations, each followed by its clairvoyant run if any; baselines come last."""

    work_bound: WorkBound
    runs: list[ComparedRun]
