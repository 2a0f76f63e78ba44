"""Platform whose workers are pods: the counts of workloads, deletion costs of victims, and watches."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeVar

from loadline.adapters.kubernetes_api import NOT_FOUND, ApiFault, KubernetesApi, Object, ObjectName, Resource
from loadline.core.vocabulary.decisions import VictimRule
from loadline.scalers.kubernetes.config import KubernetesKnobs, KubernetesPoolKnobs
from loadline.scalers.kubernetes.faults import explain
from loadline.scalers.kubernetes.pods import (
    DELETION_COST,
    Pod,
    cost_changes,
    last_message,
    missing_reason,
    read_pod,
    removed_instead,
)
from loadline.scalers.kubernetes.validation import problems_of
from loadline.scalers.kubernetes.workloads import KubernetesWorkload, WorkloadState, first_ordinal, workload_of
from loadline.scalers.platform import CountChanged, PlatformError, PlatformWait, PoolKey, PoolObservation

PODS: Final = Resource("", "v1", "Pod", "pods")
_OBJECT: Final = "object"
_GATHER_S: Final = 0.1
"""Time to gather changes: a rollout has tens in a second, and each observation takes up to three calls."""
_EVENTS: Final = Resource("", "v1", "Event", "events")
Result = TypeVar("Result")


class _KubernetesPool:
    """A configured pool, its workload, and what was read last."""

    def __init__(self, knobs: KubernetesPoolKnobs, workload: KubernetesWorkload) -> None:
        self.knobs = knobs
        self.workload = workload
        self.selector = knobs.pod_selector
        self.observed: WorkloadState | None = None
        """State that was read last."""
        self.watched: WorkloadState | None = None
        """State that its watch has reported; None: it is not known without a call."""
        self.watches: dict[str, asyncio.Task[None]] = {}


class KubernetesPlatform:
    """The workloads of a configuration.

    Args:
        api: The API server.
        knobs: The configuration.
    """

    def __init__(self, api: KubernetesApi, knobs: KubernetesKnobs) -> None:
        self._api = api
        namespace = knobs.namespace or api.namespace
        self._pools = {
            PoolKey(model.name, pool.name): _KubernetesPool(pool, workload_of(api, pool, namespace))
            for model in knobs.models
            for pool in model.pools
        }
        self._changed = asyncio.Event()
        self._changed_pools: set[PoolKey] = set()

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        """Configured pools, each with the rule by which its controller selects the pods to remove."""
        return {key: pool.knobs.rule for key, pool in self._pools.items()}

    async def validate(self) -> Sequence[str]:
        """Return the problems of the deployment, each with its remedy; empty: it can be scaled."""
        found = [await problems_of(self._api, key, pool.knobs, pool.workload) for key, pool in self._pools.items()]
        return [problem for problems in found for problem in problems]

    async def observe(self, pool: PoolKey) -> PoolObservation:
        """Return the state of a pool.

        Raises:
            PlatformError: The API server cannot be asked.
        """
        found = self._pools[pool]
        known = found.selector
        # Both at once, as soon as the selector is known: a decision waits for these answers.
        reading, pods = await asyncio.gather(
            _explained(found.workload.target, found.workload.read), self._read_pods(found)
        )
        found.selector = found.knobs.pod_selector or reading.selector
        found.observed = reading
        self._keep_watching(pool, found)
        if found.selector != known:
            pods = await self._read_pods(found)
        missing = reading.ready is not None and reading.ready < reading.replicas
        detail = await self._missing_reason(found, reading, pods or ()) if missing else ""
        if pods is None:
            return PoolObservation(reading.replicas, reading.ready, detail=detail)
        return PoolObservation(
            replicas=reading.replicas,
            ready=reading.ready,
            workers=frozenset(pod.worker for pod in pods if pod.worker),
            ending=frozenset(pod.worker for pod in pods if pod.worker and pod.ending),
            unready=frozenset(pod.worker for pod in pods if pod.worker and not pod.ready),
            first_ordinal=first_ordinal(found.workload.target, reading.content),
            detail=detail,
        )

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:
        """Ask for ``replicas``.

        Raises:
            CountChanged: The count is not the observed one any more.
            PlatformWait: The controller would remove other pods than the preferred ones.
            PlatformError: The API server refused.
        """
        found = self._pools[pool]
        base, found.observed, found.watched = found.observed, None, None
        if found.knobs.rule == "named" and base is not None and replicas < base.replicas:
            await self._check_order(found, base.replicas - replicas)
        await _explained(found.workload.target, lambda: found.workload.write(replicas, base))

    async def change_known(self, pool: PoolKey, replicas: int, *, lower: bool) -> int | None:
        """Set a count that the watch has reported, if it is lower or may be lowered; return the previous one.

        Raises:
            PlatformError: The API server refused.
        """
        found = self._pools[pool]
        base = found.watched
        if base is None or base.replicas == replicas or (base.replicas > replicas and not lower):
            return None
        found.watched = None  # until the watch reports the change
        try:
            await _explained(found.workload.target, lambda: found.workload.write(replicas, base))
        except CountChanged:
            return None
        return base.replicas

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:
        """Have the next scale-down remove these workers, the first one first.

        Raises:
            PlatformError: The API server refused.
        """
        found = self._pools[pool]
        pods = await _explained(found.workload.target, lambda: self._list_pods(found))
        for name, cost in sorted(cost_changes(pods, workers).items()):
            target = ObjectName(PODS, found.workload.target.namespace, name)
            patch = {"metadata": {"annotations": {DELETION_COST: cost}}}
            try:
                await self._api.patch(target, patch)
            except ApiFault as fault:
                if fault.status != NOT_FOUND:
                    raise PlatformError(explain(target, fault)) from fault

    async def changed(self) -> Collection[PoolKey]:
        """Wait until the state of a pool may have changed; return the changed pools."""
        await self._changed.wait()
        await asyncio.sleep(_GATHER_S)
        self._changed.clear()
        changed, self._changed_pools = self._changed_pools, set()
        return changed

    async def close(self) -> None:
        """End the watches."""
        watches = [watch for pool in self._pools.values() for watch in pool.watches.values()]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _check_order(self, pool: _KubernetesPool, removals: int) -> None:
        """Check that the controller would remove the preferred pods.

        Raises:
            PlatformWait: It would remove another one, which is still starting or of another ReplicaSet.
        """
        pods = await _explained(pool.workload.target, lambda: self._list_pods(pool))
        instead = removed_instead(pods, removals)
        if not instead:
            return
        sets = {pod.replica_set for pod in pods if not pod.ending}
        reason = f"pod {instead} is not ready, so Kubernetes would remove it before drained ones"
        remedy = "The count waits until it is ready"
        if len(sets) > 1:
            reason = f"its pods are of {len(sets)} ReplicaSets, so Kubernetes may remove {instead} before drained ones"
            remedy = "The count waits until the rollout is complete or undone"
        raise PlatformWait(f"{pool.workload.target}: {reason}. {remedy}")

    async def _list_pods(self, pool: _KubernetesPool) -> list[Pod]:
        if not pool.selector:
            return []
        found = await self._api.list(
            PODS,
            pool.workload.target.namespace,
            partial(read_pod, worker_label=pool.knobs.worker_label),
            selector=pool.selector,
        )
        return [pod for pod in found if pod is not None]

    async def _read_pods(self, pool: _KubernetesPool) -> list[Pod] | None:
        """Return the pods; None: there is no selector, or this login may not list them."""
        if not pool.selector:
            return None
        try:
            return await self._list_pods(pool)
        except ApiFault as fault:
            if fault.forbidden or fault.status == NOT_FOUND:
                return None
            raise PlatformError(explain(pool.workload.target, fault)) from fault

    async def _missing_reason(self, pool: _KubernetesPool, reading: WorkloadState, pods: Sequence[Pod]) -> str:
        """Return why replicas are missing; a StatefulSet reports an exceeded quota by events only."""
        reason = missing_reason(reading.content, pods)
        if reason or len(pods) >= reading.replicas:
            return reason
        target = pool.workload.target
        try:
            fields = {"involvedObject.name": target.name, "type": "Warning"}
            return last_message(await self._api.list(_EVENTS, target.namespace, dict, fields=fields))
        except ApiFault:
            return ""

    def _keep_watching(self, key: PoolKey, pool: _KubernetesPool) -> None:
        target = pool.workload.target

        def note_change(_: Object | None) -> None:
            self._changed_pools.add(key)
            self._changed.set()

        def keep_state(content: Object | None) -> None:
            pool.watched = None
            with suppress(PlatformError):  # observations name what is wrong with the object
                pool.watched = pool.workload.state_in(content) if content else None
            note_change(content)

        self._keep(
            pool,
            _OBJECT,
            lambda: self._api.watch(target.resource, target.namespace, keep_state, name=target.name),
        )
        for former in set(pool.watches) - {_OBJECT, pool.selector}:  # of an object that had the same name
            pool.watches.pop(former).cancel()
        if pool.selector:
            self._keep(
                pool,
                pool.selector,
                lambda: self._api.watch(PODS, target.namespace, note_change, selector=pool.selector),
            )

    def _keep(self, pool: _KubernetesPool, what: str, watch: Callable[[], Coroutine[object, object, None]]) -> None:
        if what not in pool.watches:
            pool.watches[what] = asyncio.create_task(watch(), name=f"watch of {pool.workload.target}: {what}")


@asynccontextmanager
async def connect(knobs: KubernetesKnobs) -> AsyncIterator[KubernetesPlatform]:
    """Yield the platform of a configuration.

    Raises:
        ConfigError: There is no usable kubeconfig.
    """
    async with KubernetesApi(knobs.kubeconfig) as api:
        platform = KubernetesPlatform(api, knobs)
        try:
            yield platform
        finally:
            await platform.close()


async def _explained(target: ObjectName, call: Callable[[], Awaitable[Result]]) -> Result:
    """Return the answer to a call; name the object in its error."""
    try:
        return await call()
    except ApiFault as fault:
        raise PlatformError(explain(target, fault)) from fault
