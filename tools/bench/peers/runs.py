"""Runs of a row in NVIDIA's simulator: fixed fleets, Dynamo's planner, and loadline's planners."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from loadline.core.vocabulary.scalars import Role
from loadline.errors import LoadlineError
from tools.bench.peers.adapter import Adapter, configuration
from tools.bench.peers.lines import LineProcess
from tools.bench.peers.loads import Row, write_trace
from tools.bench.peers.snapshots import BLOCK_TOKENS, KV_BLOCKS, Snapshot

TTFT_MS: Final = 500.0
ITL_MS: Final = 50.0
NEAR_CEILING: Final = 0.99
"""A fixed fleet suffices if it has this fraction of what the largest has within the objectives."""
FIXED: Final = "fixed"
DYNAMO: Final[dict[str, dict[str, Any]]] = {
    "dynamo": {},
    "dynamo-sla": {
        "optimization_target": "sla",
        "ttft_ms": TTFT_MS,
        "itl_ms": ITL_MS,
        "enable_load_scaling": True,
        "enable_throughput_scaling": True,
        "load_predictor": "kalman",
        "throughput_adjustment_interval_seconds": 60,
    },
}
"""Settings of Dynamo's planner by policy; what is missing has NVIDIA's defaults."""
_ENGINE: Final = {"num_gpu_blocks": KV_BLOCKS, "block_size": BLOCK_TOKENS, "enable_prefix_caching": False}
_WORKERS_AT_START: Final = 2
_WORKERS_MAX: Final = 16
"""Largest number of workers of a role."""

Fleet = tuple[int, ...]
"""Workers by role, in the order of the row's roles."""


class Outcome(Struct, frozen=True):
    """Requests within both objectives, and the cost."""

    met: int
    gpu_hours: float


class Result(Struct, frozen=True, omit_defaults=True):
    """Result of a policy in a row."""

    key: str
    """Digest of all that the run depends on."""
    requests: int
    met: int
    gpu_hours: float
    fleet: Fleet = ()
    """Fixed fleet: its workers by role."""
    ceiling: int = 0
    """Fixed fleet: requests within the objectives with the largest one."""


class Job(Struct, frozen=True):
    """Request to the simulator's process."""

    trace: str
    workers: dict[Role, int]
    start_up_s: float
    engine: dict[str, Any]
    policy: Literal["fixed", "dynamo", "remote"] = "fixed"
    planner: dict[str, Any] = {}
    ttft_ms: float = TTFT_MS
    itl_ms: float = ITL_MS


class _Answer(Struct, frozen=True):
    """Line of the simulator's process: one of three."""

    snapshot: Snapshot | None = None
    result: Outcome | None = None
    error: str = ""


_decode = msgspec.json.Decoder(_Answer).decode


class RowRuns:
    """Runs of one row.

    Args:
        row: The load and the fleet.
        trace: File with its requests.
        requests: Number of its requests.
        simulator: NVIDIA's simulator.
    """

    def __init__(self, row: Row, trace: Path, requests: int, simulator: LineProcess) -> None:
        self._row, self._trace, self._requests, self._simulator = row, trace, requests, simulator

    def run(self, policy: str, key: str) -> Result:
        """Run a policy: ``fixed``, one of ``DYNAMO``, or a planner of loadline."""
        if policy == FIXED:
            ceiling, fleet, found = smallest_fleet(self._fixed, len(self._row.roles), _WORKERS_MAX)
            return Result(key, self._requests, found.met, found.gpu_hours, fleet, ceiling.met)
        found = self._dynamo(DYNAMO[policy]) if policy in DYNAMO else self._loadline(policy)
        return Result(key, self._requests, found.met, found.gpu_hours)

    def _fixed(self, fleet: Fleet) -> Outcome:
        return self._replay(self._job(fleet))

    def _dynamo(self, settings: dict[str, Any]) -> Outcome:
        roles = self._row.roles
        planner = {
            "mode": "agg" if roles == ("aggregated",) else "disagg",
            "max_gpu_budget": _WORKERS_MAX * len(roles),
            "report_interval_hours": None,
        }
        return self._replay(self._job(policy="dynamo", planner=planner | settings))

    def _loadline(self, planner: str) -> Outcome:
        roles = self._row.roles
        kv_blocks = int(self._row.engine.get("num_gpu_blocks", KV_BLOCKS))
        with Adapter(configuration(planner, roles, _WORKERS_MAX, TTFT_MS, ITL_MS), roles, kv_blocks) as adapter:
            return self._replay(self._job(policy="remote"), adapter.counts)

    def _job(self, fleet: Fleet = (), **policy: Any) -> Job:
        roles = self._row.roles
        workers = dict(zip(roles, fleet or (_WORKERS_AT_START,) * len(roles), strict=True))
        return Job(str(self._trace), workers, self._row.start_up_s, engine=_ENGINE | self._row.engine, **policy)

    def _replay(self, job: Job, counts: Callable[[Snapshot], dict[str, int]] | None = None) -> Outcome:
        """Do a job; ``counts`` answers its snapshots."""
        answer = _decode(self._simulator.ask(msgspec.json.encode(job)))
        while answer.snapshot is not None and counts is not None:
            answer = _decode(self._simulator.ask(msgspec.json.encode(counts(answer.snapshot))))
        if answer.result is None:
            raise LoadlineError(f"NVIDIA's simulator: {answer.error}")
        return answer.result


@contextmanager
def row_runs(row: Row, simulator: LineProcess) -> Iterator[RowRuns]:
    """Write the trace of a row, and remove it after its runs."""
    arrivals = row.arrivals()
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write_trace(trace, arrivals)
        yield RowRuns(row, trace, len(arrivals), simulator)


def smallest_fleet(run: Callable[[Fleet], Outcome], roles: int, most: int) -> tuple[Outcome, Fleet, Outcome]:
    """Return the outcome of the largest fleet, the smallest one that is as good within 1 %, and its outcome.

    More workers are taken to be no worse, so that halving finds the count; the roles follow each other.
    """
    fleet = (most,) * roles
    ceiling = best = run(fleet)
    for role in range(roles):
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            smaller = (*fleet[:role], middle, *fleet[role + 1 :])
            found = run(smaller)
            if found.met >= NEAR_CEILING * ceiling.met:
                high, fleet, best = middle, smaller, found
            else:
                low = middle + 1
    return ceiling, fleet, best
