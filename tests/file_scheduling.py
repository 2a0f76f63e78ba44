"""Distribution of the test files of a parallel run over two workers for each core.

Tests of real processes mostly wait: they take a quarter of a core. One half of the workers begin with them. The other
half compute meanwhile, with a low priority, so that they delay no process.
"""

import os

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

NICENESS = 5
"""Gives a third of the weight of other processes: more would slow tests down fourfold while all workers compute."""
_COMPUTING = tuple(f"tests/{name}/" for name in ("fuzz", "golden", "planners", "property", "simulation", "vectors"))
_WAITING_WORKERS_MAX = 4


def workers() -> int:
    """Return the number of workers that this machine keeps busy."""
    return 2 * _waiting_workers()


def has_low_priority(worker: str) -> bool:
    """Return whether a worker, such as ``gw2``, is one of those that compute."""
    return int(worker.removeprefix("gw")) >= _waiting_workers()


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Scheduler that gives each worker the files of its half first; one that computes takes others from the end."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        computes = has_low_priority(node.gateway.id)
        other = next(reversed(self.workqueue) if computes else iter(self.workqueue))
        wanted = next((file for file in self.workqueue if file.startswith(_COMPUTING) == computes), other)
        self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)


def _waiting_workers() -> int:
    return min(_WAITING_WORKERS_MAX, len(os.sched_getaffinity(0)))
