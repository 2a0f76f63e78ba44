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


def test_the_count_waits_while_a_rollout_is_in_progress(tmp_path: Path) -> None:
    """A Deployment would take pods of both ReplicaSets, whatever their costs."""

    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 3)
        for name, revision in (("old-a", "1"), ("old-b", "1"), ("new", "2")):
            pod(server, name, metadata={"labels": {"app": "llama", "pod-template-hash": revision}})
        await platform.observe(POOL)
        await platform.prefer_removal(POOL, ["new"])
        with pytest.raises(PlatformWait, match="Deployment default/llama: a rollout is in progress"):
            await platform.set_replicas(POOL, 2)
        assert replicas(server) == 3
        await platform.set_replicas(POOL, 4)
        assert replicas(server) == 4, "it may grow"
        await platform.observe(POOL)
        for name in ("old-a", "old-b"):
            pod(server, name, metadata={"labels": {"app": "llama", "pod-template-hash": "2"}})
        await platform.set_replicas(POOL, 2)
        assert replicas(server) == 2

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
