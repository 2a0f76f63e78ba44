"""Traces of the scoreboard: the window whose load changes most, scaled to the fleet by one rule.

The scale is such that the busiest minute takes ``PEAK_WORKERS`` workers that are 75 % utilised, of the role that needs
most. So all rows are about as many workers, whatever the size of the service that the trace was recorded at.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.state.settings import ModelKnobs
from loadline.errors import DataError
from loadline.sim.compare.baselines import peak_replicas
from loadline.sim.fleet import SimulatedFleetKnobs, objectives_of, pools_of
from loadline.traces import RateKnobs, Trace, read_trace

ROOT: Final = Path(__file__).resolve().parents[2]
CARRIED: Final = (
    ROOT / "agent/loadline/demo/data/azure2023_conv.csv.gz",
    ROOT / "docs/examples/data/servegen_deepseek-r1.csv.gz",
    ROOT / "tests/data/azure2024_conv_bin600.csv",
)
"""Traces of the project that are long enough; the others have a few requests."""
PEAK_WORKERS: Final = 10
_ENDINGS: Final = (".csv.gz", ".csv", ".jsonl.gz", ".jsonl")
_PROBED_REQUESTS: Final = 2_000
_WORKERS_UNBOUNDED: Final = 10_000
_TRIES: Final = 8
_PARTS: Final = 10


class TraceWindow(Struct, frozen=True):
    """Part of a trace file."""

    path: Path
    start_s: float
    duration_s: float

    def read(self, scale: float, seed: int) -> Trace:
        """Read the window at a scale."""
        knobs = RateKnobs(start_s=self.start_s, duration_s=self.duration_s, scale=scale, gaps="skip")
        return read_trace(self.path, seed=seed, arrivals=knobs)


def trace_files(folder: Path | None) -> dict[str, Path]:
    """Return the traces of the project and of a folder by name."""
    found = sorted(folder.iterdir()) if folder is not None else []
    ending = {path: next(filter(path.name.endswith, _ENDINGS), "") for path in (*CARRIED, *found)}
    return {path.name.removesuffix(ending[path]): path for path in ending if ending[path]}


def busiest_change(path: Path, duration_s: float) -> TraceWindow:
    """Return the window of this length whose load changes most; windows begin at multiples of half of it.

    The change is the difference between the most and the fewest requests in a tenth of the window. A window with an
    empty tenth is not taken, since data is missing there.

    Raises:
        DataError: The trace cannot be used.
    """
    whole = _probe(path)
    arrived_s = np.array([one.arrival_s for one in whole.arrivals])
    starts_s = np.arange(0.0, max(whole.duration_s - duration_s, 0.0) + 1.0, duration_s / 2.0)
    counts = [np.histogram(arrived_s, _PARTS, (start_s, start_s + duration_s))[0] for start_s in starts_s]
    changes = [int(parts.max() - parts.min()) if parts.min() > 0 else -1 for parts in counts]
    start_s = float(starts_s[int(np.argmax(changes))])
    return TraceWindow(path, start_s, min(duration_s, whole.duration_s - start_s))


def _probe(path: Path) -> Trace:
    """Read a whole trace at a scale that leaves some thousand requests."""
    scale, found = 1e-4, Trace("", [], 0.0)
    while len(found.arrivals) < _PROBED_REQUESTS and scale <= 1.0:
        try:
            found = read_trace(path, arrivals=RateKnobs(scale=scale, gaps="skip"))
        except DataError:
            if scale >= 1.0:
                raise
        scale *= 10.0
    return found


def scale_for(window: TraceWindow, fleet: SimulatedFleetKnobs, model: ModelKnobs) -> float:
    """Return the scale at which the busiest minute takes ``PEAK_WORKERS`` workers, to two digits.

    Raises:
        DataError: The trace cannot be used.
    """
    pools = pools_of(fleet, model)
    unbounded = replace(
        model, pools=tuple(replace(pool, replicas_min=0, replicas_max=_WORKERS_UNBOUNDED) for pool in model.pools)
    )
    scale = 1e-3
    for _ in range(_TRIES):
        try:
            trace = window.read(scale, seed=0)
        except DataError:
            if scale >= 1.0:
                raise
            scale *= 10.0
            continue
        by_role: dict[str, int] = {}
        for name, count in peak_replicas(pools, unbounded, trace, objectives_of(fleet, model)).items():
            by_role[pools[name].role] = by_role.get(pools[name].role, 0) + count
        peak = max(by_role.values())
        if peak == PEAK_WORKERS:
            break
        scale = float(f"{scale * PEAK_WORKERS / peak:.2g}")
    return scale


def prepared(traces: dict[str, Path], duration_s: float) -> Iterator[tuple[str, TraceWindow | DataError]]:
    """Yield the window of each trace, or why it cannot be used."""
    for name, path in traces.items():
        try:
            yield name, busiest_change(path, duration_s)
        except DataError as error:
            yield name, error
