"""Configuration files and commands of the demo, as agent, scaler and processes read them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline import config
from loadline.demo import gateway, worker
from loadline.demo.setup import ROLES, DemoSetup, Mode
from loadline.scalers.local import config as local_config
from loadline.scalers.local.commands import fill_template


def demo(folder: Path, mode: Mode) -> DemoSetup:
    return DemoSetup("nats://127.0.0.1:1", "http://127.0.0.1:2", folder, mode, root="r", namespace="n")


@pytest.mark.parametrize("mode", ["disaggregated", "aggregated"])
def test_the_agent_configuration_is_valid(tmp_path: Path, mode: Mode) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text(demo(tmp_path, mode).agent_config("agent-1"), "utf-8")
    read = config.load(path)
    assert [pool.role for pool in read.models[0].pools] == list(ROLES[mode])
    assert (read.agent.root, read.agent.namespace) == ("r", "n")
    assert (read.nats.servers, read.etcd.endpoints) == (("nats://127.0.0.1:1",), ("http://127.0.0.1:2",))
    (pool, *_) = read.models[0].pools
    assert (pool.replicas_min, pool.replicas_max) == (2, 8)
    assert read.models[0].planner == "auto"
    assert read.models[0].objectives is not None


def test_another_planner_can_be_named_with_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "loadline.toml"
    planner = 'planner = "saturation"\n\n[models.saturation]\nscale_up_window_ms = 1000\n'
    path.write_text(replace(demo(tmp_path, "aggregated"), planner=planner).agent_config("agent-1"), "utf-8")
    assert config.load(path).models[0].planner == "saturation"


@pytest.mark.parametrize("name", ["\U0001f600", "a\x7fb", 'a"\\b', "é\t"])
def test_any_folder_can_be_written_into_the_configurations(tmp_path: Path, name: str) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text(demo(tmp_path / name, "aggregated").agent_config("agent-1"), "utf-8")
    assert config.load(path).journal.directory == str(tmp_path / name / "journal" / "agent-1")


@pytest.mark.parametrize("mode", ["disaggregated", "aggregated"])
def test_the_scaler_configuration_is_valid_and_starts_workers(tmp_path: Path, mode: Mode) -> None:
    path = tmp_path / "scaler.toml"
    path.write_text(demo(tmp_path, mode).scaler_config(), "utf-8")
    (model,) = local_config.read(path).models
    assert [pool.role for pool in model.pools] == list(ROLES[mode])
    for pool in model.pools:
        _, dash_p, dash_m, module, *arguments = fill_template(pool.command, {"worker": "w-7"})
        assert (dash_p, dash_m, module) == ("-P", "-m", "loadline.demo.worker")
        options = worker._options(arguments)
        assert (options.name, options.pool, options.role) == ("w-7", pool.name, pool.role)
        assert (options.root, options.namespace, options.speed) == ("r", "n", 1.0)


def test_the_gateway_command_is_valid(tmp_path: Path) -> None:
    _, _, _, module, *arguments = demo(tmp_path, "aggregated").gateway_command("--repeat")
    assert module == "loadline.demo.gateway"
    options = gateway.parse_options(arguments)
    assert (options.mode, options.repeat, options.trace_speed) == ("aggregated", True, 20)
    assert options.summary_file == tmp_path / "summary.json"
