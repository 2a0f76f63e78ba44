"""Pods of a pool: their workers, the order in which a ReplicaSet removes them, and why they do not start. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from loadline.adapters.kubernetes_api import Object
from loadline.scalers.kubernetes.places import Step, parse_place, value_at

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_REPLICA_SET: Final = "pod-template-hash"
# Costs are 32-bit integers. These are below any that a user would set, so that pods which have one were chosen here.
_COST_MIN: Final = -2_147_483_647
_PREFERRED_MAX: Final = 100_000
_REASON_CHARS_MAX: Final = 200
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_PHASES: Final = {"Pending": 0, "Unknown": 1}
_STARTING: Final = frozenset({"ContainerCreating", "PodInitializing"})
_CONTAINER_GROUPS: Final = ("initContainerStatuses", "containerStatuses")


class Pod(Struct, frozen=True):
    """A pod that has not ended."""

    name: str
    worker: str
    ready: bool
    assigned: bool
    phase: str
    cost: int
    created: str
    replica_set: str = ""
    """Hash by which a Deployment labels the pods of each of its ReplicaSets; empty: it is of no Deployment."""
    ending: bool = False
    """True if it is being deleted: it is no replica any more."""
    problem: str = ""
    stopped: bool = False
    """True if none of its containers runs or starts, as between two crashes: its removal costs no request."""

    @property
    def preferred(self) -> bool:
        """True if its removal was asked for."""
        return self.cost < _COST_MIN + _PREFERRED_MAX


def read_pod(content: Object, worker_label: str) -> Pod | None:
    """Return a pod; None if it has ended."""
    if _at(content, "status.phase") in _ENDED:
        return None
    name = str(_at(content, "metadata.name"))
    labels, annotations = _mapping(content, "labels"), _mapping(content, "annotations")
    conditions = _conditions(content)
    cost = str(annotations.get(DELETION_COST, "0"))
    return Pod(
        name=name,
        worker=str(labels.get(worker_label, "")) if worker_label else name,
        ready=conditions.get("Ready", {}).get("status") == "True",
        assigned=bool(_at(content, "spec.nodeName")),
        phase=str(_at(content, "status.phase")),
        cost=int(cost) if cost.removeprefix("-").isdecimal() else 0,
        created=str(_at(content, "metadata.creationTimestamp")),
        replica_set=str(labels.get(_REPLICA_SET, "")),
        ending=bool(_at(content, "metadata.deletionTimestamp")),
        problem=_pod_problem(name, content, conditions),
        stopped=_is_stopped(content),
    )


def cost_changes(pods: Sequence[Pod], workers: Sequence[str]) -> dict[str, str | None]:
    """Return the deletion costs to set by pod, so that these workers go first, in this order; None removes one."""
    rank = {worker: _COST_MIN + index for index, worker in enumerate(workers[:_PREFERRED_MAX])}
    changes: dict[str, str | None] = {}
    for pod in pods:
        wanted = rank.get(pod.worker)
        if wanted is not None and pod.cost != wanted:
            changes[pod.name] = str(wanted)
        elif wanted is None and pod.preferred:
            changes[pod.name] = None
    return changes


def removed_instead(pods: Sequence[Pod], removals: int) -> str:
    """Return a pod that Kubernetes might remove in place of a preferred one; empty: none.

    A ReplicaSet removes first pods that are not scheduled, pending or not ready, and compares costs only then. Stopped
    ones may go. During a rollout a Deployment spreads the removals over its ReplicaSets, whatever the pods cost.
    """
    staying = [pod for pod in pods if not pod.ending]
    sets = {pod.replica_set for pod in staying}
    first = [pod for one in sets for pod in _removal_order(pod for pod in staying if pod.replica_set == one)[:removals]]
    missed = min(removals, sum(pod.preferred for pod in staying)) - sum(pod.preferred for pod in first)
    others = (pod.name for pod in first if not pod.preferred and not pod.stopped)
    return next(others, "") if missed > 0 or len(sets) > 1 else ""


def _removal_order(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods of a ReplicaSet in the order in which it removes them."""
    return sorted(pods, key=lambda pod: (pod.assigned, _PHASES.get(pod.phase, 2), pod.ready, pod.cost))


def missing_reason(content: Object, pods: Sequence[Pod]) -> str:
    """Return why replicas are missing: a condition of the object, or the problem of its oldest pod with one."""
    return _condition_problem(content) or next(
        (pod.problem for pod in sorted(pods, key=lambda pod: pod.created) if pod.problem), ""
    )


def last_message(events: Iterable[Object]) -> str:
    """Return the message of the newest event."""
    newest = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default={})
    return str(newest.get("message", ""))[:_REASON_CHARS_MAX]


def _is_stopped(content: Object) -> bool:
    states = [value_at(container, (Step("state"),)) for container in _containers(content)]
    reported = [state for state in states if isinstance(state, dict)]
    if not reported:  # the node has not reported any yet
        return not _at(content, "spec.nodeName")
    return not any("running" in state or _waits(state).get("reason") in _STARTING for state in reported)


def _containers(content: Object) -> list[Object]:
    return [item for group in _CONTAINER_GROUPS for item in _list(value_at(content, (Step("status"), Step(group))))]


def _waits(state: Any) -> Object:
    waiting = state.get("waiting") if isinstance(state, dict) else None
    return waiting if isinstance(waiting, dict) else {}


def _pod_problem(name: str, content: Object, conditions: Mapping[str, Object]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return _sentence(f"pod {name} is not scheduled", scheduled.get("message"))
    for container in _containers(content):
        waiting = _waits(container.get("state"))
        if waiting and waiting.get("reason") not in _STARTING:
            return _sentence(f"pod {name} waits: {waiting.get('reason')}", waiting.get("message"))
    return ""


def _condition_problem(content: Object) -> str:
    """Return the problem that an object's conditions state, such as an exceeded quota."""
    conditions = _conditions(content)
    failure, progressing = conditions.get("ReplicaFailure", {}), conditions.get("Progressing", {})
    if failure.get("status") == "True":
        return _sentence(str(failure.get("reason", "ReplicaFailure")), failure.get("message"))
    ready = conditions.get("Ready", {})
    stopped = next((condition for condition in (progressing, ready) if condition.get("status") == "False"), None)
    return _sentence(str(stopped.get("reason", "not ready")), stopped.get("message")) if stopped else ""


def _conditions(content: Object) -> dict[str, Object]:
    listed = _list(_at(content, "status.conditions"))
    return {str(condition.get("type")): condition for condition in listed}


def _mapping(content: Object, key: str) -> Object:
    found = value_at(content, (Step("metadata"), Step(key)))
    return found if isinstance(found, dict) else {}


def _list(value: Any) -> list[Object]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _at(content: Object, place: str) -> Any:
    return value_at(content, parse_place(place)) or ""


def _sentence(problem: str, message: object) -> str:
    return (f"{problem}: {message}" if message else problem)[:_REASON_CHARS_MAX]
