"""Rollouts of a Deployment, whose pods are of two ReplicaSets, and watches that a proxy ends."""

import asyncio
from pathlib import Path

import pytest

from loadline.scalers.kubernetes.config import KubernetesKnobs, KubernetesModelKnobs
from loadline.scalers.kubernetes.platform import KubernetesPlatform, connect
from loadline.scalers.platform import PlatformWait
from tests.support.kubernetes_double import KubernetesDouble, kubernetes_double
from tests.support.virtual_time import run_virtual
from tests.unit.scalers.test_kubernetes_platform import DEPLOYMENT, POOL, deployment, pod, replicas, run

HASH = "pod-template-hash"


def pods_of(server: KubernetesDouble, **replica_sets: str) -> None:
    for name, one in replica_sets.items():
        pod(server, name, metadata={"labels": {"app": "llama", HASH: one}})


def test_the_count_waits_while_a_rollout_may_take_a_serving_pod(tmp_path: Path) -> None:
    """A Deployment would take pods of both ReplicaSets, whatever their costs."""

    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 3)
        pods_of(server, olda="1", oldb="1", new="2")
        await platform.observe(POOL)
        await platform.prefer_removal(POOL, ["new"])
        with pytest.raises(PlatformWait, match="its pods are of 2 ReplicaSets, so Kubernetes may remove olda"):
            await platform.set_replicas(POOL, 2)
        assert replicas(server) == 3
        await platform.set_replicas(POOL, 4)
        assert replicas(server) == 4, "it may grow"
        await platform.observe(POOL)
        pods_of(server, olda="2", oldb="2")
        await platform.set_replicas(POOL, 2)
        assert replicas(server) == 2

    run(scenario, tmp_path)


@pytest.mark.parametrize(("drained", "count"), [(("olda", "oldb", "new"), 0), (("olda",), 3)])
def test_the_count_falls_in_a_rollout_if_no_serving_pod_can_go(
    tmp_path: Path, drained: tuple[str, ...], count: int
) -> None:
    """To zero all of them go. A new pod that no node has room for waits for the place of a drained one."""

    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 3 if count == 0 else 4)
        pods_of(server, olda="1", oldb="1", new="2")
        if count:
            labels = {"app": "llama", HASH: "2"}
            pod(server, "new", ready=False, metadata={"labels": labels}, spec={}, status={"phase": "Pending"})
        await platform.observe(POOL)
        await platform.prefer_removal(POOL, drained)
        await platform.set_replicas(POOL, count)
        assert replicas(server) == count

    run(scenario, tmp_path)


def test_watches_that_end_at_once_are_opened_once_a_second(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        async with kubernetes_double() as server:
            server.watch_s = 0.0
            knobs = KubernetesKnobs(
                models=(KubernetesModelKnobs("llama", (DEPLOYMENT,)),), kubeconfig=str(server.kubeconfig(tmp_path))
            )
            async with connect(knobs) as platform:
                deployment(server, 1)
                await platform.observe(POOL)
                await asyncio.sleep(20.0)
            return server.requests

    requests = run_virtual(scenario())
    for watched in ("watch deployments", "watch pods"):
        assert 10 <= requests.count(watched) <= 22
