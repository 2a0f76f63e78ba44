"""Render the Helm chart with some values into tests/golden/helm, with Helm's own engine.

It needs Helm's SDK as a Python package, which is no dependency of the project: `pip install helm-python-sdk`. The
result is checked against the schemas of Kubernetes.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "loadline"
GOLDEN: Final = Path(__file__).parent / "helm"
KUBERNETES_MINORS: Final = ("1.27", "1.33", "1.37")
_SCALER: Final = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "scaler" / "configmap.yaml").read_text("utf-8"))
_KEDA: Final = """models = ["llama"]
host = "0.0.0.0"

[nats]
servers = ["tls://nats.nats.svc:4222"]
user = "observed-llama"
password_file = "/etc/loadline/secrets/scaler-password"
ca_file = "/etc/loadline/secrets/ca.crt"
inbox_prefix = "_INBOX_observed-llama"
"""
_SOURCE: Final = """[nats]
servers = ["tls://nats.nats.svc:4222"]
user = "frontend-llama"
password_file = "/etc/loadline/secrets/frontend-password"

[[frontends]]
name = "epp"
router = "llm-d"
model = "llama"
urls = ["http://epp.serving.svc:9090/metrics"]
"""
CASES: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "everything": {
        "scaler": {
            "name": "kubernetes",
            "config": _SCALER["data"]["scaler.toml"],
            "namespaces": ["serving", "more-serving"],
        },
        "gateway": {"enabled": True},
        "sources": [{"name": "routers", "type": "gateway", "config": _SOURCE}],
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "imagePullSecrets": [{"name": "registry"}],
        "agent": {"nodeSelector": {"pool": "system"}, "tolerations": [{"key": "system", "operator": "Exists"}]},
    },
    "keda": {"scaler": {"name": "keda", "config": _KEDA}, "networkPolicy": {"enabled": False}},
    "observed": {"scaler": {"name": "observed"}, "podDisruptionBudget": {"enabled": False}},
}
"""Values of each rendering."""


def digest() -> str:
    """Return the digest of the chart and of the values, which each rendering has in its first line."""
    found = hashlib.sha256(repr(CASES).encode())
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(CHART)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def render(case: str) -> str:
    """Render the chart with the values of a case, as the release ``loadline`` in the namespace ``loadline``."""
    import helm_python  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - no dependency

    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(CASES[case], name="loadline", namespace="loadline")
    texts = [
        text.strip().removeprefix("---\n")
        for name, text in sorted(files.items())
        if name.endswith(".yaml") and text.strip()
    ]
    lines = "\n---\n".join(texts).splitlines()
    return f"# chart and values: {digest()}\n" + "\n".join(line.rstrip() for line in lines) + "\n"


def validate(text: str, minors: Sequence[str] = KUBERNETES_MINORS) -> None:
    """Check all objects of Kubernetes itself against its schemas; unknown fields are errors."""
    others = ("monitoring.coreos.com/", "keda.sh/", "kustomize.config.k8s.io/")
    for document in yaml.safe_load_all(text):
        if not document.get("apiVersion", others[0]).startswith(others):
            for minor in minors:
                kubernetes_validate.validate(document, minor, strict=True)


if __name__ == "__main__":
    for name in CASES:
        rendered = render(name)
        (GOLDEN / f"{name}.yaml").write_text(rendered, "utf-8")
        validate(rendered)
        count = len(list(yaml.safe_load_all(rendered)))
        sys.stdout.write(f"{name}: {count} objects, valid in {', '.join(KUBERNETES_MINORS)}\n")
