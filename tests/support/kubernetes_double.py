"""Double of a Kubernetes API server over HTTP: optimistic locking, merge patches, ``/scale``, watches, and faults.

``tests/contract/test_kubernetes.py`` holds it to the same rules as a real API server. It knows no controllers: tests
create pods and write status themselves.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web
from msgspec import Struct

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired"}
_REASONS |= {415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError"}


class Kind(Struct, frozen=True):
    """A served kind."""

    group_version: str
    kind: str
    plural: str
    scale: bool = False
    selector: str = ""
    """Key of the status that holds the selector of ``/scale``."""


KINDS = (
    Kind("v1", "Pod", "pods"),
    Kind("v1", "Event", "events"),
    Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Kind("apps.example.com/v1", "Deployment", "deployments", scale=True, selector="selector"),
    Kind("apps.example.com/v1", "StatefulSet", "statefulsets", scale=True),
    Kind("apps/v1", "Deployment", "deployments", scale=True, selector="selector"),
    Kind("apps/v1", "StatefulSet", "statefulsets", scale=True, selector="selector"),
    Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", scale=True, selector="hpaPodSelector"),
    Kind("nvidia.com/v1alpha1", "DynamoGraphDeployment", "dynamographdeployments"),
    Kind(
        "nvidia.com/v1alpha1",
        "DynamoGraphDeploymentScalingAdapter",
        "dynamographdeploymentscalingadapters",
        scale=True,
    ),
    Kind("orchestration.aibrix.ai/v1alpha1", "StormService", "stormservices"),
)


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubernetesDouble:
    """The server.

    Attributes:
        tokens: Accepted bearer tokens; empty: all requests are accepted.
        forbidden: Pairs of verb and resource that are refused, such as ``("patch", "pods")``.
        failures: Statuses and headers of the next answers, in this order.
        watch_s: Time after which the server ends a watch.
        requests: Verb and resource of each request, such as ``patch deployments/scale``.
    """

    def __init__(self) -> None:
        self.port = 0
        self.tokens: set[str] = set()
        self.forbidden: set[tuple[str, str]] = set()
        self.failures: list[tuple[int, dict[str, str]]] = []
        self.watch_s = 1800.0
        self.requests: list[str] = []
        self.objects: dict[tuple[str, str, str], Object] = {}
        self._revision = self._oldest = 10  # what a server did before it started is not in its log
        self._log: list[tuple[int, str, str, Object]] = []
        self._moved = asyncio.Event()
        self._watches: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; after a stop again on the same port."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        self.close_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def close_watches(self) -> None:
        """Interrupt every watch."""
        for watch in self._watches:
            watch.cancel()

    def kubeconfig(self, directory: Path, token_file: Path | None = None) -> Path:
        """Write a kubeconfig for this server."""
        user = {"tokenFile": str(token_file)} if token_file else {"token": "any"}
        path = directory / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "c", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "default"}}],
            "current-context": "c",
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def put(self, plural: str, name: str, content: Object, namespace: str = "default") -> Object:
        """Create or replace an object, as another client would."""
        kind = next(kind for kind in KINDS if kind.plural == plural)
        metadata = {**content.get("metadata", {}), "name": name, "namespace": namespace}
        key = (plural, namespace, name)
        change = "MODIFIED" if key in self.objects else "ADDED"
        found = self.objects.get(key, {"metadata": {"uid": f"uid-{self._revision}"}})
        metadata["uid"] = found["metadata"]["uid"]
        api_version = {"apiVersion": kind.group_version, "kind": kind.kind}
        return self._store(change, key, {**api_version, **content, "metadata": metadata})

    def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        """Delete an object, as another client would."""
        key = (plural, namespace, name)
        self._store("DELETED", key, self.objects[key])

    def snapshot(self) -> tuple[dict[tuple[str, str, str], Object], int]:
        """Return what a backup of etcd holds."""
        return copy.deepcopy(self.objects), self._revision

    def restore(self, snapshot: tuple[dict[tuple[str, str, str], Object], int]) -> None:
        """Go back to a backup; its revision is lower than those that clients have seen."""
        self.objects, self._revision = copy.deepcopy(snapshot[0]), snapshot[1]
        self._log.clear()
        self._oldest = self._revision

    def _store(self, change: str, key: tuple[str, str, str], content: Object) -> Object:
        self._revision += 1
        stored: Object = copy.deepcopy(content)
        stored["metadata"]["resourceVersion"] = str(self._revision)
        if change == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = stored
        self._log.append((self._revision, key[0], change, stored))
        self._moved.set()
        self._moved = asyncio.Event()
        return stored

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._serve(request)
        except _Refused as refused:
            return _status(refused.status, str(refused))

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        kind, namespace, name, part = self._resolve(request)
        watch = request.query.get("watch") == "true"
        verb = {"GET": "watch" if watch else "get" if name else "list", "PATCH": "patch", "POST": "create"}.get(
            request.method, "delete"
        )
        resource = f"{kind.plural}/{part}" if part else kind.plural
        self.requests.append(f"{verb} {resource}")
        if self.failures:
            status, headers = self.failures.pop(0)
            return _status(status, "injected failure", headers)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens and token not in self.tokens:
            raise _Refused(401, "Unauthorized")
        if (verb, resource) in self.forbidden:
            raise _Refused(403, f'{resource} is forbidden: User "test" cannot {verb} resource "{resource}"')
        if watch:
            return await self._watch(request, kind, namespace)
        if not name:
            is_list = verb == "list"
            return self._list(request, kind, namespace) if is_list else await self._create(request, kind, namespace)
        return await self._serve_object(request, kind, (kind.plural, namespace, name), part)

    async def _serve_object(
        self, request: web.Request, kind: Kind, key: tuple[str, str, str], part: str
    ) -> web.StreamResponse:
        if key not in self.objects:
            raise _Refused(404, f'{kind.plural} "{key[2]}" not found')
        if request.method == "PATCH":
            return await self._patch(request, kind, key, part)
        if request.method == "DELETE":
            self._store("DELETED", key, self.objects[key])
            return _json({"kind": "Status", "status": "Success"})
        content = self.objects[key]
        return _json(_scale_of(kind, content) if part == "scale" else content)

    def _resolve(self, request: web.Request) -> tuple[Kind, str, str, str]:
        """Return kind, namespace, name and subresource of a path."""
        parts = request.path.strip("/").split("/")
        at = 2 if parts[0] == "api" else 3
        group_version = "/".join(parts[1:at])
        if parts[at : at + 1] != ["namespaces"] or len(parts) < at + 3:
            raise _Refused(404, "404 page not found")
        namespace, plural, name, part = (*parts[at + 1 :], "", "", "")[:4]
        found = [kind for kind in KINDS if (kind.group_version, kind.plural) == (group_version, plural)]
        if not found or part not in {"", "status", "scale"} or (part == "scale" and not found[0].scale):
            raise _Refused(404, "the server could not find the requested resource")
        return found[0], namespace, name, part

    async def _create(self, request: web.Request, kind: Kind, namespace: str) -> web.Response:
        content = await request.json()
        name = content["metadata"]["name"]
        if (kind.plural, namespace, name) in self.objects:
            raise _Refused(409, f'{kind.plural} "{name}" already exists')
        return _json(self.put(kind.plural, name, content, namespace), status=201)

    def _list(self, request: web.Request, kind: Kind, namespace: str) -> web.Response:
        found = [content for key, content in sorted(self.objects.items()) if key[:2] == (kind.plural, namespace)]
        items = [content for content in found if _selected(request.query, content)]
        metadata = {"resourceVersion": str(self._revision)}
        return _json({"kind": f"{kind.kind}List", "metadata": metadata, "items": items})

    async def _patch(self, request: web.Request, kind: Kind, key: tuple[str, str, str], part: str) -> web.Response:
        if request.content_type != MERGE:
            raise _Refused(415, "the body of the request was in an unknown format")
        patch, content = await request.json(), self.objects[key]
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in {None, content["metadata"]["resourceVersion"]}:
            raise _Refused(409, f'Operation cannot be fulfilled on "{key[2]}": the object has been modified')
        if part:
            patch = {name: value for name, value in patch.items() if name == ("status" if part == "status" else "spec")}
        elif kind.plural != "pods":
            patch = {name: value for name, value in patch.items() if name != "status"}
        merged = _merged(content, patch)
        replicas = merged.get("spec", {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            raise _Refused(422, f'"{key[2]}" is invalid: spec.replicas: Invalid value: {replicas}')
        if request.query.get("dryRun") != "All" and merged != content:
            merged = self._store("MODIFIED", key, merged)
        return _json(_scale_of(kind, merged) if part == "scale" else merged)

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            async with asyncio.timeout(min(self.watch_s, float(request.query.get("timeoutSeconds", "1800")))):
                await self._send_events(request, answer, kind, namespace)
        except TimeoutError:
            pass
        finally:
            self._watches.discard(task)
        return answer

    async def _send_events(self, request: web.Request, answer: web.StreamResponse, kind: Kind, namespace: str) -> None:
        asked = request.query.get("resourceVersion", "")
        sent = int(asked) if asked else self._revision
        if sent < self._oldest:
            gone = _status_body(410, f"too old resource version: {sent} ({self._revision})")
            await answer.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return
        if not asked:
            for key, content in sorted(self.objects.items()):
                if key[:2] == (kind.plural, namespace) and _selected(request.query, content):
                    await answer.write(json.dumps({"type": "ADDED", "object": content}).encode() + b"\n")
        while True:
            moved = self._moved
            for revision, plural, change, content in [entry for entry in self._log if entry[0] > sent]:
                sent = revision
                if plural == kind.plural and _selected(request.query, content):
                    await answer.write(json.dumps({"type": change, "object": content}).encode() + b"\n")
            await moved.wait()

    def compact(self) -> None:
        """Forget the events so far: watches that continue from before are refused."""
        self._log.clear()
        self._oldest = self._revision


def _selected(query: Mapping[str, str], content: Object) -> bool:
    """Return True if an object has the labels and fields of a request; labels by equality only."""
    labels = content["metadata"].get("labels", {})
    wanted = [pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair]
    fields = [pair.split("=", 1) for pair in query.get("fieldSelector", "").split(",") if pair]
    return all(labels.get(key) == value for key, value in wanted) and all(
        _at(content, key) == value for key, value in fields
    )


def _at(content: Object, path: str) -> Any:
    found: Any = content
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _merged(content: Object, patch: Object) -> Object:
    """Apply a merge patch (RFC 7386)."""
    merged = dict(content)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged[key] if isinstance(merged.get(key), dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _scale_of(kind: Kind, content: Object) -> Object:
    replicas = content.get("spec", {}).get("replicas", 0)
    status = content.get("status", {})
    scale: Object = {"replicas": status.get("replicas", 0)}
    if kind.selector and status.get(kind.selector):
        scale["selector"] = status[kind.selector]
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: content["metadata"][key] for key in ("name", "namespace", "resourceVersion")},
        "spec": {"replicas": replicas} if replicas else {},
        "status": scale,
    }


def _status_body(status: int, message: str) -> Object:
    reason = _REASONS.get(status, HTTPStatus(status).phrase)
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status,
    }


def _status(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return _json(_status_body(status, message), status=status, headers=headers)


def _json(content: Object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    # A real server names no character set, and lightkube reads only such answers.
    both = {"Content-Type": "application/json", **(headers or {})}
    return web.Response(body=json.dumps(content).encode(), status=status, headers=both)


@asynccontextmanager
async def kubernetes_double() -> AsyncIterator[KubernetesDouble]:
    """Yield a running server."""
    server = KubernetesDouble()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
