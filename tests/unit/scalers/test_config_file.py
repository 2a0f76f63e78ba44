"""Checks that the configuration files of all scalers share."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadline.cli.main import main
from loadline.errors import ConfigError
from loadline.scalers import dynamo_virtual_config, exec, keda_config, ray_config  # noqa: A004 - its module
from loadline.scalers.keda import serve as serve_keda
from loadline.scalers.kubernetes import config as kubernetes_config
from loadline.scalers.local import config as local_config
from loadline.scalers.observed import serve as serve_observed

MODELS = '[[models]]\nname = "m"\n[[models.pools]]\nname = "p"\n'
FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "dynamo-virtual": (
        dynamo_virtual_config.read,
        '[[models]]\nname = "m"\nnamespace = "n"\n[[models.pools]]\nname = "p"\nrole = "decode"\n',
    ),
    "exec": (exec.read, f'command = ["true"]\n{MODELS}'),
    "keda": (keda_config.read, 'models = ["m"]\n'),
    "kubernetes": (kubernetes_config.read, f'{MODELS}kind = "Deployment"\nobject = "o"\n'),
    "local": (local_config.read, f'{MODELS}role = "decode"\ncommand = ["true"]\n'),
    "ray": (ray_config.read, f'{MODELS}application = "a"\ndeployment = "d"\n'),
}


@pytest.mark.parametrize("scaler", sorted(FILES))
def test_the_default_name_is_that_of_the_command(scaler: str, tmp_path: Path) -> None:
    read, text = FILES[scaler]
    path = tmp_path / "scaler.toml"
    path.write_text(text)
    assert read(path).name == scaler


@pytest.mark.parametrize("scaler", sorted(FILES))
@pytest.mark.parametrize(
    ("section", "place"),
    [
        ('servers = ["nats://ada:secret@h:4222"]', "nats.servers[0]"),
        ('servers = ["http://h:4222"]', "nats.servers[0]"),
        ('user = "ada"', "nats.password_file"),
        ('cert_file = "c"\nkey_file = "k"', "nats.cert_file"),
    ],
)
def test_every_scaler_checks_servers_and_logins(scaler: str, section: str, place: str, tmp_path: Path) -> None:
    read, text = FILES[scaler]
    path = tmp_path / "scaler.toml"
    path.write_text(text)
    read(path)
    path.write_text(f"{text}[nats]\n{section}\n")
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert place in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scaler", sorted(FILES))
def test_every_scaler_lists_all_errors_of_a_file_with_their_lines(scaler: str, tmp_path: Path) -> None:
    read, text = FILES[scaler]
    path = tmp_path / "scaler.toml"
    path.write_text(f"root = 3\n{text}[nats]\nserver = []\n")
    with pytest.raises(ConfigError) as caught:
        read(path)
    last = path.read_text().count("\n")
    assert str(caught.value).splitlines() == [
        f"{path}, line 1: root: is 3. Write text of letters, digits, dots, - and _.",
        f"{path}, line {last}: nats.server: is not a known key here. Did you mean servers?",
    ]


def test_a_model_that_is_not_configured_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scaler.toml"
    path.write_text(FILES["keda"][1])
    with pytest.raises(ConfigError, match="no model mm"):
        asyncio.run(serve_keda(path, ["mm"]))
    path.write_text(FILES["exec"][1])
    assert main(["scaler", "exec", "status", "--config", str(path), "--model", "mm"]) != 0
    assert "no model mm" in capsys.readouterr().err
    path.write_text(f'{MODELS}role = "decode"\n')
    with pytest.raises(ConfigError, match="no model mm"):
        asyncio.run(serve_observed(path, ["mm"]))
