"""Contract of a Kubernetes API server, as the scaler uses it. ``LOADLINE_TEST_KUBECONFIG=FILE`` adds a real server."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from loadline.adapters.kubernetes_api import ApiFault, ObjectName, Resource
from loadline.scalers.kubernetes.places import parse_place
from loadline.scalers.kubernetes.workloads import CountInside, GraphService, Scalable
from loadline.scalers.platform import CountChanged, PlatformError
from tests.support.kubernetes_double import MERGE
from tests.support.kubernetes_servers import DEPLOYMENT, LWS, SERVERS, ApiServer, api_server, path_of
from tests.waiting import until

Opened = Callable[[], AbstractAsyncContextManager[ApiServer]]
STORM = Resource("orchestration.aibrix.ai", "v1alpha1", "StormService", "stormservices")
GRAPH = Resource("nvidia.com", "v1alpha1", "DynamoGraphDeployment", "dynamographdeployments")
ADAPTER = Resource(
    "nvidia.com", "v1alpha1", "DynamoGraphDeploymentScalingAdapter", "dynamographdeploymentscalingadapters"
)


@pytest.fixture(params=SERVERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Return a function that opens a server."""
    return lambda: api_server(request.param, tmp_path)


def run(opened: Opened, scenario: Callable[[ApiServer], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with opened() as server:
            await scenario(server)

    asyncio.run(whole())


def test_a_count_is_read_and_set_by_scale_even_if_it_is_0(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        target = await server.create(LWS, "counted", {"spec": {"replicas": 2}})
        workload = Scalable(server.api, target)
        assert (await workload.read()).replicas == 2
        for replicas in (0, 3):
            await workload.write(replicas)
            assert (await workload.read()).replicas == replicas
            assert (await server.api.get(target))["spec"]["replicas"] == replicas

    run(opened, scenario)


def test_scale_reports_selector_and_ready_replicas(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        target = await server.create(LWS, "selected", {"spec": {"replicas": 2}})
        assert (await Scalable(server.api, target).read()).ready == 0, "its controller has not begun"
        status = {"status": {"replicas": 2, "readyReplicas": 1, "hpaPodSelector": "a=b,c=d"}}
        assert (await server.call("PATCH", f"{path_of(LWS)}/selected/status", status, MERGE))[0] == 200
        reading = await Scalable(server.api, target).read()
        assert (reading.ready, reading.selector) == (1, "a=b,c=d")

    run(opened, scenario)


def test_a_dry_run_checks_and_changes_nothing(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        target = await server.create(LWS, "dry", {"spec": {"replicas": 2}})
        workload = Scalable(server.api, target)
        await workload.write(5, dry_run=True)
        assert (await workload.read()).replicas == 2
        with pytest.raises(ApiFault) as caught:
            await workload.write(-1, dry_run=True)
        assert caught.value.status == 422

    run(opened, scenario)


def test_a_missing_object_and_a_missing_scale_are_not_found(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        storm = await server.create(STORM, "unscalable", {"spec": {}})
        for workload in (Scalable(server.api, ObjectName(LWS, "default", "absent")), Scalable(server.api, storm)):
            with pytest.raises(ApiFault) as caught:
                await workload.read()
            assert caught.value.status == 404
            with pytest.raises(ApiFault) as caught:
                await workload.write(1)
            assert caught.value.status == 404

    run(opened, scenario)


def test_custom_resources_refuse_strategic_merge_patches(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        await server.create(LWS, "strategic", {"spec": {"replicas": 2}})
        kind = "application/strategic-merge-patch+json"
        status, _ = await server.call("PATCH", f"{path_of(LWS)}/strategic/scale", {"spec": {"replicas": 3}}, kind)
        assert status == 415

    run(opened, scenario)


def test_a_patch_of_an_outdated_version_conflicts(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        target = await server.create(LWS, "locked", {"spec": {"replicas": 2}})
        version = (await server.api.get(target))["metadata"]["resourceVersion"]
        await server.api.patch(target, {"spec": {"replicas": 3}})
        with pytest.raises(ApiFault) as caught:
            await server.api.patch(target, {"metadata": {"resourceVersion": version}, "spec": {"replicas": 4}})
        assert caught.value.status == 409
        assert "the object has been modified" in str(caught.value)
        assert (await server.api.get(target))["spec"]["replicas"] == 3

    run(opened, scenario)


def test_a_count_is_set_only_from_the_state_it_was_derived_from(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        for resource in (LWS, STORM):
            target = await server.create(resource, "compared", {"spec": {"replicas": 2}})
            inside = CountInside(server.api, target, parse_place("spec.replicas"))
            workload = Scalable(server.api, target) if resource is LWS else inside
            base = await workload.read()
            await server.api.patch(target, {"metadata": {"labels": {"a": "b"}}})
            await workload.write(3, base)
            assert (await workload.read()).replicas == 3
            with pytest.raises(CountChanged, match="from 2 to 3"):
                await workload.write(1, base)
            assert (await workload.read()).replicas == 3

    run(opened, scenario)


def test_two_roles_of_one_object_are_set_at_the_same_time(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        roles = [{"name": name, "replicas": 1, "image": name} for name in ("prefill", "decode", "router")]
        target = await server.create(STORM, "storm", {"spec": {"template": {"spec": {"roles": roles}}}})
        places = [f"spec.template.spec.roles[name={name}].replicas" for name in ("prefill", "decode")]
        prefill, decode = (CountInside(server.api, target, parse_place(place)) for place in places)
        for count in range(2, 6):
            await asyncio.gather(prefill.write(count), decode.write(count + 10))
        found = (await server.api.get(target))["spec"]["template"]["spec"]["roles"]
        assert [role["replicas"] for role in found] == [5, 15, 1]
        assert [role["image"] for role in found] == ["prefill", "decode", "router"]
        assert (await decode.read()).replicas == 15

    run(opened, scenario)


def test_a_service_is_found_by_its_type_and_else_by_its_legacy_name(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        services = {
            "Frontend": {"replicas": 1},
            "Odd": {"subComponentType": "prefill", "replicas": 2},
            "VllmDecodeWorker": {"replicas": 3},
        }
        target = await server.create(GRAPH, "graph", {"spec": {"services": services}})
        prefill = GraphService(server.api, target, "prefill", "")
        decode = GraphService(server.api, target, "decode", "")
        assert [(await service.read()).replicas for service in (prefill, decode)] == [2, 3]
        await asyncio.gather(prefill.write(4), decode.write(5))
        found = (await server.api.get(target))["spec"]["services"]
        assert {name: service["replicas"] for name, service in found.items()} == {
            "Frontend": 1,
            "Odd": 4,
            "VllmDecodeWorker": 5,
        }
        with pytest.raises(PlatformError, match="no service is Backend"):
            await GraphService(server.api, target, "", "Backend").read()

    run(opened, scenario)


def test_components_of_later_versions_are_a_list(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        components = [{"name": "a", "type": "decode"}, {"name": "b", "type": "prefill", "replicas": 2}]
        target = await server.create(GRAPH, "listed", {"spec": {"components": components}})
        service = GraphService(server.api, target, "decode", "")
        assert (await service.read()).replicas == 1
        await service.write(7)
        assert (await server.api.get(target))["spec"]["components"] == [
            {"name": "a", "type": "decode", "replicas": 7},
            {"name": "b", "type": "prefill", "replicas": 2},
        ]

    run(opened, scenario)


def test_a_service_with_a_scaling_adapter_is_scaled_by_it(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        services = {"Decode": {"subComponentType": "decode", "replicas": 1}}
        target = await server.create(GRAPH, "adapted", {"spec": {"services": services}})
        adapter = await server.create(ADAPTER, "adapted-decode", {"spec": {"replicas": 2}})
        service = GraphService(server.api, target, "decode", "")
        assert (await service.read()).replicas == 2
        await service.write(6)
        assert (await server.api.get(adapter))["spec"]["replicas"] == 6
        assert (await server.api.get(target))["spec"]["services"]["Decode"]["replicas"] == 1

    run(opened, scenario)


def test_lists_select_by_label(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        for name, app in (("first", "x"), ("second", "y")):
            await server.create(DEPLOYMENT, name, {"metadata": {"labels": {"app": app, "tier": "t"}}, "spec": {}})
        found = await server.api.list(DEPLOYMENT, "default", dict, selector="app=y,tier=t")
        assert [item["metadata"]["name"] for item in found] == ["second"]

    run(opened, scenario)


def test_a_watch_reports_the_changes_of_its_object_only(opened: Opened) -> None:
    async def scenario(server: ApiServer) -> None:
        target = await server.create(LWS, "watched", {"spec": {"replicas": 2}})
        other = await server.create(LWS, "unwatched", {"spec": {"replicas": 2}})
        changes: list[dict[str, Any] | None] = []
        watching = asyncio.create_task(server.api.watch(LWS, "default", changes.append, name=target.name))
        await until(lambda: len(changes) == 1)  # the present state
        await server.api.patch(other, {"spec": {"replicas": 3}})
        await server.api.patch(target, {"spec": {"replicas": 3}}, scale=True)
        await until(lambda: len(changes) == 2)
        await server.call("DELETE", f"{path_of(LWS)}/watched")
        await until(lambda: len(changes) == 3)
        assert [change and change["spec"]["replicas"] for change in changes] == [2, 3, None]
        await server.create(LWS, "watched", {"spec": {"replicas": 2}})
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await server.api.may_watch(target)

    run(opened, scenario)


@pytest.mark.parametrize(("version", "expected"), [("1", '"code":410'), ("9000000", "")])
def test_a_watch_from_too_early_is_refused_and_one_from_the_future_is_silent(
    opened: Opened, version: str, expected: str
) -> None:
    async def scenario(server: ApiServer) -> None:
        await server.create(LWS, "versions", {"spec": {"replicas": 2}})
        await server.create(LWS, "versions", {"spec": {"replicas": 3}})
        query = f"?watch=true&timeoutSeconds=1&resourceVersion={version}"
        status, text = await server.call("GET", path_of(LWS) + query)
        assert status == 200
        text = text.replace(" ", "")
        assert (expected in text) if expected else (text == "")

    run(opened, scenario)
