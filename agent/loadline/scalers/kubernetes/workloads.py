"""Objects that hold a count of replicas: in their ``/scale``, at a place inside them, or in a Dynamo service."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from msgspec import Struct

from loadline.adapters.kubernetes_api import CONFLICT, NOT_FOUND, ApiFault, KubernetesApi, Object, ObjectName, Resource
from loadline.scalers.kubernetes.config import (
    GRAPH_DEPLOYMENT,
    KINDS,
    ORDINAL_KINDS,
    KubernetesPoolKnobs,
    object_name,
)
from loadline.scalers.kubernetes.places import Step, parse_place, patch_at, value_at
from loadline.scalers.platform import CountChanged, PlatformError

_CONFLICTS_MAX: Final = 5
_REPLICAS: Final = parse_place("spec.replicas")
_FIRST_ORDINAL: Final = parse_place("spec.ordinals.start")
# Their count is at _REPLICAS, and status.readyReplicas counts the ready ones.
_USUAL_KINDS: Final = frozenset({"Deployment", "StatefulSet", "LeaderWorkerSet"})
_ADAPTER_KIND: Final = "DynamoGraphDeploymentScalingAdapter"
# Names that Dynamo's recipes give to services without a type, the oldest last.
_LEGACY_SERVICES: Final = {
    "prefill": ("prefill", "VllmPrefillWorker", "SGLangPrefillWorker", "TRTLLMPrefillWorker"),
    "decode": ("decode", "VllmDecodeWorker", "SGLangDecodeWorker", "TRTLLMDecodeWorker"),
}


class WorkloadState(Struct, frozen=True):
    """State of a workload."""

    replicas: int
    content: Object
    """The object."""
    ready: int | None = None
    selector: str = ""
    """Labels of its pods; empty: it does not say."""
    version: Any = None
    """Version of the object that holds the count: a change of another version conflicts."""


class KubernetesWorkload(Protocol):
    """An object with a count of replicas."""

    target: ObjectName

    async def read(self) -> WorkloadState:
        """Return its state."""
        ...

    def state_in(self, content: Object) -> WorkloadState | None:
        """Return its state as the object has it; None: the object alone does not have it."""
        ...

    async def write(self, replicas: int, base: WorkloadState | None = None, *, dry_run: bool = False) -> None:
        """Set its count, if it is still that of ``base``.

        Raises:
            CountChanged: It is not.
        """
        ...


def workload_of(api: KubernetesApi, pool: KubernetesPoolKnobs, namespace: str) -> KubernetesWorkload:
    """Return the workload of a pool, in ``namespace`` unless the pool names one."""
    api_version = pool.api_version or KINDS[pool.kind].api_version
    group, version = api_version.split("/")
    resource = Resource(group, version, pool.kind, pool.plural or f"{pool.kind.lower()}s")
    target = ObjectName(resource, pool.namespace or namespace, object_name(pool))
    if pool.kind == GRAPH_DEPLOYMENT:
        return GraphService(api, target, pool.sub_component_type, pool.service)
    if pool.path:
        return CountInside(api, target, parse_place(pool.path))
    return Scalable(api, target)


def first_ordinal(target: ObjectName, content: Object) -> int | None:
    """Return the number of the first pod, which a StatefulSet may set; None for kinds that may number otherwise."""
    if target.resource.kind not in ORDINAL_KINDS:
        return None
    return _count(value_at(content, _FIRST_ORDINAL)) or 0


class Scalable:
    """An object with a ``/scale``."""

    def __init__(self, api: KubernetesApi, target: ObjectName) -> None:
        self._api = api
        self.target = target
        self._selector = ""
        self._uid: Any = None

    async def read(self) -> WorkloadState:
        """Return its state; for usual kinds without ``/scale`` once the selector is known, since it never changes."""
        if self._selector and self._is_usual:
            content = await self._api.get(self.target)
            if _uid(content) == self._uid:  # else another object has its name, with a selector of its own
                return self._usual_state(content)
        content, scale = await asyncio.gather(self._api.get(self.target), self._api.get_scale(self.target))
        # The server leaves out a count of 0.
        replicas = _count(value_at(scale, _REPLICAS)) or 0
        selector = value_at(scale, parse_place("status.selector"))
        self._selector, self._uid = selector if isinstance(selector, str) else "", _uid(content)
        return WorkloadState(replicas, content, _ready(content), self._selector, _version(scale))

    def state_in(self, content: Object) -> WorkloadState | None:
        """Return its state as the object has it; None: only its ``/scale`` knows where the count is."""
        return self._usual_state(content) if self._is_usual else None

    async def write(self, replicas: int, base: WorkloadState | None = None, *, dry_run: bool = False) -> None:
        """Set its count, if it is still that of ``base``."""

        async def send(state: WorkloadState | None) -> None:
            patch = _precondition(state) | {"spec": {"replicas": replicas}}
            await self._api.patch(self.target, patch, scale=True, dry_run=dry_run)

        await _repeat_on_conflict(self, base, send)

    @property
    def _is_usual(self) -> bool:
        return self.target.resource.kind in _USUAL_KINDS

    def _usual_state(self, content: Object) -> WorkloadState:
        replicas = count_at(content, _REPLICAS, self.target)
        return WorkloadState(replicas, content, _ready(content), self._selector, _version(content))


class CountInside:
    """An object without a ``/scale``, whose count is at a place inside it."""

    def __init__(self, api: KubernetesApi, target: ObjectName, place: tuple[Step, ...]) -> None:
        self._api = api
        self.target = target
        self._place = place

    async def read(self) -> WorkloadState:
        """Return its state."""
        return self.state_in(await self._api.get(self.target))

    def state_in(self, content: Object) -> WorkloadState:
        """Return its state as the object has it."""
        replicas = count_at(content, self._place, self.target)
        return WorkloadState(replicas, content, self._ready(content), version=_version(content))

    async def write(self, replicas: int, base: WorkloadState | None = None, *, dry_run: bool = False) -> None:
        """Set its count, if it is still that of ``base``; if the object changes meanwhile, in the changed object."""

        async def send(state: WorkloadState | None) -> None:
            found = state or await self.read()
            if found.replicas == replicas and not dry_run:
                return
            patch = _precondition(found) | patch_at(found.content, self._place, replicas)
            await self._api.patch(self.target, patch, dry_run=dry_run)

        await _repeat_on_conflict(self, base, send)

    def _ready(self, content: Object) -> int | None:
        """Return the ready replicas of a role, such as of a StormService."""
        role = next((step.element for step in self._place if step.element), "")
        return _count(value_at(content, (Step("status"), Step("roleStatuses", role), Step("readyReplicas"))))


class GraphService:
    """A service of a DynamoGraphDeployment, scaled by its ScalingAdapter if it has one.

    Args:
        sub_component_type: Type of the service.
        service: Its name, if no service has the type.
    """

    def __init__(self, api: KubernetesApi, target: ObjectName, sub_component_type: str, service: str) -> None:
        self._api = api
        self.target = target
        self._type = sub_component_type
        self._service = service

    async def read(self) -> WorkloadState:
        """Return its state."""
        content = await self._api.get(self.target)
        name = self._find(content)
        adapter = await self._adapter_reading(name)
        place = _service_place(content, name)
        replicas = adapter.replicas if adapter else count_at(content, place, self.target)
        group = "components" if _is_list(content) else "services"
        ready = _count(value_at(content, (Step("status"), Step(group), Step(name), Step("readyReplicas"))))
        return WorkloadState(replicas, content, ready, version=adapter.version if adapter else _version(content))

    def state_in(self, content: Object) -> None:
        """Return None: a ScalingAdapter may hold the count."""

    async def write(self, replicas: int, base: WorkloadState | None = None, *, dry_run: bool = False) -> None:
        """Set its count, if it is still that of ``base``."""
        content = await self._api.get(self.target)
        name = self._find(content)
        if await self._adapter_reading(name):
            await self._adapter(name).write(replicas, base, dry_run=dry_run)
        else:
            inside = CountInside(self._api, self.target, _service_place(content, name))
            await inside.write(replicas, base, dry_run=dry_run)

    def _adapter(self, service: str) -> Scalable:
        resource = self.target.resource
        adapters = Resource(resource.group, resource.version, _ADAPTER_KIND, f"{_ADAPTER_KIND.lower()}s")
        return Scalable(self._api, ObjectName(adapters, self.target.namespace, f"{self.target.name}-{service.lower()}"))

    async def _adapter_reading(self, service: str) -> WorkloadState | None:
        try:
            return await self._adapter(service).read()
        except ApiFault as fault:
            if fault.status == NOT_FOUND:
                return None
            raise

    def _find(self, content: Object) -> str:
        """Return the name of the service."""
        services = _services(content)
        typed = sorted(name for name, type_name in services.items() if self._type and type_name == self._type)
        if len(typed) > 1:
            remedy = f"Give {self._type} to one of them."
            raise PlatformError(f"{self.target}: {', '.join(typed)} all have the type {self._type}. {remedy}")
        names = [self._service] if self._service else _LEGACY_SERVICES.get(self._type, ())
        found = typed or [name for name in names if services.get(name) in {"", "worker", self._type}]
        if not found:
            wanted = self._type or self._service
            remedy = "Set its subComponentType, or name it with the key service."
            raise PlatformError(f"{self.target}: no service is {wanted}. {remedy}")
        return found[0]


async def _repeat_on_conflict(
    workload: KubernetesWorkload, base: WorkloadState | None, send: Callable[[WorkloadState | None], Awaitable[None]]
) -> None:
    """Send a change of ``base``, and after a conflict of the state as it is then, unless its count is another one."""
    state = base
    for attempt in range(1, _CONFLICTS_MAX + 1):
        try:
            if attempt > 1:
                state = await workload.read()
            if base and state and state.replicas != base.replicas:
                problem = f"somebody else has changed its replicas from {base.replicas} to {state.replicas}"
                raise CountChanged(f"{workload.target}: {problem}")
            await send(state)
        except ApiFault as fault:
            if fault.status != CONFLICT or attempt == _CONFLICTS_MAX:
                raise
        else:
            return


def _precondition(state: WorkloadState | None) -> Object:
    """Return the part of a patch by which the server refuses it if the object has changed since."""
    return {"metadata": {"resourceVersion": state.version}} if state and state.version else {}


def _uid(content: Object) -> Any:
    return value_at(content, parse_place("metadata.uid"))


def _version(content: Object) -> Any:
    return value_at(content, parse_place("metadata.resourceVersion"))


def count_at(content: Object, place: tuple[Step, ...], target: ObjectName) -> int:
    """Return the count at a place; without one, the usual default of 1.

    Raises:
        PlatformError: The object has no such place.
    """
    if not isinstance(value_at(content, place[:-1]), dict):
        remedy = "Correct path, or name a role or service that it has."
        raise PlatformError(f"{target}: it has no {'.'.join(map(_text, place))}. {remedy}")
    found = _count(value_at(content, place))
    return 1 if found is None else found


def _text(step: Step) -> str:
    return f"{step.key}[name={step.element}]" if step.element else step.key


def _services(content: Object) -> dict[str, str]:
    """Return the type of each service: since v1beta1 they are a list of components, before a map."""
    spec = content.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    components, services = spec.get("components"), spec.get("services")
    if isinstance(components, list):
        named = [item for item in components if isinstance(item, dict)]
        return {str(item.get("name", "")): str(item.get("type", "")) for item in named}
    if isinstance(services, dict):
        found = {name: item for name, item in services.items() if isinstance(item, dict)}
        return {name: str(item.get("subComponentType", "")) for name, item in found.items()}
    return {}


def _is_list(content: Object) -> bool:
    return isinstance(value_at(content, parse_place("spec.components")), list)


def _service_place(content: Object, name: str) -> tuple[Step, ...]:
    if _is_list(content):
        return (Step("spec"), Step("components", name), Step("replicas"))
    return (Step("spec"), Step("services"), Step(name), Step("replicas"))


def _ready(content: Object) -> int | None:
    """Return the ready replicas; a controller leaves out a count of 0, and a status before it has begun."""
    status = content.get("status")
    found = _count(status.get("readyReplicas")) if isinstance(status, dict) else None
    return 0 if found is None and content.get("kind") in _USUAL_KINDS else found


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
