"""Examine what a fuzz has left in its folder, as it is: ``python -m tests.fuzz.examine TARGET FOLDER``."""

import resource
import sys
from pathlib import Path

import msgspec
from msgspec import Struct, field

from tests.fuzz.corpus import kept
from tests.fuzz.limits import limit_resources
from tests.fuzz.target import Escape, Target, check_growth, silence_logs
from tests.fuzz.targets import TARGETS

ALLOWANCE_MB = 512
CPU_S = 600


class Findings(Struct):
    """What is found in a folder.

    Attributes:
        escapes: Reasons, by file.
        slowest_ms: CPU time per 16 KiB of the slowest input of the corpus.
        memory_mb: Memory that all inputs take beyond that of the seeds, at their peak.
    """

    escapes: dict[str, str] = field(default_factory=dict)
    slowest_ms: float = 0.0
    memory_mb: float = 0.0


def examine(target: Target, folder: Path) -> Findings:
    """Return the escapes among the suspects, and growth over the kept inputs; and the costs of the corpus."""
    for seed in target.seeds:
        target.examine(seed, patience=1_000.0)  # imports and caches
    limit_resources(ALLOWANCE_MB, CPU_S)
    before_mb = _peak_mb()
    found = Findings()
    for file in sorted((folder / "suspects").iterdir()):
        try:
            target.examine(file.read_bytes())
        except Escape as escape:
            found.escapes[str(file)] = str(escape)
    for file in sorted((folder / "corpus").iterdir()):
        try:
            found.slowest_ms = max(found.slowest_ms, target.cost_ms(file.read_bytes(), above=found.slowest_ms))
        except Escape as escape:
            found.escapes[str(file)] = str(escape)
    try:
        check_growth(target, [*target.seeds, *kept(target)])
    except Escape as escape:
        found.escapes["the corpus"] = str(escape)
    found.slowest_ms = round(found.slowest_ms, 2)
    found.memory_mb = round(_peak_mb() - before_mb, 1)
    return found


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


if __name__ == "__main__":
    with silence_logs():
        findings = examine(TARGETS[sys.argv[1]], Path(sys.argv[2]))
    sys.stdout.write(msgspec.json.encode(findings).decode() + "\n")
