"""Manifests of the Kubernetes scaler: its configuration is valid, and its role permits its calls and no others."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadline.cli.main import parser
from loadline.scalers.kubernetes import connect, read
from loadline.scalers.kubernetes.config import KubernetesKnobs
from loadline.scalers.platform import PoolKey
from tests.support.kubernetes_double import KubernetesDouble, kubernetes_double
from tests.waiting import until

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes" / "scaler"


def manifest(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))


def knobs(tmp_path: Path) -> KubernetesKnobs:
    path = tmp_path / "scaler.toml"
    path.write_text(manifest("configmap")["data"]["scaler.toml"], "utf-8")
    return read(path)


def permitted() -> set[str]:
    """Return the calls that the role permits, such as ``patch deployments/scale``."""
    rules = manifest("role")["rules"]
    return {f"{verb} {resource}" for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


async def use_everything(server: KubernetesDouble, configured: KubernetesKnobs) -> None:
    async with connect(configured) as platform:
        assert list(await platform.validate()) == []
        for key in platform.victims:
            await platform.observe(key)
            await platform.set_replicas(key, 3)
        await platform.prefer_removal(PoolKey("llama", "prefill"), ["a"])
        await until(lambda: "watch pods" in server.requests)


def test_the_role_permits_the_calls_of_the_scaler_and_no_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kubernetes_double() as server:
            configured = msgspec.structs.replace(knobs(tmp_path), kubeconfig=str(server.kubeconfig(tmp_path)))
            status = {"replicas": 1, "selector": "app=llama", "hpaPodSelector": "app=llama"}
            for plural, name in (("deployments", "llama-prefill"), ("leaderworkersets", "llama-decode")):
                server.put(plural, name, {"spec": {"replicas": 2}, "status": status}, "serving")
            server.put("pods", "a", {"metadata": {"labels": {"app": "llama"}}}, "serving")
            await use_everything(server, configured)
            unused = {call for call in permitted() if "statefulsets" in call}
            assert set(server.requests) == permitted() - unused

    asyncio.run(scenario())


def test_names_of_objects_in_the_role_are_those_of_the_configuration(tmp_path: Path) -> None:
    configured = knobs(tmp_path)
    objects = {pool.object for model in configured.models for pool in model.pools}
    assert {name for rule in manifest("role")["rules"] for name in rule.get("resourceNames", ())} == objects
    assert manifest("role")["metadata"]["namespace"] == configured.namespace


def test_the_deployment_runs_one_scaler_with_the_configuration_and_login_that_are_mounted(tmp_path: Path) -> None:
    deployment = manifest("deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    options = parser().parse_args(container["args"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(options.config) == f"{mounts['config']}/scaler.toml"
    assert knobs(tmp_path).nats.password_file.startswith(f"{mounts['secrets']}/")
    account = manifest("serviceaccount")["metadata"]
    [subject] = manifest("rolebinding")["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert pod["serviceAccountName"] == account["name"]
    assert set(manifest("kustomization")["resources"]) == {
        path.name for path in FOLDER.glob("*.yaml") if path.stem != "kustomization"
    }


def test_a_scaler_that_answers_keda_ends_before_its_successor_starts() -> None:
    text = (FOLDER.parent / "autoscaling" / "keda-scaler.yaml").read_text("utf-8")
    [deployment] = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
