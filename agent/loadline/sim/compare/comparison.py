"""Results of several configurations on the same trace and seed. Encoded, they are the JSON output."""

from typing import Literal

from msgspec import Struct

from loadline.sim.compare.bounds import WorkBound
from loadline.sim.result import SimulationResult

RunKind = Literal["config", "clairvoyant", "baseline"]
"""Given configuration, its clairvoyant run as a reference, or built-in baseline."""


class ComparedRun(Struct, frozen=True):
    """One run of a comparison."""

    kind: RunKind
    outcome: SimulationResult


class Comparison(Struct, frozen=True):
    """Runs in the order of the configurations, each followed by its clairvoyant run if any; baselines come last."""

    work_bound: WorkBound
    runs: list[ComparedRun]
