"""Stored results of the scoreboard: JSON lines, found again by the digest of all that a run depends on."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tools.scoreboard.cases import Run
from tools.scoreboard.fleets import FLEETS
from tools.scoreboard.traces import ROOT

_SIMULATED: Final = ("config", "core", "forecast", "runtime", "sim", "solver", "traces", "wire")
"""Packages of the agent whose code a simulation runs."""
_TOOL: Final = ("fleets.py", "runs.py", "traces.py")
"""Files of this tool that define a run."""


class RunResult(Struct, frozen=True):
    """Result of one run."""

    key: str
    """Digest of all that the run depends on."""
    name: str
    scale: float
    """Factor of the load of the trace."""
    requests: int
    ttft_met: float
    """Fraction of the requests that met this objective."""
    itl_met: float
    both_met: float
    gpu_hours: float
    work_bound_gpu_hours: float
    actions: int
    flaps: int
    took_s: float


class Keys(Struct, frozen=True):
    """Digests of what all runs share."""

    code: str
    traces: dict[str, str]
    """Digest of each trace file, by name."""
    duration_s: float
    """Length of the window of each trace."""

    def of(self, run: Run) -> str:
        """Return the digest of a run; runs that the attainment does not change have the same for all objectives."""
        case = run.case
        fleet = FLEETS[case.fleet]
        engines = [(one.name, one.gpus, one.kv_blocks, *map(_digest, map(Path, one.files))) for one in fleet.engines]
        parts = (
            self.code,
            self.traces[case.trace],
            self.duration_s,
            (engines, fleet.ttft_ms, fleet.itl_ms),
            (case.arrangement, case.start_up_s),
            case.attainment if run.sizes_for_attainment else None,
            run.policy,
            run.seed,
        )
        return sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def shared_keys(traces: dict[str, Path], duration_s: float) -> Keys:
    """Return the digests for the code of this checkout and these traces."""
    code = code_digest(*(Path(__file__).with_name(name) for name in _TOOL))
    return Keys(code, {name: _digest(path) for name, path in traces.items()}, duration_s)


def code_digest(*more: Path) -> str:
    """Return the digest of the code that a simulation runs, and of more files."""
    files = [path for package in _SIMULATED for path in (ROOT / "agent/loadline" / package).rglob("*.py")]
    return sha256("".join(_digest(path) for path in sorted([*files, *more])).encode()).hexdigest()[:12]


def read_results(path: Path) -> dict[str, RunResult]:
    """Return the stored results by key; a line that was cut off by a crash is ignored."""
    return {result.key: result for result in _lines(path)} if path.exists() else {}


def append_result(path: Path, result: RunResult) -> None:
    """Add a result to the file, in a line of its own even if a crash has cut off the last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
        is_cut = file.read(1) not in {b"", b"\n"}
        file.write(b"\n" * is_cut + msgspec.json.encode(result) + b"\n")


def _lines(path: Path) -> Iterator[RunResult]:
    for line in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=RunResult)
        except msgspec.DecodeError:
            continue


_DIGESTS: Final[dict[Path, str]] = {}


def _digest(path: Path) -> str:
    if path not in _DIGESTS:
        _DIGESTS[path] = sha256(path.read_bytes()).hexdigest()
    return _DIGESTS[path]
