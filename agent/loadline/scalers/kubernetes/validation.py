"""Problems of a workload that is to be scaled, found by trying each call without an effect."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadline.adapters.kubernetes_api import NOT_FOUND, ApiFault, KubernetesApi, Object, ObjectName, Resource
from loadline.config.autoscalers import CREATED_BY
from loadline.scalers.kubernetes.config import STORM_SERVICE, KubernetesPoolKnobs
from loadline.scalers.kubernetes.faults import GRANT, explain
from loadline.scalers.kubernetes.places import parse_place, value_at
from loadline.scalers.kubernetes.pods import DELETION_COST
from loadline.scalers.kubernetes.workloads import KubernetesWorkload, WorkloadState
from loadline.scalers.platform import PlatformError, PoolKey

_PODS: Final = Resource("", "v1", "Pod", "pods")
_AUTOSCALERS: Final = Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
# The server checks permissions before it looks for the object, so a patch of an absent pod shows what is permitted.
_ABSENT_POD: Final = "loadline-permission-check"


async def problems_of(
    api: KubernetesApi, key: PoolKey, knobs: KubernetesPoolKnobs, workload: KubernetesWorkload
) -> Sequence[str]:
    """Return the problems of a pool, each with its remedy."""
    place, target = f"{key.model}/{key.pool}", workload.target
    try:
        reading = await workload.read()
    except PlatformError as error:
        return [f"{place}: {error}"]
    except ApiFault as fault:
        return [f"{place}: {explain(target, fault)}"]
    found = [
        await _write_problem(workload, reading),
        await _watch_problem(api, target),
        *await _pod_problems(api, knobs, target, knobs.pod_selector or reading.selector),
        await _autoscaler_problem(api, target),
        *_shape_problems(knobs, reading.content),
    ]
    return [f"{place}: {problem}" for problem in found if problem]


async def _write_problem(workload: KubernetesWorkload, reading: WorkloadState) -> str:
    try:
        await workload.write(reading.replicas, dry_run=True)
    except ApiFault as fault:
        remedy = GRANT if fault.forbidden else "Check kind and path."
        return f"{workload.target} cannot be scaled: {fault}. {remedy}"
    return ""


async def _watch_problem(api: KubernetesApi, target: ObjectName) -> str:
    try:
        await api.may_watch(target)
    except ApiFault as fault:
        remedy = GRANT if fault.forbidden else "Check the API server."
        return f"{target} cannot be watched: {fault}. {remedy}"
    return ""


async def _pod_problems(
    api: KubernetesApi, knobs: KubernetesPoolKnobs, target: ObjectName, selector: str
) -> Sequence[str]:
    """Return why victims cannot be seen or named."""
    names_victims = knobs.rule == "named"
    instead = 'set victims = "unknown"'
    if not selector:
        remedy = f"Set pod_selector, or {instead}."
        return [f"{target} has no selector, so its victims cannot be named. {remedy}"] if names_victims else []
    try:
        await api.list(_PODS, target.namespace, bool, selector=selector)
        if names_victims:
            patch = {"metadata": {"annotations": {DELETION_COST: "0"}}}
            await api.patch(ObjectName(_PODS, target.namespace, _ABSENT_POD), patch, dry_run=True)
    except ApiFault as fault:
        if fault.status == NOT_FOUND and _ABSENT_POD in str(fault):
            return []
        if names_victims:
            return [f"victims of {target} cannot be named: {fault}. Grant list and patch of pods, or {instead}."]
        return [f"the pods of {target} cannot be seen: {fault}. {GRANT}"] if fault.forbidden else []
    return []


async def _autoscaler_problem(api: KubernetesApi, target: ObjectName) -> str:
    """Return the autoscaler that scales the same object, if they may be listed."""
    try:
        autoscalers = await api.list(_AUTOSCALERS, target.namespace, dict)
    except ApiFault:
        return ""
    for autoscaler in autoscalers:
        scaled = value_at(autoscaler, parse_place("spec.scaleTargetRef"))
        if isinstance(scaled, dict) and (scaled.get("kind"), scaled.get("name")) == (target.resource.kind, target.name):
            remedy = "Delete it, or run loadline scaler observed instead."
            return f"the {_autoscaler_name(autoscaler)} also sets the replicas of {target}. {remedy}"
    return ""


def _autoscaler_name(autoscaler: Object) -> str:
    """Return kind and name of what to delete: KEDA would create the HPA of a ScaledObject again."""
    labels = value_at(autoscaler, parse_place("metadata.labels"))
    scaled_object = labels.get(CREATED_BY) if isinstance(labels, dict) else None
    if scaled_object:
        return f"ScaledObject {scaled_object}"
    return f"HorizontalPodAutoscaler {value_at(autoscaler, parse_place('metadata.name'))}"


def _shape_problems(knobs: KubernetesPoolKnobs, content: Object) -> Sequence[str]:
    found = []
    copies = value_at(content, parse_place("spec.replicas"))
    if knobs.kind == STORM_SERVICE and isinstance(copies, int) and copies > 1:
        found.append(f"spec.replicas is {copies}, which multiplies the role's count. Set it to 1.")
    gpus = gpus_of_replica(content)
    if knobs.gpus_per_worker and gpus not in {0, knobs.gpus_per_worker}:
        remedy = "Correct gpus_per_worker here and in the agent's configuration."
        found.append(f"a replica has {gpus} GPUs, gpus_per_worker is {knobs.gpus_per_worker}. {remedy}")
    return found


def gpus_of_replica(content: Object) -> int:
    """Return the GPUs of a replica: of its pod, or of all pods of its group; 0: the object does not say."""
    group = value_at(content, parse_place("spec.leaderWorkerTemplate"))
    if not isinstance(group, dict):
        return _gpus(value_at(content, parse_place("spec.template")))
    size, worker = group.get("size", 1), _gpus(group.get("workerTemplate"))
    leader = _gpus(group["leaderTemplate"]) if group.get("leaderTemplate") else worker
    return leader + worker * (size - 1) if isinstance(size, int) and size > 0 else 0


def _gpus(template: Any) -> int:
    """Return the GPUs of a pod template's containers, of every vendor."""
    containers = value_at(template, parse_place("spec.containers"))
    limits = [value_at(item, parse_place("resources.limits")) for item in containers or () if isinstance(item, Mapping)]
    counts = [str(count) for limit in limits if limit for name, count in limit.items() if name.endswith("/gpu")]
    return sum(int(count) for count in counts if count.isdecimal())
