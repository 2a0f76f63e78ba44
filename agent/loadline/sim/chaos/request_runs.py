"""Ground truth about running requests: checks at the moment a request starts to run on any worker."""

from typing import Final

from msgspec import Struct, field

from loadline.client.handover.ownership import RequestOwners
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.engine import Request

WorkerInstance = tuple[str, int]
"""A worker and its incarnation."""
_REQUESTS_MAX: Final = 4_096


class _RequestHistory(Struct):
    assigned_hop: int = -1
    """Newest hop that the frontend assigned by itself; an earlier owner may not know of it and continue."""
    hops: set[int] = field(default_factory=set)
    """All hops under which it ever ran."""
    running: dict[WorkerInstance, int] = field(default_factory=dict)
    """Workers that run it -> hop."""


class RequestRuns:
    """Checks of the ownership of requests.

    Args:
        owners: Owners according to the frontend.
        report: Receives violations.
    """

    def __init__(self, owners: RequestOwners, report: ReportViolation) -> None:
        self._owners = owners
        self._report = report
        self._requests: dict[str, _RequestHistory] = {}

    def record_assignment(self, request_id: str, hop: int) -> None:
        """Record that the frontend assigns a request by itself, without the consent of an earlier owner."""
        self._history(request_id).assigned_hop = hop

    def started(self, instance: WorkerInstance, request: Request) -> None:
        """Check and record that a request starts to run on a worker."""
        name, hop = request.request_id, request.hop
        history, owner = self._history(name), self._owners.owner(name)
        detail = f"{name} under hop {hop} at {instance}, {history.running} run it, the owner is {owner}"
        if hop in history.hops:
            self._report("I20-once", detail)
        if owner is not None and hop >= owner.hop and (owner.worker, owner.incarnation, owner.hop) != (*instance, hop):
            self._report("I20-owner", detail)
        if hop > history.assigned_hop and any(before >= history.assigned_hop for before in history.running.values()):
            self._report("I20-stopped", detail)
        history.hops.add(hop)
        history.running[instance] = hop

    def stopped(self, instance: WorkerInstance, request: Request) -> None:
        """Record that a request no longer runs on a worker."""
        self._history(request.request_id).running.pop(instance, None)

    def died(self, instance: WorkerInstance) -> None:
        """Record that a worker has died with all its requests."""
        for history in self._requests.values():
            history.running.pop(instance, None)

    def _history(self, request_id: str) -> _RequestHistory:
        history = self._requests.get(request_id)
        if history is None:
            history = self._requests[request_id] = _RequestHistory()
            oldest = next(iter(self._requests))
            if len(self._requests) > _REQUESTS_MAX and self._owners.owner(oldest) is None:
                del self._requests[oldest]
        return history


class WorkerRuns:
    """Observer of the runs on one lifetime of a worker.

    Args:
        runs: Receives the runs.
        instance: The worker and its incarnation.
    """

    def __init__(self, runs: RequestRuns, instance: WorkerInstance) -> None:
        self._runs = runs
        self._instance = instance

    def started(self, request: Request) -> None:
        """Record the start of a request."""
        self._runs.started(self._instance, request)

    def stopped(self, request: Request) -> None:
        """Record the end of a request."""
        self._runs.stopped(self._instance, request)
