from pathlib import Path

import pytest

from loadline.errors import ConfigError
from loadline.toml.connection import FleetConnection, FleetNames, load_connection


def load(path: Path, text: str) -> FleetConnection:
    file = path / "any.toml"
    file.write_text(text, "utf-8")
    return load_connection(file)


def test_the_sections_are_read_from_an_agents_configuration(tmp_path: Path) -> None:
    text = """
        agent = { root = "r", name = "a", log_level = "debug" }
        nats.servers = ["nats://a:1"]
        etcd = { endpoints = ["http://b:2"], insecure = true }
        [[models]]
        name = "m"
        """
    found = load(tmp_path, text)
    assert (found.agent.root, found.agent.namespace) == ("r", "default")
    assert (found.nats.servers, found.etcd.endpoints) == (("nats://a:1",), ("http://b:2",))


def test_variables_replace_values_and_those_of_an_agent_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "any.toml"
    file.write_text('nats = { user = "agent", password_file = "a" }\nagent.only = "migration"', "utf-8")
    environ = {
        "LOADLINE__NATS__USER": "gateway",
        "LOADLINE__NATS__PASSWORD_FILE": "g",
        "LOADLINE__ETCD__ENDPOINTS": '["https://e:1"]',
        "LOADLINE__AGENT__NAMESPACE": "n",
        "LOADLINE__AGENT__LOG_LEVEL": "debug",
        "LOADLINE__HTTP__PORT": "0",
    }
    found = load_connection(file, environ)
    assert (found.nats.user, found.nats.password_file) == ("gateway", "g")
    assert (found.etcd.endpoints, found.agent.namespace, found.agent.only) == (("https://e:1",), "n", "migration")


def test_a_variable_that_names_no_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "any.toml").touch()
    with pytest.raises(ConfigError) as error:
        load_connection(tmp_path / "any.toml", {"LOADLINE__NATS__USERS": "u"})
    assert str(error.value) == "environment variable LOADLINE__NATS__USERS: names no key: users. Did you mean user?"


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        ("AGENT__", "has an empty part, as __ separates section and key. Known are: namespace, only, root."),
        ("AGENT____ROOT", "has an empty part, as __ separates section and key. Known are: namespace, only, root."),
        ("AGENT__ROOT__", "addresses a key below root, which is not a section. Set LOADLINE__AGENT__ROOT to the whole"),
    ],
)
def test_a_variable_with_an_empty_part_is_named(variable: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_connection(None, {f"LOADLINE__{variable}": "x"})
    assert str(error.value).startswith(f"environment variable LOADLINE__{variable}: {problem}")


def test_variables_count_without_a_file_and_as_whole_sections() -> None:
    found = load_connection(None, {"LOADLINE__AGENT": '{ root = "r", log_level = "debug" }', "LOADLINE__ETCD": "{}"})
    assert found == FleetConnection(agent=FleetNames(root="r"))


def test_an_error_of_a_variable_names_it(tmp_path: Path) -> None:
    (tmp_path / "any.toml").write_text("nats.servers = ['nats://n:1']", "utf-8")
    with pytest.raises(ConfigError, match=r"^environment variable LOADLINE__NATS__SERVERS: nats\.servers: "):
        load_connection(tmp_path / "any.toml", {"LOADLINE__NATS__SERVERS": "nats://q:1"})


def test_an_empty_file_has_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == FleetConnection()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("nats.server = []", "nats.server"),
        ('agent = "a"', "agent"),
        ('nats = "a"', "nats"),
        ('nats.servers = ["http://a"]', "nats.servers"),
        ('nats.user = "u"', "nats.password_file"),
        ('etcd.endpoints = ["http://b:2"]', "etcd.endpoints"),
        ("agent.root = 'a b'", "agent.root"),
    ],
)
def test_an_error_names_the_key(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=place.replace(".", r"\.")):
        load(tmp_path, text)
