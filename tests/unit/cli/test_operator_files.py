"""Files of operators, which have servers and a login, and no models."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline.cli.connection import connection_of
from loadline.cli.main import main, parser
from loadline.cli.remote import Target, target_of
from loadline.doctor.deployment import Deployment
from loadline.doctor.findings import Finding, ok
from loadline.errors import ConfigError
from loadline.servers import EtcdKnobs, NatsKnobs
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
        (
            "\nhttp.port = 1",
            "line 2: http: is not a known key in a file without [[models]]. Known are: agent, etcd",
        ),
        ("agent.log_level = 'info'", "line 1: agent.log_level: is not a known key in a file without [[models]]. Known"),
        ("[[model]]", "line 1: model: is not a known key in a file without [[models]]. Did you mean models?"),
    ],
)
def test_an_error_has_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        target(tmp_path, text)
    assert f"{tmp_path / 'operator.toml'}, {problem}" in str(error.value)
    assert "is missing" not in str(error.value)


def test_the_models_of_an_agents_file_may_be_those_of_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADLINE__MODELS", '[{name = "m", pools = [{name = "a", role = "aggregated"}]}]')
    assert target(tmp_path, "http.port = 1\nagent.root = 'r'").root == "r"


def test_an_operator_needs_no_right_variable_of_the_agents_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADLINE__MODELS", "[]")
    assert target(tmp_path, "agent.root = 'r'").root == "r"


def test_the_option_replaces_the_servers_of_variables_and_keeps_login_and_root(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"NATS__SERVERS": "x", "NATS__USER": "u", "NATS__PASSWORD_FILE": "p", "AGENT__ROOT": "r"}
    certificate = {"NATS__CERT_FILE": "c", "NATS__KEY_FILE": "k"}
    for variable, value in (variables | certificate).items():
        monkeypatch.setenv(f"LOADLINE__{variable}", value)
    tls = NatsKnobs(("tls://n:1",), "u", "p", cert_file="c", key_file="k")
    assert target_of(parser().parse_args(["status", "--nats", "tls://n:1"])) == Target(tls, "r", "")
    plain = replace(tls, servers=("nats://n:1",))  # a server that requires TLS gets the certificate
    assert target_of(parser().parse_args(["status", "--nats", "nats://n:1"])) == Target(plain, "r", "")


def test_variables_of_etcd_are_nothing_to_who_asks_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADLINE__ETCD__ENDPOINTS", '["http://etcd:2379"]')
    assert target_of(parser().parse_args(["status"])).nats == NatsKnobs()


def test_doctor_examines_the_servers_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[Deployment] = []

    async def examine(deployment: Deployment) -> list[Finding]:
        examined.append(deployment)
        return [ok("nats", "it is reachable")]

    monkeypatch.setattr("loadline.cli.doctor.examine", examine)
    monkeypatch.setenv("LOADLINE__NATS__SERVERS", '["nats://n:1"]')
    monkeypatch.setenv("LOADLINE__ETCD__ENDPOINTS", '["https://e:1"]')
    monkeypatch.setenv("LOADLINE__AGENT", '{ root = "r", namespace = "s", only = "migration" }')
    assert main(["doctor"]) == 0
    expected = Deployment(NatsKnobs(("nats://n:1",)), EtcdKnobs(("https://e:1",)), "r", "s", "migration")
    assert examined == [expected]


def test_without_a_file_variables_name_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADLINE__NATS__SERVERS", '["nats://n:1"]')
    assert target_of(parser().parse_args(["status"])).nats.servers == ("nats://n:1",)
    assert connection_of(parser().parse_args(["sidecar"])).nats.servers == ("nats://n:1",)
