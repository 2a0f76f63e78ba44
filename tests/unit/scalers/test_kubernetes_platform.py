"""Kubernetes platform against the double of an API server: observations, victims, faults."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from loadline.scalers.kubernetes.config import KubernetesKnobs, KubernetesModelKnobs, KubernetesPoolKnobs
from loadline.scalers.kubernetes.platform import KubernetesPlatform, connect
from loadline.scalers.kubernetes.pods import DELETION_COST
from loadline.scalers.platform import PlatformError, PlatformWait, PoolKey, PoolObservation
from tests.support.kubernetes_double import KubernetesDouble, kubernetes_double
from tests.waiting import until

Object = dict[str, Any]
POOL = PoolKey("llama", "decode")
DEPLOYMENT = KubernetesPoolKnobs(name="decode", kind="Deployment", object="llama", api_version="apps.example.com/v1")
STATEFUL = KubernetesPoolKnobs(name="decode", kind="StatefulSet", object="llama", api_version="apps.example.com/v1")
Scenario = Callable[[KubernetesDouble, KubernetesPlatform], Awaitable[None]]


def run(
    scenario: Scenario, tmp_path: Path, pool: KubernetesPoolKnobs = DEPLOYMENT, token_file: Path | None = None
) -> None:
    async def whole() -> None:
        async with kubernetes_double() as server:
            kubeconfig = str(server.kubeconfig(tmp_path, token_file))
            knobs = KubernetesKnobs(models=(KubernetesModelKnobs("llama", (pool,)),), kubeconfig=kubeconfig)
            async with connect(knobs) as platform:
                await scenario(server, platform)

    asyncio.run(whole())


def deployment(server: KubernetesDouble, replicas: int, ready: int | None = None, **status: Any) -> None:
    found = {"replicas": replicas, "readyReplicas": replicas if ready is None else ready, "selector": "app=llama"}
    server.put("deployments", "llama", {"spec": {"replicas": replicas}, "status": found | status})


def pod(server: KubernetesDouble, name: str, *, ready: bool = True, **changes: Any) -> None:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    content = {
        "metadata": {
            "labels": {"app": "llama"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **changes.get("metadata", {}),
        },
        "spec": changes.get("spec", {"nodeName": "n"}),
        "status": {"phase": "Running", "conditions": conditions, **changes.get("status", {})},
    }
    server.put("pods", name, content)


def costs(server: KubernetesDouble) -> dict[str, int]:
    pods = {key[2]: content for key, content in server.objects.items() if key[0] == "pods"}
    annotations = {name: content["metadata"].get("annotations", {}) for name, content in pods.items()}
    return {name: int(found[DELETION_COST]) for name, found in annotations.items() if DELETION_COST in found}


def replicas(server: KubernetesDouble, plural: str = "deployments") -> int:
    count: int = server.objects[plural, "default", "llama"]["spec"]["replicas"]
    return count


def test_workers_are_pods_that_have_not_ended(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 3, ready=2)
        pod(server, "a")
        pod(server, "leaving", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "llama"}})
        pod(server, "evicted", status={"phase": "Failed"})
        pod(server, "other", metadata={"labels": {"app": "other"}})
        seen = await platform.observe(POOL)
        assert seen == PoolObservation(
            3, 2, frozenset({"a", "leaving"}), ending=frozenset({"leaving"}), unready=frozenset()
        )

    run(scenario, tmp_path)


def test_a_label_may_hold_the_name_of_the_worker(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        pod(server, "a-x7k", metadata={"labels": {"app": "llama", "worker": "w-1"}})
        pod(server, "unnamed")
        assert (await platform.observe(POOL)).workers == frozenset({"w-1"})
        await platform.prefer_removal(POOL, ["w-1"])
        assert set(costs(server)) == {"a-x7k"}

    labelled = KubernetesPoolKnobs(
        name="decode", kind="Deployment", object="llama", api_version="apps.example.com/v1", worker_label="worker"
    )
    run(scenario, tmp_path, labelled)


def test_pods_that_may_not_be_listed_are_unknown_and_none_is_missing(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        server.forbidden.add(("list", "pods"))
        assert await platform.observe(POOL) == PoolObservation(2, 2)

    run(scenario, tmp_path)


def test_victims_get_the_lowest_costs_in_order_and_earlier_ones_lose_theirs(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 4)
        for name in "abc":
            pod(server, name)
        pod(server, "user", metadata={"labels": {"app": "llama"}, "annotations": {DELETION_COST: "-100"}})
        await platform.observe(POOL)
        await platform.prefer_removal(POOL, ["c", "a", "gone"])
        found = costs(server)
        assert found["c"] < found["a"] < found["user"] == -100
        await platform.prefer_removal(POOL, ["b"])
        assert set(costs(server)) == {"b", "user"}
        before = len(server.requests)
        await platform.prefer_removal(POOL, ["b"])
        assert server.requests[before:] == ["list pods"]

    run(scenario, tmp_path)


def test_the_count_waits_while_kubernetes_would_remove_a_pod_that_is_not_ready(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 3)
        for name, ready in (("drained", True), ("busy", True), ("unready", False)):
            pod(server, name, ready=ready)
        await platform.observe(POOL)
        await platform.prefer_removal(POOL, ["drained"])
        with pytest.raises(PlatformWait, match="pod unready is not ready"):
            await platform.set_replicas(POOL, 2)
        assert replicas(server) == 3
        pod(server, "unready")
        await platform.set_replicas(POOL, 2)
        assert replicas(server) == 2

    run(scenario, tmp_path)


CRASHED: Object = {"waiting": {"reason": "CrashLoopBackOff"}}
STARTS: Object = {"waiting": {"reason": "ContainerCreating"}}


@pytest.mark.parametrize(
    ("changes", "removable"),
    [
        ({"status": {"containerStatuses": [{"state": CRASHED}]}}, True),
        ({"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}}, True),
        ({"status": {"containerStatuses": [{"state": CRASHED}, {"state": {"running": {}}}]}}, False),
        ({"status": {"phase": "Pending", "containerStatuses": [{"state": STARTS}]}}, False),
        ({"status": {"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]}}, False),
        ({"spec": {}, "status": {"phase": "Pending"}}, True),
        ({"status": {"phase": "Pending"}}, False),
    ],
)
def test_a_pod_in_which_nothing_runs_may_go_in_place_of_a_drained_one(
    tmp_path: Path, changes: Object, *, removable: bool
) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 3)
        pod(server, "drained")
        pod(server, "busy")
        pod(server, "unready", ready=False, **changes)
        await platform.observe(POOL)
        await platform.prefer_removal(POOL, ["drained"])
        with nullcontext() if removable else pytest.raises(PlatformWait, match="pod unready is not ready"):
            await platform.set_replicas(POOL, 2)
        assert replicas(server) == (2 if removable else 3)

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("status", "pod_status", "expected"),
    [
        (
            {
                "conditions": [
                    {
                        "type": "ReplicaFailure",
                        "status": "True",
                        "reason": "FailedCreate",
                        "message": "exceeded quota: gpus",
                    }
                ]
            },
            {},
            "FailedCreate: exceeded quota: gpus",
        ),
        (
            {},
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
            "pod p waits: ImagePullBackOff: no such image",
        ),
        (
            {},
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]},
            "pod p is not scheduled: 0/3 nodes are available",
        ),
        ({}, {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
    ],
)
def test_the_reason_of_missing_replicas(tmp_path: Path, status: Object, pod_status: Object, expected: str) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 1, ready=0, **status)
        pod(server, "p", ready=False, status={"phase": "Pending", **pod_status})
        assert (await platform.observe(POOL)).detail == expected
        deployment(server, 1, ready=1, **status)
        assert not (await platform.observe(POOL)).detail

    run(scenario, tmp_path)


def test_a_quota_of_a_stateful_set_is_in_its_newest_warning(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        server.put("statefulsets", "llama", {"spec": {"replicas": 2}, "status": {"replicas": 1}})
        for name, kind, last, message in (
            ("1", "Warning", "2026-01-01T00:00:01Z", "older"),
            ("2", "Warning", "2026-01-01T00:00:02Z", "exceeded quota"),
            ("3", "Normal", "2026-01-01T00:00:03Z", "created"),
        ):
            event = {"involvedObject": {"name": "llama"}, "type": kind, "lastTimestamp": last, "message": message}
            server.put("events", name, event)
        seen = await platform.observe(POOL)
        assert (seen.ready, seen.detail) == (0, "exceeded quota")

    run(scenario, tmp_path, STATEFUL)


def test_a_throttling_server_is_asked_again_when_it_says_so(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        server.failures = [(429, {"Retry-After": "0"})] * 2 + [(503, {"Retry-After": "0"})]
        await platform.set_replicas(POOL, 5)
        assert replicas(server) == 5
        assert server.requests.count("patch deployments/scale") == 4
        server.failures = [(429, {})]
        with pytest.raises(PlatformError, match="injected failure"):
            await platform.set_replicas(POOL, 6)

    run(scenario, tmp_path)


def test_a_conflict_is_repeated_a_few_times(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        server.failures = [(409, {})] * 4
        await platform.set_replicas(POOL, 5)
        assert replicas(server) == 5
        server.failures = [(409, {})] * 5
        with pytest.raises(PlatformError, match="injected failure"):
            await platform.set_replicas(POOL, 6)

    run(scenario, tmp_path)


def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("first", encoding="utf-8")

    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        server.tokens = {"first"}
        assert (await platform.observe(POOL)).replicas == 2
        server.tokens = {"second"}
        with pytest.raises(PlatformError, match="Unauthorized"):
            await platform.observe(POOL)
        token_file.write_text("second", encoding="utf-8")
        assert (await platform.observe(POOL)).replicas == 2

    run(scenario, tmp_path, token_file=token_file)


def test_a_forbidden_change_names_object_and_remedy(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        server.forbidden.add(("patch", "deployments/scale"))
        with pytest.raises(PlatformError, match=r"Deployment default/llama: forbidden: .*deploy/kubernetes/scaler"):
            await platform.set_replicas(POOL, 5)

    run(scenario, tmp_path)


def test_errors_name_the_object_and_the_remedy(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        with pytest.raises(PlatformError, match=r"Deployment default/llama is missing: .* Create it, or correct"):
            await platform.observe(POOL)
        await server.stop()
        with pytest.raises(PlatformError, match=r"Deployment default/llama: no answer: .* Check the API server"):
            await platform.observe(POOL)

    run(scenario, tmp_path)


def test_changes_are_reported_after_closed_watches_restarts_and_a_restored_backup(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        backup = server.snapshot()
        await platform.observe(POOL)

        async def changes_reach(count: int) -> None:
            """Follow changes, as a driver does, until the count is seen."""
            async with asyncio.timeout(10.0):
                while True:
                    try:
                        if (await platform.observe(POOL)).replicas == count:
                            return
                    except PlatformError:
                        pass
                    await platform.changed()

        await until(lambda: "watch pods" in server.requests)
        deployment(server, 3)
        await changes_reach(3)
        server.close_watches()
        server.compact()
        deployment(server, 4)
        await changes_reach(4)
        await server.stop()
        server.restore(backup)
        await server.start()
        await changes_reach(2)
        deployment(server, 7)
        await changes_reach(7)

    run(scenario, tmp_path)


def test_validate_finds_nothing_wrong_with_a_sound_deployment(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        pod(server, "a")
        assert list(await platform.validate()) == []
        assert replicas(server) == 2
        assert not costs(server)

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("forbidden", "problem"),
    [
        (("get", "deployments"), "Deployment default/llama: forbidden"),
        (("get", "deployments/scale"), "Deployment default/llama: forbidden"),
        (("patch", "deployments/scale"), "cannot be scaled"),
        (("watch", "deployments"), "cannot be watched"),
        (("list", "pods"), "victims of Deployment default/llama cannot be named"),
        (("patch", "pods"), "victims of Deployment default/llama cannot be named"),
    ],
)
def test_validate_names_what_is_forbidden(tmp_path: Path, forbidden: tuple[str, str], problem: str) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        deployment(server, 2)
        server.forbidden.add(forbidden)
        (found,) = await platform.validate()
        assert found.startswith("llama/decode: ")
        assert problem in found

    run(scenario, tmp_path)


def test_validate_names_a_missing_object_and_another_autoscaler(tmp_path: Path) -> None:
    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        (found,) = await platform.validate()
        assert "Deployment default/llama is missing" in found
        deployment(server, 2)
        target = {"scaleTargetRef": {"kind": "Deployment", "name": "llama"}}
        server.put("horizontalpodautoscalers", "hpa", {"spec": target})
        (found,) = await platform.validate()
        assert "HorizontalPodAutoscaler hpa also sets the replicas" in found
        labels = {"scaledobject.keda.sh/name": "llama"}  # KEDA creates this HPA again if it alone is deleted
        server.put("horizontalpodautoscalers", "hpa", {"metadata": {"labels": labels}, "spec": target})
        (found,) = await platform.validate()
        assert "the ScaledObject llama also sets the replicas" in found

    run(scenario, tmp_path)


def test_validate_compares_the_gpus_of_a_group(tmp_path: Path) -> None:
    def template(gpus: int) -> Object:
        return {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}, {}]}}

    async def scenario(server: KubernetesDouble, platform: KubernetesPlatform) -> None:
        group = {"size": 3, "leaderTemplate": template(2), "workerTemplate": template(4)}
        server.put("leaderworkersets", "llama", {"spec": {"replicas": 1, "leaderWorkerTemplate": group}})
        (found,) = await platform.validate()
        assert "a replica has 10 GPUs, gpus_per_worker is 8" in found
        del group["leaderTemplate"]
        group["size"] = 2
        server.put("leaderworkersets", "llama", {"spec": {"replicas": 1, "leaderWorkerTemplate": group}})
        assert list(await platform.validate()) == []

    pool = KubernetesPoolKnobs(name="decode", kind="LeaderWorkerSet", object="llama", gpus_per_worker=8)
    run(scenario, tmp_path, pool)
