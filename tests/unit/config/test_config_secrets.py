"""Redaction of passwords that are written into a URL by mistake."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline.cli import main as cli
from loadline.config import Config, NatsKnobs, parse, validate
from loadline.config.changes import key_changes
from loadline.errors import ConfigError
from loadline.toml.secrets import redacted
from tests.support.config_texts import BASE

HIDDEN = "s3cret"
NATS = f"nats://bob:{HIDDEN}@h:4222"
WRITTEN = [
    ("nats", f'[nats]\nservers = "{NATS}"\n', {}),
    ("nats", f'[nats]\nservers = ["{NATS}"]\n', {}),
    ("nats", f'[nats]\nservers = [["{NATS}"]]\n', {}),
    ("nats", f'[nats]\nservers = ["bob:{HIDDEN}@h:4222"]\n', {}),
    ("nats", f'[nats]\nservers = ["nats:bob:{HIDDEN}@h:4222"]\n', {}),
    ("nats", f'[nats]\nservers = ["nats://bob:{HIDDEN}/h:4222"]\n', {}),
    ("nats", f'[nats]\nservers = ["nats://h:4222?token={HIDDEN}"]\n', {}),
    ("nats", f'[nats]\nservers = ["{HIDDEN}"]\n', {}),
    ("nats", f'nats = "{HIDDEN}"\n', {}),
    ("nats", f'nats = "{HIDDEN}"\n', {"LOADLINE__NATS__USER": "bob"}),
    ("nats", "", {"LOADLINE__NATS__SERVERS": NATS}),
    ("etcd", f'[etcd]\nendpoints = "http://bob:{HIDDEN}@h"\n', {}),
    ("etcd", f'[etcd]\nendpoints = ["http://h/#{HIDDEN}"]\n', {}),
    ("etcd", "", {"LOADLINE__ETCD__ENDPOINTS": f"http://bob:{HIDDEN}@h"}),
    ("http", f'[http]\nport = "{NATS}"\n', {}),
]


@pytest.mark.parametrize(("place", "text", "environ"), WRITTEN)
def test_errors_never_contain_the_password(place: str, text: str, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(parse(text + BASE, "x", environ))
    assert caught.value.place.startswith(place)
    assert HIDDEN not in str(caught.value)


def test_changes_never_contain_urls() -> None:
    def config(url: str) -> Config:
        return replace(parse(BASE, "x"), nats=NatsKnobs(servers=(url,)))

    (change,) = key_changes(config("nats://h:4222"), config(NATS))
    assert change.key == "nats.servers"
    assert HIDDEN not in str(change)


@pytest.mark.parametrize(("text", "hidden"), [("bob:s3cret@h", True), ("bob@h", False), ("h:4222", False)])
def test_a_login_is_redacted_in_any_value(text: str, *, hidden: bool) -> None:
    assert (redacted("models[0].name", text) != text) == hidden


def test_remote_commands_refuse_a_password_in_a_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text(f'[nats]\nservers = ["{NATS}"]\n{BASE}', encoding="utf-8")
    assert cli.main(["status", "--config", str(path)]) == 2
    printed = capsys.readouterr()
    assert "contains a login" in printed.err
    assert HIDDEN not in printed.out + printed.err
