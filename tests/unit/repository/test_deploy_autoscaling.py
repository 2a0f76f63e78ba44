"""Files of deploy/kubernetes/autoscaling: valid for Kubernetes and KEDA, and true to the agent's configuration."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube.models import apps_v1, autoscaling_v2, core_v1, networking_v1

from loadline.cli.main import parser
from loadline.config import parse
from loadline.config.autoscalers import read_autoscalers, tolerance_warnings
from loadline.config.knobs import Config
from loadline.scalers.keda_config import read
from loadline.wire.subjects import Subjects
from tests.unit.repository.test_deploy import kubernetes_config, manifests
from tests.unit.repository.test_deploy_metrics import AUTOSCALING, DEPLOY, exported_metrics

SCHEMAS: dict[str, Any] = {
    "ConfigMap": core_v1.ConfigMap,
    "Deployment": apps_v1.Deployment,
    "HorizontalPodAutoscaler": autoscaling_v2.HorizontalPodAutoscaler,
    "NetworkPolicy": networking_v1.NetworkPolicy,
    "Service": core_v1.Service,
}
"""Models of Kubernetes 1.37."""
SCALED_OBJECT = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "metadata": {"name", "namespace", "labels", "annotations"},
    "spec": {
        *("advanced", "cooldownPeriod", "fallback", "idleReplicaCount", "initialCooldownPeriod", "maxReplicaCount"),
        *("minReplicaCount", "pollingInterval", "scaleTargetRef", "triggers"),
    },
    "spec.scaleTargetRef": {"apiVersion", "envSourceContainerName", "kind", "name"},
    "spec.advanced": {"horizontalPodAutoscalerConfig", "restoreToOriginalReplicaCount", "scalingModifiers"},
    "spec.advanced.horizontalPodAutoscalerConfig": {"behavior", "name"},
    "spec.triggers.0": {"authenticationRef", "metadata", "metricType", "name", "type", "useCachedMetrics"},
}
"""Fields of KEDA's ScaledObject, as of its commit 8b4f083c; the behavior has the fields of an HPA's."""
OF_PUSH_TRIGGERS = {"scalerAddress", "enableTLS", "unsafeSsl"}
"""Metadata that KEDA itself reads; the rest is for the scaler."""


def load_all(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((AUTOSCALING / name).read_text("utf-8")))


def load(name: str) -> Any:
    [only] = load_all(name)
    return only


def keda_scaler() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in load_all("keda-scaler.yaml")}


def objects() -> list[dict[str, Any]]:
    return [one for path in sorted(AUTOSCALING.iterdir()) for one in load_all(path.name) if "kind" in one]


def unknown_fields(schema: Any, given: dict[str, Any]) -> list[str]:
    """Return the fields that a model of Kubernetes does not have; it drops them."""
    read_back = schema.from_dict(given).to_dict()
    return sorted(set(paths(given)) - set(paths(read_back)))


def paths(value: object, place: str = "") -> list[str]:
    """Return the path of every key."""
    if isinstance(value, list):
        return [path for index, one in enumerate(value) for path in paths(one, f"{place}.{index}")]
    if not isinstance(value, dict):
        return [place]
    return [path for key, one in value.items() for path in [f"{place}.{key}", *paths(one, f"{place}.{key}")]]


@pytest.mark.parametrize("given", objects(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_every_field_exists(given: dict[str, Any]) -> None:
    if given["kind"] in SCHEMAS:
        assert unknown_fields(SCHEMAS[given["kind"]], given) == []
    else:
        assert given["kind"] in {"ScaledObject", "ServiceMonitor"}


def test_an_unknown_field_is_detected() -> None:
    spec = load("hpa.yaml")
    spec["spec"]["behavior"]["scaleUp"]["tolerence"] = "0"
    [field] = unknown_fields(autoscaling_v2.HorizontalPodAutoscaler, spec)
    assert field.endswith("scaleUp.tolerence")


def test_every_field_of_the_scaled_object_exists() -> None:
    given = load("scaledobject.yaml")
    for place, known in SCALED_OBJECT.items():
        found = given
        for key in filter(None, place.split(".")):
            found = found[int(key) if key.isdigit() else key]
        assert found.keys() <= known, place
    behavior = given["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert unknown_fields(autoscaling_v2.HorizontalPodAutoscalerBehavior, behavior) == []
    assert behavior == load("hpa.yaml")["spec"]["behavior"]


@pytest.mark.parametrize("name", ["hpa.yaml", "scaledobject.yaml"])
def test_no_difference_of_a_replica_is_ignored(name: str) -> None:
    found = read_autoscalers(json.dumps(load(name)).encode())
    assert len(found) == 1
    large = parse(
        manifests()["ConfigMap"]["data"]["loadline.toml"].replace("replicas_max = 8", "replicas_max = 16"), "x"
    )
    assert list(tolerance_warnings(large, found)) == []
    inexact = json.dumps(load(name)).replace('"tolerance": "0"', '"tolerance": "0.1"').encode()
    assert len(list(tolerance_warnings(large, read_autoscalers(inexact)))) == 1


def test_an_hpa_sets_the_replicas_of_the_metric_within_the_configured_bounds() -> None:
    spec = load("hpa.yaml")["spec"]
    [metric] = spec["metrics"]
    external = metric["external"]
    assert metric["type"] == "External"
    assert external["target"] == {"type": "AverageValue", "averageValue": "1"}
    [rule] = load("prometheus-adapter-values.yaml")["rules"]["external"]
    assert external["metric"]["name"] == rule["name"]["as"]
    assert external["metric"]["selector"]["matchLabels"].keys() <= exported_metrics()[external["metric"]["name"]]
    labels = external["metric"]["selector"]["matchLabels"]
    assert_bounds(labels["model"], labels["pool"], spec["minReplicas"], spec["maxReplicas"])


def assert_bounds(model: str, pool: str, least: int, most: int) -> None:
    [knobs] = [
        one for each in kubernetes_config().models if each.name == model for one in each.pools if one.name == pool
    ]
    assert (knobs.replicas_min, knobs.replicas_max) == (least, most)


def test_keda_asks_the_scaler_for_a_configured_pool() -> None:
    spec = load("scaledobject.yaml")["spec"]
    [trigger] = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("external-push", "AverageValue")
    metadata = trigger["metadata"]
    assert metadata.keys() - OF_PUSH_TRIGGERS == {"model", "pool"}
    assert "fallback" not in spec
    assert_bounds(metadata["model"], metadata["pool"], spec["minReplicaCount"], spec["maxReplicaCount"])
    service = keda_scaler()["Service"]
    [port] = service["spec"]["ports"]
    [namespace] = [one for one in manifests().values() if one["kind"] == "Namespace"]
    host = f"{service['metadata']['name']}.{namespace['metadata']['name']}.svc"
    assert metadata["scalerAddress"] == f"{host}:{port['port']}"


def test_the_keda_scaler_serves_the_model_of_the_scaled_object_on_its_port(tmp_path: Path) -> None:
    files = keda_scaler()
    path = tmp_path / "keda.toml"
    path.write_text(files["ConfigMap"]["data"]["keda.toml"], "utf-8")
    knobs = read(path)
    assert load("scaledobject.yaml")["spec"]["triggers"][0]["metadata"]["model"] in knobs.models
    deployment = files["Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [port] = container["ports"]
    [rule] = files["NetworkPolicy"]["spec"]["ingress"]
    served = {port["containerPort"], container["livenessProbe"]["grpc"]["port"], rule["ports"][0]["port"]}
    assert served == {container["startupProbe"]["grpc"]["port"], knobs.port}
    assert files["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert files["Service"]["spec"]["selector"] == labels
    assert files["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert knobs.nats == observed_config().nats
    assert container["args"][-1] == f"{container['volumeMounts'][0]['mountPath']}/keda.toml"


@pytest.mark.parametrize("name", ["observed", "keda"])
def test_a_scaler_has_a_scalers_login_and_no_kubernetes_rights(name: str) -> None:
    [deployment] = [one for one in load_all(f"{name}-scaler.yaml") if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    options = parser().parse_args(container["args"])
    assert options.name == name
    agent = manifests()["Deployment"]["spec"]["template"]["spec"]
    [agents] = agent["containers"]
    assert container["image"] == agents["image"]
    assert container["securityContext"] == agents["securityContext"]
    assert pod["securityContext"] == agent["securityContext"]
    assert pod["automountServiceAccountToken"] is False


def observed_config() -> Config:
    """Return the agents' configuration with the variables of the observed scaler."""
    [container] = load("observed-scaler.yaml")["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    return parse(manifests()["ConfigMap"]["data"]["loadline.toml"], "the ConfigMap", environment)


def test_the_observed_scaler_uses_the_agents_file_and_its_own_login() -> None:
    config = observed_config()
    users = (DEPLOY / "nats" / "loadline.conf").read_text("utf-8")
    assert f'user: "{config.nats.user}"' in users
    assert config.nats.inbox_prefix == f"_INBOX_{config.nats.user}"
    [container] = load("observed-scaler.yaml")["spec"]["template"]["spec"]["containers"]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert parser().parse_args(container["args"]).config == Path(mounts[0]) / "loadline.toml"
    assert config.nats.password_file.startswith(f"{mounts[1]}/")


def test_scalers_that_read_the_status_log_in_as_a_user_who_may() -> None:
    user = observed_config().nats.user
    users = (DEPLOY / "nats" / "loadline.conf").read_text("utf-8")
    [readable] = re.findall(rf'user: "{user}".*?subscribe: \[(.*?)\]', users, re.DOTALL)
    assert f'"{Subjects("loadline").all_of("status")}"' in readable
    chart = yaml.safe_load((DEPLOY / "helm" / "loadline" / "values.yaml").read_text("utf-8"))["scaler"]
    assert (chart["natsUser"], chart["natsInboxPrefix"]) == (user, f"_INBOX_{user}")
    guides = DEPLOY.parent / "docs" / "how-to"
    assert f'`user = "{user}"` and `inbox_prefix = "_INBOX_{user}"`' in (guides / "deploy-with-systemd.md").read_text(
        "utf-8"
    )
    assert f"`{user}`" in (guides / "use-hpa-or-keda.md").read_text("utf-8")


def test_every_deployment_file_is_tested() -> None:
    looked_at = {"hpa", "keda-scaler", "observed-scaler", "prometheus-adapter-values", "scaledobject", "servicemonitor"}
    assert {path.name for path in AUTOSCALING.iterdir()} == {f"{name}.yaml" for name in looked_at}
