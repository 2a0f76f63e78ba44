"""Who runs which request, as it really is: judged at the moment at which a request begins to run anywhere."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from loadline.client.ownership import RequestOwners
from loadline.sim.engine import Request

WorkerLife = tuple[str, int]
"""A worker and its incarnation."""
_KEPT_MAX: Final = 4_096


class _RequestHistory(Struct):
    assigned_hop: int = -1
    """The newest hop that the frontend gave of itself: whoever ran it before need not know of that."""
    hops: set[int] = field(default_factory=set)
    """All under which it ever ran."""
    running: dict[WorkerLife, int] = field(default_factory=dict)
    """By whom, and under which hop."""


class RequestRuns:
    """The truth about requests.

    Args:
        owners: What the frontend keeps.
        report: Takes what does not hold.
    """

    def __init__(self, owners: RequestOwners, report: Callable[[str, str], None]) -> None:
        self._owners = owners
        self._report = report
        self._requests: dict[str, _RequestHistory] = {}

    def record_assignment(self, request_id: str, hop: int) -> None:
        """The frontend gives it to a worker of itself, whatever becomes of the one that had it."""
        self._history(request_id).assigned_hop = hop

    def started(self, life: WorkerLife, request: Request) -> None:
        """It begins to run there."""
        name, hop = request.request_id, request.hop
        known, owner = self._history(name), self._owners.owner(name)
        said = f"{name} under hop {hop} at {life}, {known.running} run it, {owner} owns it"
        if hop in known.hops:
            self._report("I20-once", said)
        if owner is not None and hop >= owner.hop and (owner.worker, owner.incarnation, owner.hop) != (*life, hop):
            self._report("I20-owner", said)
        if hop > known.assigned_hop and any(before >= known.assigned_hop for before in known.running.values()):
            self._report("I20-stopped", said)
        known.hops.add(hop)
        known.running[life] = hop

    def stopped(self, life: WorkerLife, request: Request) -> None:
        """It does not run there any more."""
        self._history(request.request_id).running.pop(life, None)

    def died(self, life: WorkerLife) -> None:
        """Nothing runs there any more."""
        for known in self._requests.values():
            known.running.pop(life, None)

    def _history(self, request_id: str) -> _RequestHistory:
        known = self._requests.get(request_id)
        if known is None:
            known = self._requests[request_id] = _RequestHistory()
            oldest = next(iter(self._requests))
            if len(self._requests) > _KEPT_MAX and self._owners.owner(oldest) is None:
                del self._requests[oldest]
        return known


class WorkerRuns:
    """Tells of the requests of one life of a worker.

    Args:
        runs: Is told.
        life: Whose they are.
    """

    def __init__(self, runs: RequestRuns, life: WorkerLife) -> None:
        self._runs = runs
        self._life = life

    def started(self, request: Request) -> None:
        """It runs here now."""
        self._runs.started(self._life, request)

    def stopped(self, request: Request) -> None:
        """It does so no more."""
        self._runs.stopped(self._life, request)
