"""Servers and logins in the configuration files of sources."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loadline.errors import ConfigError
from loadline.sources.dynamo_config import read_dynamo
from loadline.sources.gateway_config import read_gateway
from loadline.sources.llumnix_config import read_llumnix
from loadline.sources.prometheus_config import read_prometheus

POOL = '[[pools]]\nmodel = "m"\nname = "p"\nrole = "decode"\n'
DYNAMO = f'plane = "nats"\n{POOL}component = "c"\n'
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "dynamo": (read_dynamo, DYNAMO),
    "gateway": (
        read_gateway,
        '[[frontends]]\nname = "f"\nrouter = "llm-d"\nurls = ["http://h:1/metrics"]\nmodel = "m"\n',
    ),
    "llumnix": (read_llumnix, f'{POOL}instance_type = "decode"\n'),
    "prometheus": (read_prometheus, f'{POOL}engine = "vllm"\n'),
}
LOGINS = [
    ('[{nats}]\nservers = ["nats://ada:secret@h:4222"]', "{nats}.servers[0]"),
    ('[{nats}]\nuser = "ada"', "{nats}.password_file"),
    ('[{nats}]\ncert_file = "c"\nkey_file = "k"', "{nats}.cert_file"),
    ('[{etcd}]\nuser = "ada"', "{etcd}.password_file"),
    ('[{etcd}]\nendpoints = ["http://10.0.0.7:2379"]', "{etcd}.endpoints[0]"),
]


def check(read: Callable[[Path], object], text: str, section: str, place: str, path: Path) -> None:
    path.write_text(text, "utf-8")
    read(path)
    path.write_text(f"{text}{section}\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        read(path)
    line = text.count("\n") + 2  # the first key of the section
    assert str(caught.value).startswith(f"{path}, line {line}: {place}: ")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("source", sorted(FILES))
@pytest.mark.parametrize(("section", "place"), LOGINS)
def test_every_source_checks_servers_and_logins(source: str, section: str, place: str, tmp_path: Path) -> None:
    names = {"nats": "nats", "etcd": "etcd"}
    check(*FILES[source], section.format(**names), place.format(**names), tmp_path / "source.toml")


@pytest.mark.parametrize(("section", "place"), LOGINS)
def test_the_servers_of_dynamo_are_checked_under_their_own_names(section: str, place: str, tmp_path: Path) -> None:
    names = {"nats": "dynamo_nats", "etcd": "discovery"}
    check(read_dynamo, DYNAMO, section.format(**names), place.format(**names), tmp_path / "dynamo.toml")
