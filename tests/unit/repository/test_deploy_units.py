"""systemd units of the programs beside the agent agree with these programs and with the guide."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadline.cli.main import parser
from loadline.config import load
from loadline.scalers.local.config import read
from loadline.toml.connection import load_connection

ROOT = Path(__file__).parents[3]
SYSTEMD = ROOT / "deploy" / "systemd"
GUIDE = (ROOT / "docs" / "how-to" / "deploy-with-systemd.md").read_text("utf-8")
SCALER = SYSTEMD / "loadline-local-scaler.service"
UNITS = (SCALER, SYSTEMD / "loadline-sidecar@.service", SYSTEMD / "loadline-gateway.service")
SYSTEMD_ANALYZE = shutil.which("systemd-analyze") or ""

with_each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text("utf-8").replace("\\\n", ""), re.MULTILINE)


@pytest.mark.skipif(not SYSTEMD_ANALYZE, reason="systemd-analyze is not installed")
@with_each_unit
def test_a_unit_has_no_unknown_setting(unit: Path, tmp_path: Path) -> None:
    path = tmp_path / unit.name.replace("@.", "@8000.")
    installed = str(Path(sys.executable).with_name("loadline"))
    path.write_text(unit.read_text("utf-8").replace("/opt/loadline/bin/loadline", installed), "utf-8")
    done = subprocess.run([SYSTEMD_ANALYZE, "verify", str(path)], capture_output=True, text=True, check=True)
    assert not [line for line in done.stderr.splitlines() if path.name in line]


@with_each_unit
def test_a_unit_starts_its_program_with_a_configuration_that_the_guide_installs(unit: Path) -> None:
    [command] = values(unit, "ExecStart")
    program, *arguments = shlex.split(command.replace("%i", "8000").replace("$SIDECAR_OPTIONS", "--gpus 2"))
    options = parser().parse_args(arguments)
    assert program == "/opt/loadline/bin/loadline"
    assert str(options.config.parent) == "/etc/loadline"
    assert options.config.name in GUIDE
    assert unit.name in GUIDE


@with_each_unit
def test_a_unit_is_always_restarted(unit: Path) -> None:
    assert values(unit, "Restart") == ["always"]
    assert values(unit, "StartLimitIntervalSec") == ["0"]


@pytest.mark.parametrize("unit", sorted(SYSTEMD.glob("*.service")), ids=lambda unit: unit.name)
def test_the_guide_installs_each_unit_with_its_passwords_and_starts_it(unit: Path) -> None:
    lines = GUIDE.splitlines()
    [installed] = [line for line in lines if line.strip().startswith("# install -m 0644") and f"/{unit.name} " in line]
    assert installed.split()[-1] == "/etc/systemd/system/"
    passwords = {Path(value.partition(":")[2]) for value in values(unit, "LoadCredential")}
    copied = [line.split() for line in lines if "# install -m 0400" in line]
    assert passwords <= {Path(words[-1]) / name for words in copied for name in words[4:-1]}
    assert re.search(rf"# systemctl enable --now (--no-block )?{unit.stem}", GUIDE)


def test_engines_outlive_the_service_of_the_scaler() -> None:
    knobs = read(SYSTEMD / "local.toml")
    assert values(SCALER, "KillMode") == ["process"]
    assert values(SCALER, "OOMPolicy") == ["continue"]
    # Engines keep the folders of temporary files of the service that has started them.
    assert values(SCALER, "PrivateTmp") == values(SCALER, "DynamicUser") == []
    assert knobs.on_stop == "leave"
    assert knobs.state_file.startswith(f"/var/lib/{values(SCALER, 'StateDirectory')[0]}/")
    assert knobs.log_directory == f"/var/log/{values(SCALER, 'LogsDirectory')[0]}"


def test_scaler_and_sidecars_read_passwords_that_their_user_owns() -> None:
    knobs, sidecars = read(SYSTEMD / "local.toml"), load_connection(SYSTEMD / "sidecar.toml")
    [installed] = re.findall(r"install -m 0400 -o loadline (.*) /etc/loadline/", GUIDE)
    assert knobs.sidecar_config == "/etc/loadline/sidecar.toml"
    files = {knobs.nats.password_file, sidecars.nats.password_file, sidecars.etcd.password_file}
    assert files == {f"/etc/loadline/{name}" for name in installed.split()}
    assert {values(unit, "User")[0] for unit in UNITS[:2]} == {"loadline"}


def test_the_examples_name_the_same_pool_and_servers() -> None:
    agent, scaler = load(SYSTEMD / "loadline.toml"), read(SYSTEMD / "local.toml")
    sidecars = load_connection(SYSTEMD / "sidecar.toml")
    assert [
        (model.name, pool.name, pool.role, pool.gpus_per_worker) for model in agent.models for pool in model.pools
    ] == [(model.name, pool.name, pool.role, pool.gpus) for model in scaler.models for pool in model.pools]
    assert agent.nats.servers == scaler.nats.servers == sidecars.nats.servers
    assert agent.etcd.endpoints == sidecars.etcd.endpoints
    assert (agent.agent.root, agent.agent.namespace) == (sidecars.agent.root, sidecars.agent.namespace)
    [model] = agent.models
    [pool] = model.pools
    assert scaler.nats.user == f"scaler-{model.name}"
    assert sidecars.nats.user == f"worker-{model.name}-{pool.name}"
    assert sidecars.etcd.user == f"loadline-worker-{model.name}"
