"""Counts of the Kubernetes platform: known from watches, and changed only from the state they were derived from."""

from pathlib import Path

import pytest

from loadline.scalers.kubernetes.platform import KubernetesPlatform
from loadline.scalers.platform import CountChanged
from tests.support.kubernetes_double import KubernetesDouble
from tests.unit.scalers.test_kubernetes_platform import POOL, deployment, replicas, run
from tests.waiting import until


async def until_watched(platform: KubernetesPlatform) -> None:
    """Observe the pool, and wait until its watch has reported the object."""
    await platform.observe(POOL)
    await until(lambda: platform._pools[POOL].watched is not None)


def test_a_count_that_the_watch_reports_is_raised_by_one_call(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        assert await platform.change_known(POOL, 5, lower=False) is None  # nothing is known before a watch
        for count in (2, 4):
            await until_watched(platform)
            before = len(server.requests)
            assert await platform.change_known(POOL, count + 2, lower=False) == count
            assert server.requests[before:] == ["patch deployments/scale"]
        await until_watched(platform)
        before = len(server.requests)
        for same_or_lower in (6, 1):
            assert await platform.change_known(POOL, same_or_lower, lower=False) is None
        assert server.requests[before:] == []
        assert await platform.change_known(POOL, 1, lower=True) == 6
        assert replicas(server) == 1

    run(scenario, tmp_path)


def test_a_count_that_somebody_else_has_just_changed_is_left_alone(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        await until_watched(platform)
        deployment(server, 9)  # the watch reports it once this task waits
        assert await platform.change_known(POOL, 5, lower=False) is None
        assert replicas(server) == 9
        await platform.observe(POOL)
        deployment(server, 12)
        with pytest.raises(CountChanged, match="from 9 to 12"):
            await platform.set_replicas(POOL, 8)
        assert replicas(server) == 12

    run(scenario, tmp_path)


def test_a_change_of_the_status_only_is_no_change_of_the_count(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        await until_watched(platform)
        deployment(server, 2, ready=1)
        assert await platform.change_known(POOL, 5, lower=False) == 2
        assert replicas(server) == 5

    run(scenario, tmp_path)


def test_no_count_is_known_of_a_deleted_object_or_after_an_interrupted_watch(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        await until_watched(platform)
        server.delete("deployments", "llama")
        await until(lambda: platform._pools[POOL].watched is None)
        deployment(server, 2)
        await until_watched(platform)
        await server.stop()
        await until(lambda: platform._pools[POOL].watched is None)

    run(scenario, tmp_path)
