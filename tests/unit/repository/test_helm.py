"""The Helm chart, as Helm renders it, agrees with the manifests of deploy/kubernetes and the command line.

The renderings are in tests/golden/helm, since Helm is no dependency; tests/golden/make_helm.py makes them.
"""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadline.cli.main import parser
from loadline.config import load, parse
from loadline.config.schema import file_table
from loadline.scalers import keda_config
from loadline.scalers.kubernetes import config as kubernetes_config
from loadline.sources import gateway_config
from loadline.toml.connection import load_connection
from tests.golden.make_helm import CASES, CHART, GOLDEN, KUBERNETES_MINORS, ROOT, digest, render, validate

MANIFESTS = ROOT / "deploy" / "kubernetes"
LABEL = "app.kubernetes.io/"
# Programs and the readers of their configurations; the others read that of the agents.
READERS: dict[str, Callable[[Path], Any]] = {
    "run": load,
    "gateway": load_connection,
    "scaler observed": load,
    "scaler kubernetes": kubernetes_config.read,
    "scaler keda": keda_config.read,
    "source gateway": gateway_config.read_gateway,
}
"""Readers of the configuration, by program."""
needs_helm = pytest.mark.skipif(find_spec("helm_python") is None, reason="helm-python-sdk is not installed")


def rendered(case: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((GOLDEN / f"{case}.yaml").read_text("utf-8")))


def named(case: str, kind: str, name: str = "loadline") -> dict[str, Any]:
    [found] = [one for one in rendered(case) if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pods(case: str) -> list[dict[str, Any]]:
    return [one["spec"]["template"] for one in rendered(case) if one["kind"] == "Deployment"]


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((MANIFESTS / name).read_text("utf-8"))
    return found


def without_labels(value: Any) -> Any:
    """Return a part of an object without labels, which differ, and without what only the chart has."""
    if isinstance(value, dict):
        left_out = {"labels", "matchLabels", "imagePullPolicy"}
        return {key: without_labels(one) for key, one in value.items() if key not in left_out and key != "selector"}
    return [without_labels(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES)
def test_the_renderings_are_those_of_this_chart(case: str) -> None:
    first = (GOLDEN / f"{case}.yaml").read_text("utf-8").partition("\n")[0]
    assert first == f"# chart and values: {digest()}", "run tests/golden/make_helm.py"


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_helm_renders_the_same_again(case: str) -> None:
    assert render(case) == (GOLDEN / f"{case}.yaml").read_text("utf-8")


@pytest.mark.parametrize("path", [*GOLDEN.glob("*.yaml"), *MANIFESTS.rglob("*.yaml")], ids=lambda path: path.name)
def test_objects_are_valid_in_kubernetes(path: Path) -> None:
    validate(path.read_text("utf-8"), KUBERNETES_MINORS if path.parent == GOLDEN else KUBERNETES_MINORS[-1:])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Deployment", "deployment.yaml"),
        ("Service", "service.yaml"),
        ("PodDisruptionBudget", "pdb.yaml"),
        ("NetworkPolicy", "networkpolicy.yaml"),
    ],
)
def test_the_chart_without_values_is_the_manifests(kind: str, name: str) -> None:
    assert without_labels(named("defaults", kind)["spec"]) == without_labels(manifest(name)["spec"])
    account = manifest("serviceaccount.yaml")["automountServiceAccountToken"]
    assert named("defaults", "ServiceAccount")["automountServiceAccountToken"] is account is False


def test_the_configuration_is_that_of_the_manifests() -> None:
    key = "loadline.toml"
    chart, plain = named("defaults", "ConfigMap")["data"][key], manifest("configmap.yaml")["data"][key]
    assert file_table(parse(chart, "the chart")) == file_table(parse(plain, "the manifest"))


def test_the_rules_for_other_kinds_are_those_of_the_manifests() -> None:
    def commented(path: Path) -> list[Any]:
        lines = (line.strip() for line in path.read_text("utf-8").splitlines())
        text = "\n".join(line.removeprefix("# ") for line in lines if re.match(r"# (- apiGroups|  \w+:)", line))
        rules = yaml.safe_load(text)
        return [{key: value for key, value in rule.items() if key != "resourceNames"} for rule in rules]

    assert commented(CHART / "values.yaml") == commented(MANIFESTS / "scaler" / "role.yaml")


@pytest.mark.parametrize("case", CASES)
def test_selectors_match_the_pods_of_one_program(case: str) -> None:
    labels = {pod["metadata"]["labels"][f"{LABEL}component"]: pod["metadata"]["labels"] for pod in pods(case)}
    assert len(labels) == len(pods(case))
    for one in rendered(case):
        selector = one.get("spec", {}).get("selector") or one.get("spec", {}).get("podSelector")
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert wanted.items() <= labels[wanted[f"{LABEL}component"]].items()


@pytest.mark.parametrize("case", CASES)
def test_every_program_can_start_with_its_arguments_and_has_a_login_of_its_own(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = []
    for pod in pods(case):
        [container] = pod["spec"]["containers"]
        assert "command" not in container, "the image has an entry point"
        parser().parse_args(container["args"])
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        file = container["args"][container["args"].index("--config") + 1]
        [volume] = [one for one in pod["spec"]["volumes"] if one["name"] == "config"]
        data = named(case, "ConfigMap", volume["configMap"]["name"])["data"]
        assert file in {f"{mounts['config']}/{key}" for key in data}
        (tmp_path / "given.toml").write_text(data[Path(file).name], "utf-8")
        words = 2 if container["args"][0] in {"scaler", "source"} else 1
        with monkeypatch.context() as of_pod:
            for variable in container.get("env", ()):
                of_pod.setenv(variable["name"], variable.get("value", "a name"))
            config = READERS[" ".join(container["args"][:words])](tmp_path / "given.toml")
        assert config.nats.password_file.startswith(f"{mounts['secrets']}/")
        users.append(config.nats.user)
    assert len(set(users)) == len(users), users


@pytest.mark.parametrize("case", CASES)
def test_pods_are_confined(case: str) -> None:
    for pod in pods(case):
        [container] = pod["spec"]["containers"]
        agent = manifest("deployment.yaml")["spec"]["template"]["spec"]
        assert pod["spec"]["securityContext"] == agent["securityContext"]
        assert container["securityContext"] == agent["containers"][0]["securityContext"]
        scales = container["args"][:2] == ["scaler", "kubernetes"]
        assert pod["spec"]["automountServiceAccountToken"] is scales


def test_only_the_kubernetes_scaler_has_rights_and_only_in_its_namespaces() -> None:
    kinds = {case: [one["kind"] for one in rendered(case)] for case in CASES}
    assert not [case for case in CASES if "Role" in kinds[case] and case != "everything"]
    assert not [case for case in CASES if {"ClusterRole", "ClusterRoleBinding"} & set(kinds[case])]
    roles = [one for one in rendered("everything") if one["kind"] == "Role"]
    named_objects = manifest("scaler/role.yaml")["rules"]
    rules = [{key: value for key, value in rule.items() if key != "resourceNames"} for rule in named_objects]
    assert all(role["rules"] == rules for role in roles)
    assert [role["metadata"]["namespace"] for role in roles] == ["serving", "more-serving"]
    for binding in (one for one in rendered("everything") if one["kind"] == "RoleBinding"):
        assert binding["roleRef"]["name"] == binding["metadata"]["name"] == "loadline.loadline-scaler"
        [subject] = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == ("loadline-scaler", "loadline")


def test_the_alerts_are_those_of_the_file() -> None:
    file = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text("utf-8"))
    assert named("everything", "PrometheusRule")["spec"] == file


def test_no_manifest_overrides_the_entry_point_of_the_image() -> None:
    for path in MANIFESTS.rglob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            template = (document or {}).get("spec", {}).get("template", {})
            assert not [one for one in template.get("spec", {}).get("containers", []) if "command" in one], path


def test_notes_and_guide_name_the_address_that_the_keda_scaler_serves() -> None:
    service = named("keda", "Service", "loadline-scaler")
    [port] = service["spec"]["ports"]
    notes = (CHART / "templates" / "NOTES.txt").read_text("utf-8")
    guide = (ROOT / "docs" / "how-to" / "use-hpa-or-keda.md").read_text("utf-8")
    texts = ((notes, "{{ .Release.Name }}", "{{ .Release.Namespace }}"), (guide, "<release>", "<namespace>"))
    for text, release, namespace in texts:
        name = service["metadata"]["name"].replace("loadline", release, 1)
        assert f"{name}.{namespace}.svc:{port['port']}" in text
