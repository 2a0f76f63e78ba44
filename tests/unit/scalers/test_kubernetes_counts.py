"""Counts of the Kubernetes platform: known from watches, and changed only from the state they were derived from."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from loadline.scalers.kubernetes.platform import KubernetesPlatform
from loadline.scalers.platform import CountChanged, PlatformError
from tests.support.kubernetes_double import KubernetesDouble
from tests.unit.scalers.test_kubernetes_platform import POOL, costs, deployment, pod, replicas, run
from tests.waiting import until


async def until_watched(platform: KubernetesPlatform) -> None:
    """Observe the pool, and wait until its watch has reported the object."""
    await platform.observe(POOL)
    await until(lambda: platform._pools[POOL].watched is not None)


def test_a_count_that_the_watch_reports_is_raised_by_one_call(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        assert await platform.change_known(POOL, 5, lower=False) is None  # nothing is known before a watch
        await until_watched(platform)
        await until(lambda: "watch pods" in server.requests)  # or it would be among the requests counted below
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


def test_a_deployment_that_is_created_anew_has_its_own_pods(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        pod(server, "old")
        await until_watched(platform)
        server.delete("deployments", "llama")
        with pytest.raises(PlatformError, match="not found"):
            await platform.observe(POOL)
        deployment(server, 1, selector="app=anew")
        pod(server, "new", metadata={"labels": {"app": "anew"}})
        seen = await platform.observe(POOL)
        assert (seen.replicas, seen.workers) == (1, frozenset({"new"}))
        await platform.prefer_removal(POOL, ["new"])
        assert set(costs(server)) == {"new"}
        # Its pods are watched too.
        await until(lambda: server.requests.count("watch pods") == 2)
        await settled(platform)
        pod(server, "other", metadata={"labels": {"app": "anew"}})
        async with asyncio.timeout(10.0):
            assert await platform.changed() == {POOL}

    run(scenario, tmp_path)


def test_changes_are_gathered_and_name_the_pools_that_changed(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        await until_watched(platform)
        await settled(platform)
        server.put("statefulsets", "llama", {"spec": {"replicas": 7}})
        deployment(server, 3)
        pod(server, "a")
        async with asyncio.timeout(10.0):
            assert await platform.changed() == {POOL}
        await settled(platform)

    run(scenario, tmp_path)


def test_a_throttled_call_ends_with_the_reason_before_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def wait(delay_s: float) -> None:
        waits.append(delay_s)
        await sleep(0)

    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        server.failures = [(429, {"Retry-After": "6"})] * 4
        monkeypatch.setattr("loadline.adapters.kubernetes_api.asyncio.sleep", wait)
        with pytest.raises(PlatformError, match="Deployment default/llama: injected failure"):
            await platform.set_replicas(POOL, 5)
        monkeypatch.setattr("loadline.adapters.kubernetes_api.asyncio.sleep", sleep)
        assert [each for each in waits if each] == [6.0, 4.0]

    run(scenario, tmp_path)


async def settled(platform: KubernetesPlatform) -> None:
    """Take the changes so far."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            while True:
                await platform.changed()
