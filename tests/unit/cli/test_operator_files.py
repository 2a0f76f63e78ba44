"""Files of operators, which have servers and a login, and no models."""

import argparse
from pathlib import Path

import pytest

from loadline.cli.main import parser
from loadline.cli.remote import Target, target_of
from loadline.errors import ConfigError
from tests.support.config_texts import BASE


def target(path: Path, text: str, *arguments: str) -> Target:
    file = path / "operator.toml"
    file.write_text(text, "utf-8")
    options = parser().parse_args(["status", "--config", str(file), *arguments])
    assert isinstance(options, argparse.Namespace)
    return target_of(options)


def test_a_login_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'nats = { servers = ["tls://n:4222"], user = "operator", password_file = "p" }\nagent.root = "r"\n'
    found = target(tmp_path, text)
    assert (found.nats.servers, found.nats.user, found.root, found.only) == (("tls://n:4222",), "operator", "r", "")
    monkeypatch.setenv("LOADLINE__NATS__USER", "other")
    assert target(tmp_path, text, "--nats", "nats://m:1").nats.user == "other"


def test_the_configuration_of_an_agent_names_its_task(tmp_path: Path) -> None:
    assert target(tmp_path, f'agent.only = "migration"\n{BASE}').only == "migration"
    assert target(tmp_path, 'agent.only = "migration"\n').only == "migration"


def test_a_file_with_models_is_checked_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"operator\.toml, line 1: models: "):
        target(tmp_path, "models = []\n")
