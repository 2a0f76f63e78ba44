"""Commands of the local scaler's workers."""

from pathlib import Path

import pytest

from loadline.cli.main import parser
from loadline.errors import ConfigError
from loadline.scalers.local.commands import command_of, fill_template
from loadline.scalers.local.config import LocalKnobs, read

CONFIG = """
root = "other"
nats.servers = ["nats://10.0.0.1:4222", "nats://10.0.0.2:4222"]
models = [{ name = "m", pools = [{ name = "p", role = "prefill", gpus = 2, command = ["vllm", "--port", "{port}"] }] }]
"""
NAMES = {"worker": "p-1", "model": "m", "pool": "p", "role": "prefill", "port": "8101"}


def read_text(directory: Path, text: str, *, sidecar: bool = True) -> LocalKnobs:
    path = directory / "local.toml"
    path.write_text(text, "utf-8")
    return read(path, sidecar=sidecar)


def test_a_sidecar_understands_the_options_that_it_gets(tmp_path: Path) -> None:
    knobs = read_text(tmp_path, f"grace_ms = 70000\n{CONFIG}")
    command = fill_template(command_of(knobs, knobs.models[0].pools[0]), NAMES)
    options = parser().parse_args(command[4:])
    assert (options.worker, options.model, options.pool, options.role, options.gpus) == ("p-1", "m", "p", "prefill", 2)
    assert (options.url, options.nats, options.root) == ("http://127.0.0.1:8101", "nats://10.0.0.1:4222", "other")
    assert options.engine_command == ["vllm", "--port", "8101"]


def test_a_sidecar_may_have_a_login_of_its_own(tmp_path: Path) -> None:
    knobs = read_text(tmp_path, f'grace_ms = 70000\nsidecar_config = "sidecar.toml"\n{CONFIG}')
    options = parser().parse_args(fill_template(command_of(knobs, knobs.models[0].pools[0]), NAMES)[4:])
    assert options.config == tmp_path / "sidecar.toml"
    assert options.nats is None


def test_routers_of_other_hosts_get_an_address_that_they_reach(tmp_path: Path) -> None:
    for host, advertised in (("", ""), ("10.0.0.7", "http://10.0.0.7:8101")):
        knobs = read_text(tmp_path, f'grace_ms = 70000\nadvertise_host = "{host}"\n{CONFIG}')
        options = parser().parse_args(fill_template(command_of(knobs, knobs.models[0].pools[0]), NAMES)[4:])
        assert options.advertise == advertised
    with pytest.raises(ConfigError, match="advertise_host"):
        read_text(tmp_path, f'advertise_host = "http://10.0.0.7"\n{CONFIG}')


def test_files_are_relative_to_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started from another folder, a scaler would find no worker and start all of them again."""
    text = f'state_file = "state.json"\nlog_directory = "/var/log/x"\n{CONFIG}'
    knobs = read_text(tmp_path, text, sidecar=False)
    assert (knobs.state_file, knobs.log_directory) == (str(tmp_path / "state.json"), "/var/log/x")
    assert knobs.lifetimes_file == ""
    monkeypatch.chdir(tmp_path)
    assert read(Path("local.toml")).state_file == str(tmp_path / "state.json")


def test_a_sidecar_gets_the_time_to_empty_its_engine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Set grace_ms = 70000"):
        read_text(tmp_path, f"grace_ms = 69999\n{CONFIG}")
    assert read_text(tmp_path, CONFIG).sigterm_grace_ms == 70_000
    engines = read_text(tmp_path, CONFIG, sidecar=False)
    assert not engines.models[0].pools[0].sidecar
    assert engines.sigterm_grace_ms == 5_000
    assert read_text(tmp_path, f"grace_ms = 80000\n{CONFIG}").sigterm_grace_ms == 80_000


def test_workers_without_a_state_file_are_not_left(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Set state_file"):
        read_text(tmp_path, f'on_stop = "leave"\n{CONFIG}', sidecar=False)


def test_a_file_as_the_folder_of_logs_is_refused(tmp_path: Path) -> None:
    """The configuration was valid, and each worker failed to start."""
    with pytest.raises(ConfigError, match=r"log_directory: .*local\.toml is a file\. Name a folder"):
        read_text(tmp_path, f'log_directory = "local.toml"\n{CONFIG}', sidecar=False)


@pytest.mark.parametrize("key", ["state_file", "sidecar_config", "log_directory", "lifetimes_file"])
def test_a_file_with_a_nul_is_refused(key: str, tmp_path: Path) -> None:
    """Two ended the scaler with a traceback, and two were never written."""
    with pytest.raises(ConfigError, match=rf"{key}: is .*\. Write text without a NUL"):
        read_text(tmp_path, f'{key} = "a\\u0000b"\n{CONFIG}', sidecar=False)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("command", '["a\\u0000b"]', r"is .*\. Write .*text without a NUL"),
        ("env", '{ A = "a\\u0000b" }', r"is .*\. Write text without a NUL"),
        ("env", '{ "A\\u0000B" = "" }', r"'A\\x00B' is no name of a variable"),
        ("env", '{ "A=B" = "" }', r"'A=B' is no name of a variable"),
    ],
)
def test_what_no_process_can_be_started_with_is_refused(key: str, value: str, problem: str, tmp_path: Path) -> None:
    """The scaler started, and ended with a traceback at its first decision."""
    entries = ", ".join(f"{name} = {one}" for name, one in {"command": '["vllm"]', key: value}.items())
    text = f'models = [{{ name = "m", pools = [{{ name = "p", role = "prefill", {entries} }}] }}]'
    with pytest.raises(ConfigError, match=rf"pools\[0\]\.{key}.*: {problem}"):
        read_text(tmp_path, text, sidecar=False)
