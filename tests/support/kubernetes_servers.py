"""Kubernetes API servers of tests: the double, or the server that ``LOADLINE_TEST_KUBECONFIG`` names.

A real server needs the kinds of ``kubernetes_double.py`` except those of the groups ``v1`` and ``autoscaling``. Its
kubeconfig is JSON with a client certificate.
"""

import base64
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from loadline.adapters.kubernetes_api import KubernetesApi, ObjectName, Resource
from tests.support.kubernetes_double import KubernetesDouble, kubernetes_double

Object = dict[str, Any]
LWS: Final = Resource("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")
DEPLOYMENT: Final = Resource("apps.example.com", "v1", "Deployment", "deployments")
REAL: Final = os.environ.get("LOADLINE_TEST_KUBECONFIG", "")
SERVERS: Final = (
    "double",
    pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="LOADLINE_TEST_KUBECONFIG names no server")),
)
"""Parameters of tests that run against both."""


class ApiServer:
    """A server under test, with a client that is not the scaler's.

    Attributes:
        double: The double; None: a real server.
    """

    def __init__(
        self,
        api: KubernetesApi,
        session: aiohttp.ClientSession,
        url: str,
        kubeconfig: str,
        double: KubernetesDouble | None = None,
    ) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self.double = double
        self._session = session
        self._url = url

    async def call(
        self, method: str, path: str, body: Object | None = None, content_type: str = "application/json"
    ) -> tuple[int, str]:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self._url + path, data=data, headers=headers) as answer:
            return answer.status, await answer.text()

    async def create(self, resource: Resource, name: str, content: Object) -> ObjectName:
        """Create an object in place of an earlier one."""
        path = path_of(resource)
        await self.call("DELETE", f"{path}/{name}")
        metadata = {**content.get("metadata", {}), "name": name}
        kind = {"apiVersion": f"{resource.group}/{resource.version}", "kind": resource.kind}
        status, text = await self.call("POST", path, {**content, **kind, "metadata": metadata})
        assert status == 201, text
        return ObjectName(resource, "default", name)


def path_of(resource: Resource) -> str:
    """Return the path of a kind's objects."""
    return f"/apis/{resource.group}/{resource.version}/namespaces/default/{resource.plural}"


@asynccontextmanager
async def api_server(which: str, directory: Path) -> AsyncIterator[ApiServer]:
    """Yield one of ``SERVERS``."""
    if which == "real":
        url, tls = _real_server(directory)
        async with (
            KubernetesApi(REAL) as api,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
        ):
            yield ApiServer(api, session, url, REAL)
        return
    async with kubernetes_double() as double:
        kubeconfig = str(double.kubeconfig(directory))
        async with KubernetesApi(kubeconfig) as api, aiohttp.ClientSession() as session:
            yield ApiServer(api, session, f"http://127.0.0.1:{double.port}", kubeconfig, double)


def _real_server(tmp_path: Path) -> tuple[str, ssl.SSLContext]:
    config = json.loads(Path(REAL).read_text("utf-8"))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    for name in ("client-certificate-data", "client-key-data"):
        (tmp_path / name).write_bytes(base64.b64decode(user[name]))
    tls.load_cert_chain(tmp_path / "client-certificate-data", tmp_path / "client-key-data")
    return cluster["server"], tls
