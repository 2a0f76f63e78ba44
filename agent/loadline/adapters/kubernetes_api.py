"""Client of the Kubernetes API, on lightkube: objects and their counts, as plain dictionaries.

Changes are merge patches, since custom resources refuse lightkube's default. The token of a service account is read
again when the server refuses it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from math import inf
from os import environ
from typing import Any, Final, Self, TypeVar

import httpx2
import lightkube
import msgspec
from lightkube.config.client_adapter import verify_cluster
from lightkube.core.exceptions import ConfigError as KubeconfigError
from lightkube.core.resource import ApiInfo, ResourceDef
from lightkube.generic_resource import GenericNamespacedResource, GenericNamespacedStatus, create_api_info
from lightkube.types import PatchType

from loadline.adapters.backoff import backoff
from loadline.adapters.logs import bounded
from loadline.errors import ConfigError, LoadlineError

NOT_FOUND: Final = 404
CONFLICT: Final = 409
_FORBIDDEN: Final = 403
_THROTTLED: Final = frozenset({429, 503})
_ATTEMPTS_MAX: Final = 4
# Of all waits together.
_RETRY_AFTER_MAX_S: Final = 10.0
# Of all attempts and waits: the driver gives a call 30 s, and so it can report that the server throttles.
_ANSWER_MAX_S: Final = 28.0
_CALL_TIMEOUT_S: Final = 10.0
_KEEP_ALIVE_S: Final = 90.0
# A page of 250 pods takes 10 MB while it is read.
_PAGE_OBJECTS: Final = 250
# Each watch is opened again, with the present objects, after a minute: a server whose etcd was restored from a snapshot
# sends nothing to a watch that continues from a later version, and closes it neither.
_WATCH_S: Final = 60.0
# A proxy that closes watches as soon as they are open got 1,200 of them a second: lightkube opens the next one at once.
_WATCH_INTERVAL_S: Final = 1.0
_LIST_TIMEOUT_S: Final = 25.0
"""Time for all pages: 3,000 pods are 21 MB. The driver gives a call 30 s."""
_MESSAGE_CHARS_MAX: Final = 300
# KeyError: an answer without Content-Type. ValueError and MsgspecError: a body of another form. KubeconfigError: no
# file with the token.
_CALL_ERRORS: Final = (httpx2.HTTPError, KubeconfigError, OSError, KeyError, ValueError, msgspec.MsgspecError)

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Object = dict[str, Any]
_log = bounded("kubernetes")


class ApiFault(LoadlineError):
    """A call that the API server refused or did not answer.

    Args:
        status: HTTP status; 0: no answer.
        message: The server's sentence.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message[:_MESSAGE_CHARS_MAX])
        self.status = status

    @property
    def forbidden(self) -> bool:
        """True if this login may not do it."""
        return self.status == _FORBIDDEN


class Resource(msgspec.Struct, frozen=True):
    """A namespaced kind of the API, such as Deployments."""

    group: str
    version: str
    kind: str
    plural: str


class ObjectName(msgspec.Struct, frozen=True):
    """Identity of an object."""

    resource: Resource
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the form of messages, such as ``Deployment serving/llama``."""
        return f"{self.resource.kind} {self.namespace}/{self.name}"


class _PacedWatches(httpx2.AsyncHTTPTransport):
    """Transport that opens watches of the same objects at least a second apart."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opened_s: dict[httpx2.URL, float] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; a watch waits for its turn."""
        if "watch" in request.url.params:
            objects, clock = request.url.copy_remove_param("resourceVersion"), asyncio.get_running_loop().time
            await asyncio.sleep(self._opened_s.get(objects, -inf) + _WATCH_INTERVAL_S - clock())
            self._opened_s[objects] = clock()
        return await super().handle_async_request(request)


@cache
def _objects_of(resource: Resource) -> type[GenericNamespacedResource]:
    """Return the class by which lightkube addresses objects of a kind; its registry takes no pods as dictionaries."""
    api_info = create_api_info(resource.group, resource.version, resource.kind, resource.plural)
    return type(resource.kind, (GenericNamespacedResource,), {"_api_info": api_info})


@cache
def _scales_of(resource: Resource) -> type[GenericNamespacedStatus]:
    """Return the class by which lightkube addresses the ``/scale`` of objects of a kind."""
    parent = ResourceDef(resource.group, resource.version, resource.kind)
    scale = ResourceDef("autoscaling", "v1", "Scale")
    api_info = ApiInfo(scale, plural=resource.plural, verbs=["get", "patch"], parent=parent, action="scale")
    return type(f"{resource.kind}Scale", (GenericNamespacedStatus,), {"_api_info": api_info})


class KubernetesApi:
    """Client, as an async context manager.

    Args:
        kubeconfig: File with server and login; empty: the pod's service account, then ``KUBECONFIG``, then
            ``~/.kube/config``.

    Raises:
        ConfigError: There is no usable configuration.
    """

    def __init__(self, kubeconfig: str = "") -> None:
        try:
            configs = lightkube.KubeConfig.from_file(kubeconfig) if kubeconfig else lightkube.KubeConfig.from_env()
            config = configs.get()
            if config is None or config.user is None:
                raise ValueError("it names no cluster and user")  # noqa: TRY301 - one report of all that is wrong with it
            # Watches stay open, so the number of connections has no limit: httpx2's is 100. Idle ones live as long as
            # client-go's, longer than the scaler's 30 s between observations: a new one costs two round trips for TLS.
            transport = _PacedWatches(
                verify=verify_cluster(config.cluster, config.user, config.abs_file),
                limits=httpx2.Limits(
                    max_connections=None, max_keepalive_connections=32, keepalive_expiry=_KEEP_ALIVE_S
                ),
            )
            self._client = lightkube.AsyncClient(
                config, timeout=httpx2.Timeout(_CALL_TIMEOUT_S), transport=transport, field_manager="loadline"
            )
        except (KubeconfigError, OSError, ValueError, AttributeError, msgspec.MsgspecError) as error:
            place = kubeconfig or environ.get("KUBECONFIG", "~/.kube/config")
            remedy = "Set kubeconfig, or run the scaler in a pod with a service account."
            raise ConfigError("kubeconfig", f"{place} cannot be used: {error}", remedy) from error
        self.namespace: str = self._client.namespace
        """Namespace of the login."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._client.close()

    async def get(self, target: ObjectName) -> Object:
        """Return an object.

        Raises:
            ApiFault: The server refused or did not answer.
        """
        kind = _objects_of(target.resource)
        return dict(await _answered(lambda: self._client.get(kind, target.name, namespace=target.namespace)))

    async def get_scale(self, target: ObjectName) -> Object:
        """Return the ``/scale`` of an object.

        Raises:
            ApiFault: The server refused or did not answer.
        """
        scale: Any = _scales_of(target.resource)
        return dict(await _answered(lambda: self._client.get(scale, target.name, namespace=target.namespace)))

    async def patch(self, target: ObjectName, patch: Object, *, scale: bool = False, dry_run: bool = False) -> None:
        """Apply a merge patch to an object or to its ``/scale``.

        Raises:
            ApiFault: The server refused or did not answer.
        """
        patched: Any = _scales_of(target.resource) if scale else _objects_of(target.resource)

        async def send() -> None:
            await self._client.patch(
                patched,
                target.name,
                patch,
                namespace=target.namespace,
                patch_type=PatchType.MERGE,
                dry_run=dry_run,
            )

        await _answered(send)

    async def list(
        self,
        resource: Resource,
        namespace: str,
        read: Callable[[Object], Item],
        *,
        selector: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> list[Item]:
        """Return what ``read`` makes of each object of a namespace that a label selector and fields select.

        Objects are read page by page, so that not all of them are in memory: a pod takes 60 kB.

        Raises:
            ApiFault: The server refused or did not answer.
        """

        async def collect() -> list[Item]:
            found = self._client.list(
                _objects_of(resource),
                namespace=namespace,
                chunk_size=_PAGE_OBJECTS,
                labels=_labels(selector),
                fields=dict(fields or {}),
            )
            return [read(dict(item)) async for item in found]

        return await _answered(collect, _LIST_TIMEOUT_S)

    async def watch(
        self,
        resource: Resource,
        namespace: str,
        on_change: Callable[[Object | None], None],
        *,
        name: str = "",
        selector: str = "",
    ) -> None:
        """Call ``on_change`` with each changed object, of that name or those of a selector, until cancelled.

        A watch begins with the present objects. ``on_change`` is called with None when an object is deleted or the
        watch was interrupted: what it reported before may not hold any more.
        """
        waits = backoff(0.2, _CALL_TIMEOUT_S)
        fields: dict[str, Any] | None = {"metadata.name": name} if name else None
        while True:
            try:
                async with asyncio.timeout(_WATCH_S):
                    events = self._client.watch(
                        _objects_of(resource), namespace=namespace, labels=_labels(selector), fields=fields
                    )
                    async for change, content in events:
                        on_change(None if change == "DELETED" else dict(content))
                        waits = backoff(0.2, _CALL_TIMEOUT_S)
            except TimeoutError:
                continue
            except _CALL_ERRORS as error:
                _log.info("watch_interrupted", kind=resource.kind, name=name or selector, detail=str(_fault(error)))
            finally:
                on_change(None)
            await asyncio.sleep(next(waits))
            on_change(None)

    async def may_watch(self, target: ObjectName) -> None:
        """Open and close a watch of an object.

        Raises:
            ApiFault: The server refused or did not answer.
        """

        async def first_event() -> None:
            watched: Any = self._client.watch(
                _objects_of(target.resource), namespace=target.namespace, fields={"metadata.name": target.name}
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_INTERVAL_S + 1.0):  # it may have to wait for its turn
                    async for _ in watched:
                        break
            await watched.aclose()

        await _answered(first_event)


def _labels(selector: str) -> dict[str, Any] | None:
    # lightkube writes a label without a value as it stands, so this passes every form of selector.
    return {selector: None} if selector else None


async def _answered(call: Callable[[], Awaitable[Answer]], timeout_s: float = _CALL_TIMEOUT_S) -> Answer:
    """Return the answer to a call; wait as long as a throttling server asks for, a few times."""
    left_s, clock = _RETRY_AFTER_MAX_S, asyncio.get_running_loop().time
    throttled: Exception | None = None
    ends_s = clock() + _ANSWER_MAX_S
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        try:
            async with asyncio.timeout(min(timeout_s, ends_s - clock())):
                return await call()
        except (*_CALL_ERRORS, TimeoutError) as error:
            asked_s = _retry_after_s(error)
            wait_s = min(asked_s or 0.0, left_s)
            is_last = left_s <= 0 or attempt == _ATTEMPTS_MAX or wait_s >= ends_s - clock()
            if asked_s is None or is_last:
                cause = throttled if throttled is not None and isinstance(error, TimeoutError) else error
                raise _fault(cause) from error
            throttled = error
        left_s -= wait_s
        await asyncio.sleep(wait_s)
    raise AssertionError


def _answer_of(error: BaseException) -> httpx2.Response | None:
    return error.response if isinstance(error, httpx2.HTTPStatusError) else None


def _retry_after_s(error: BaseException) -> float | None:
    answer = _answer_of(error)
    if answer is None or answer.status_code not in _THROTTLED:
        return None
    asked = answer.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else None


def _fault(error: BaseException) -> ApiFault:
    answer = _answer_of(error)
    if isinstance(error, lightkube.ApiError) and error.status is not None:
        status = answer.status_code if answer is not None else error.status.code or 0
        return ApiFault(status, error.status.message or error.status.reason or f"HTTP {status}")
    if answer is not None:
        return ApiFault(answer.status_code, f"HTTP {answer.status_code}")
    return ApiFault(0, f"no answer: {type(error).__name__}: {error}")
