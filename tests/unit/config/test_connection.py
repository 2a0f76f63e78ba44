from pathlib import Path

import pytest

from loadline.errors import ConfigError
from loadline.toml.connection import FleetConnection, load_connection


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
