"""Kubernetes scaler as a process, with real NATS, etcd and agent. The test plays the controllers of the API server."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from loadline.adapters.kubernetes_api import Resource
from loadline.rig.rig import Rig
from loadline.scalers.kubernetes.pods import DELETION_COST
from tests.support.agents import MODELS, AgentFleet, config, fleet
from tests.support.kubernetes_double import MERGE
from tests.support.kubernetes_servers import DEPLOYMENT, LWS, SERVERS, ApiServer, api_server, path_of
from tests.waiting import SCENARIO_S, until, until_async

pytestmark = pytest.mark.process

Restart = Callable[[], Awaitable[None]]
# Each scale-down removes one worker, and the prefill pool keeps its one.
BOUNDED = MODELS.replace("replicas_max = 9", "replicas_min = 2\nreplicas_max = 4") + "replicas_max = 1\n"


class GroupController:
    """Controller of a LeaderWorkerSet: starts and ends groups by their ordinals, the highest first."""

    RESOURCE = LWS
    SELECTOR_KEY = "hpaPodSelector"

    def __init__(self, server: ApiServer, agent_fleet: AgentFleet) -> None:
        self._server = server
        self._fleet = agent_fleet
        self.groups: list[str] = []
        self.removed: list[str] = []
        self.kv = 0.7
        self.quota = 9

    @property
    def _path(self) -> str:
        return f"{path_of(self.RESOURCE)}/decode"

    def new_name(self) -> str:
        """Return the name of the next group to start."""
        return f"decode-{len(self.groups)}"

    def removed_next(self) -> str:
        """Return the name of the next group to remove."""
        return self.groups[-1]

    async def replicas(self) -> int:
        _, text = await self._server.call("GET", self._path)
        return int(text.partition('"replicas":')[2].lstrip().partition("}")[0].partition(",")[0])

    async def apply(self) -> None:
        """Make the groups as many as the object asks for."""
        replicas = await self.replicas()
        wanted = min(replicas, self.quota)
        while len(self.groups) > wanted:
            name = self.removed_next()
            self.groups.remove(name)
            assert self._fleet.workers[name].client.drained.is_set(), f"{name} was removed before it was empty"
            del self._fleet.workers[name]
            self.removed.append(name)
            if self._server.double is not None:
                self._server.double.delete("pods", name)
        while len(self.groups) < wanted:
            name = self.new_name()
            self.groups.append(name)
            if self._server.double is not None:
                self._server.double.put("pods", name, POD)
            await self._fleet.add("decode", name)
        self._fleet.load(kv=self.kv)
        if replicas > wanted and self._server.double is not None:
            self._server.double.put("events", "quota", QUOTA_EVENT)
        status = {"replicas": wanted, "readyReplicas": wanted, self.SELECTOR_KEY: "lws=decode"}
        await self._server.call("PATCH", f"{self._path}/status", {"status": status}, MERGE)

    async def follows(self, condition: Callable[[], object], what: str) -> None:
        """Apply what the object asks for until a condition holds."""

        async def applied() -> object:
            await self.apply()
            return condition()

        await until_async(applied, what)


class PodController(GroupController):
    """Controller of a Deployment: removes pods by their deletion cost, the newest first among equals."""

    RESOURCE = DEPLOYMENT
    SELECTOR_KEY = "selector"

    def new_name(self) -> str:
        return f"decode-{len(self.groups) + len(self.removed)}"

    def removed_next(self) -> str:
        return min(reversed(self.groups), key=self.cost)

    def cost(self, name: str) -> int:
        """Return the deletion cost of a pod."""
        assert self._server.double is not None
        pod = self._server.double.objects["pods", "default", name]
        return int(pod["metadata"].get("annotations", {}).get(DELETION_COST, 0))


QUOTA_EVENT = {"involvedObject": {"name": "decode"}, "type": "Warning", "message": "exceeded quota: gpus"}
POD = {
    "metadata": {"labels": {"lws": "decode"}},
    "spec": {"nodeName": "n"},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def write_config(rig: Rig, server: ApiServer, decode: Resource) -> Path:
    path = rig.directory / "kubernetes.toml"
    path.write_text(
        f"""
        kubeconfig = "{server.kubeconfig}"
        namespace = "default"
        nats.servers = ["{rig.nats.url}"]
        [[models]]
        name = "m"
        [[models.pools]]
        name = "decode"
        kind = "{decode.kind}"
        api_version = "{decode.group}/{decode.version}"
        object = "decode"
        [[models.pools]]
        name = "prefill"
        kind = "Deployment"
        api_version = "apps.example.com/v1"
        object = "prefill"
        victims = "unknown"
        """,
        encoding="utf-8",
    )
    return path


def play(
    rig: Rig,
    which: str,
    scenario: Callable[[AgentFleet, GroupController, Restart], Awaitable[None]],
    controller_type: type[GroupController] = GroupController,
) -> None:
    """Run an agent, two groups, a scaler, and then a scenario, which may kill and restart the scaler."""
    rig.agent(config(rig, "a", BOUNDED), "a").wait_ready()
    processes: list[subprocess.Popen[bytes]] = []

    async def whole() -> None:
        async with (
            asyncio.timeout(SCENARIO_S),
            api_server(which, rig.directory) as server,
            fleet(rig) as agent_fleet,
        ):
            await server.create(controller_type.RESOURCE, "decode", {"spec": {"replicas": 2}})
            await server.create(DEPLOYMENT, "prefill", {"spec": {"replicas": 1}})
            ready = {"status": {"replicas": 1, "readyReplicas": 1}}
            await server.call("PATCH", f"{path_of(DEPLOYMENT)}/prefill/status", ready, MERGE)
            controller = controller_type(server, agent_fleet)
            await controller.apply()
            await agent_fleet.add("prefill", "prefill-a")
            command = [sys.executable, "-m", "loadline", "scaler", "kubernetes", "--config"]
            command.append(str(write_config(rig, server, controller_type.RESOURCE)))

            async def restart() -> None:
                if processes:
                    processes[-1].kill()
                    await asyncio.to_thread(processes[-1].wait)
                processes.append(await asyncio.to_thread(subprocess.Popen, command))

            await restart()
            await scenario(agent_fleet, controller, restart)

    try:
        asyncio.run(whole())
        processes[-1].terminate()
        assert processes[-1].wait(60) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("which", SERVERS)
def test_groups_are_started_under_load_and_the_highest_are_drained_before_the_count_falls(rig: Rig, which: str) -> None:
    async def scenario(agent_fleet: AgentFleet, controller: GroupController, _restart: Restart) -> None:
        controller.kv = 0.97
        await controller.follows(lambda: len(controller.groups) == 4, "the fleet grows to its maximum")
        await until(lambda: decision(agent_fleet)[0] == "applied", "the growth is applied")
        controller.kv = 0.1
        for victim in ("decode-3", "decode-2"):
            await remove(agent_fleet, controller, victim)
        assert controller.removed == ["decode-3", "decode-2"]
        await until(lambda: decision(agent_fleet)[0] == "applied", "the scale-down is applied")

    play(rig, which, scenario)


def test_a_quota_is_shown_and_a_scaler_killed_during_growth_and_drain_continues(rig: Rig) -> None:
    async def scenario(agent_fleet: AgentFleet, controller: GroupController, restart: Restart) -> None:
        controller.kv, controller.quota = 0.97, 2
        await controller.follows(lambda: "exceeded quota: gpus" in decision(agent_fleet)[1], "the quota is shown")
        await restart()
        controller.quota = 9
        await controller.follows(lambda: len(controller.groups) == 4, "the fleet grows to its maximum")
        controller.kv = 0.1
        victim = agent_fleet.workers["decode-3"]
        await controller.follows(lambda: victim.drain is not None, "the highest drains")
        await restart()
        await remove(agent_fleet, controller, "decode-3")

    play(rig, "double", scenario)


def test_the_pods_that_the_agent_names_get_deletion_costs_and_go_once_they_are_empty(rig: Rig) -> None:
    async def scenario(agent_fleet: AgentFleet, controller: GroupController, restart: Restart) -> None:
        def drains(name: str) -> bool:
            return agent_fleet.workers[name].drain is not None

        assert isinstance(controller, PodController)
        controller.kv = 0.97
        await controller.follows(lambda: len(controller.groups) == 4, "the fleet grows to its maximum")
        await until(lambda: decision(agent_fleet)[0] == "applied", "the growth is applied")
        for name, worker in agent_fleet.workers.items():
            worker.running = {"decode-1": 1, "decode-0": 2}.get(name, 3)
        controller.kv = 0.1
        # Neither the newest nor the highest: those with the least work, as the agent has named them.
        for victim in ("decode-1", "decode-0"):
            await controller.follows(partial(drains, victim), f"{victim} drains")
            assert all(controller.cost(name) == 0 for name in controller.groups), "only drained workers are preferred"
            await restart()
            await remove(agent_fleet, controller, victim)
        assert controller.removed == ["decode-1", "decode-0"]
        named = [v.worker for made in agent_fleet.observer.committed for t in made.targets for v in t.victims]
        assert list(dict.fromkeys(named)) == ["decode-1", "decode-0"]
        await until(lambda: decision(agent_fleet)[0] == "applied", "the scale-down is applied")

    play(rig, "double", scenario, PodController)


async def remove(agent_fleet: AgentFleet, controller: GroupController, victim: str) -> None:
    """Wait until a worker alone drains, empty it, and wait until its group is removed."""
    worker = agent_fleet.workers[victim]
    await controller.follows(lambda: worker.drain is not None, f"{victim} drains")
    assert [name for name, other in agent_fleet.workers.items() if other.drain] == [victim]
    assert await controller.replicas() == len(controller.groups), "the count fell before the victim was empty"
    worker.may_leave.set()
    await controller.follows(lambda: victim in controller.removed, f"{victim} is removed")


def decision(agent_fleet: AgentFleet) -> tuple[str, str]:
    """Return state and detail of the newest decision in the leader's status."""
    status = agent_fleet.observer.leader()
    newest = status.models[0].decision if status else None
    return (newest.state, newest.detail) if newest else ("", "")
