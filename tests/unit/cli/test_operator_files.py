"""Files of operators, which have servers and a login, and no models."""

from pathlib import Path

import pytest

from loadline.cli.connection import configured_connection
from loadline.cli.main import parser
from loadline.cli.remote import Target, target_of
from loadline.errors import ConfigError
from loadline.servers import NatsKnobs
from tests.support.config_texts import BASE


def target(path: Path, text: str, *arguments: str) -> Target:
    file = path / "operator.toml"
    file.write_text(text, "utf-8")
    return target_of(parser().parse_args(["status", "--config", str(file), *arguments]))


def test_a_login_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'nats = { servers = ["tls://n:4222"], user = "operator", password_file = "p" }\nagent.root = "r"\n'
    found = target(tmp_path, text)
    assert (found.nats.servers, found.nats.user, found.root, found.only) == (("tls://n:4222",), "operator", "r", "")
    monkeypatch.setenv("LOADLINE__NATS__USER", "other")
    assert target(tmp_path, text, "--nats", "nats://m:1").nats.user == "other"


def test_the_configuration_of_an_agent_names_its_task(tmp_path: Path) -> None:
    assert target(tmp_path, f'agent.only = "migration"\n{BASE}').only == "migration"
    assert target(tmp_path, 'agent.only = "migration"\n').only == "migration"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models = []", "line 1: models: "),
        ("\n[[model]]\nname = 'm'", "line 2: model: is not a known key"),
        ("agent.rot = 'r'", "line 1: agent.rot: is not a known key"),
        ("\nnats.servers = ['http://n:1']", "line 2: nats.servers[0]: "),
    ],
)
def test_an_error_has_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        target(tmp_path, text)
    assert f"{tmp_path / 'operator.toml'}, {problem}" in str(error.value)


def test_the_option_replaces_what_variables_say_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADLINE__NATS__CERT_FILE", "c")
    monkeypatch.setenv("LOADLINE__NATS__KEY_FILE", "k")
    assert target_of(parser().parse_args(["status", "--nats", "tls://n:1"])).nats == NatsKnobs(servers=("tls://n:1",))


def test_without_a_file_variables_name_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADLINE__NATS__SERVERS", '["nats://n:1"]')
    assert target_of(parser().parse_args(["status"])).nats.servers == ("nats://n:1",)
    assert configured_connection(None).nats.servers == ("nats://n:1",)
