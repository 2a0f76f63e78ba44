"""What comes of several configurations on the same trace and seed. Encoded, it is the JSON result."""

from typing import Literal

from msgspec import Struct

from loadline.sim.compare.bounds import WorkBound
from loadline.sim.result import SimulationResult

RunKind = Literal["config", "clairvoyant", "baseline"]
"""A configuration that was given, the same planner with perfect foresight as a reference, or a built-in baseline."""


class ComparedRun(Struct, frozen=True):
    """One run."""

    kind: RunKind
    outcome: SimulationResult


class Comparison(Struct, frozen=True):
    """In the order of the configurations: each before its clairvoyant run, where it has one, the baselines last."""

    work_bound: WorkBound
    runs: list[ComparedRun]
