"""Double of Ray's dashboard with two applications of Ray Serve; ``test_ray`` compares it with a real one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

_DISABLED = (
    "Cannot update replicas for deployment 'Worker' in application 'fixed'. The external scaling API can only be used "
    "when 'external_scaler_enabled' is set to true in the application configuration. Current value: "
    "external_scaler_enabled=false. To use this API, redeploy your application with 'external_scaler_enabled: true' in "
    "the config."
)


class RayDouble:
    """Applications ``llm``, which may be scaled, and ``fixed``, each with the deployment ``Worker``.

    The answers are those of Ray 2.60.0. Replicas start at once, as far as there are CPUs.
    """

    def __init__(self) -> None:
        self.replicas = {"llm": 1, "fixed": 1}
        self.messages: dict[str, str] = {}
        """Kept when they are out of date, as Ray does."""
        self.cpus = 10
        self.stopping = 0
        self.token = ""
        self.running = True
        self.calls: list[str] = []
        self.raw: bytes | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve, and yield the address."""
        application = web.Application()
        application.router.add_get("/api/serve/applications/", self._details)
        application.router.add_post("/api/v1/applications/{application}/deployments/{deployment}/scale", self._scale)
        async with TestServer(application) as server:
            yield str(server.make_url("/")).rstrip("/")

    async def _details(self, request: web.Request) -> web.Response:
        self.calls.append("get")
        if refusal := self._login(request):
            return refusal
        if self.raw is not None:
            return web.Response(body=self.raw)
        if not self.running:
            return web.json_response({"applications": {}})
        return web.json_response({"applications": {name: self._application(name) for name in self.replicas}})

    def _application(self, name: str) -> dict[str, Any]:
        target = self.replicas[name]
        states = ["RUNNING"] * min(target, self.cpus) + ["STARTING"] * max(0, target - self.cpus)
        states += ["STOPPING"] * self.stopping
        if target > self.cpus:
            self.messages[name] = (
                f"Deployment 'Worker' in application '{name}' has\n1 replicas that take long to be scheduled."
            )
        deployment = {
            "name": "Worker",
            "status": "HEALTHY",
            "message": self.messages.get(name, ""),
            "target_num_replicas": target,
            "replicas": [{"replica_id": str(number), "state": state} for number, state in enumerate(states)],
        }
        return {
            "name": name,
            "status": "RUNNING",
            "message": "",
            "deployments": {"Worker": deployment},
            "external_scaler_enabled": name == "llm",
        }

    async def _scale(self, request: web.Request) -> web.Response:
        if refusal := self._login(request):
            return refusal
        if not self.running:
            return web.json_response({"error": "Serve controller is not available"}, status=503)
        body = await request.json()
        name, deployment = request.match_info["application"], request.match_info["deployment"]
        self.calls.append(f"{name}/{deployment}={body}")
        if set(body) != {"target_num_replicas"}:
            return web.json_response({"error": "Invalid request body: "}, status=400)
        if name not in self.replicas or (name == "llm" and deployment != "Worker"):
            return web.json_response({"error": "Application or Deployment not found"}, status=404)
        if name != "llm":
            return web.json_response({"error": _DISABLED}, status=412)
        self.replicas[name] = body["target_num_replicas"]
        return web.json_response({"message": "Scaling request received. Deployment will get scaled asynchronously."})

    def _login(self, request: web.Request) -> web.Response | None:
        header = request.headers.get("authorization", "")
        if not self.token or header == f"Bearer {self.token}":
            return None
        if not header:
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        return web.Response(status=403, text="Forbidden: Invalid authentication token")
