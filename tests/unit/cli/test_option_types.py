"""Options of commands beside an agent: what they refuse, and how they replace what a configuration says."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loadline.cli import option_types
from loadline.cli.connection import ConnectionOptions, connection_arguments, connection_of
from loadline.cli.main import main
from loadline.errors import ConfigError
from loadline.gateway.options import GatewayOptions
from loadline.servers import EtcdKnobs, NatsKnobs


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (option_types.whole_number(64), "x", "is not a whole number from 1 to 64"),
        (option_types.whole_number(64), "0", "is not a whole number from 1 to 64"),
        (option_types.whole_number(64), "65", "is not a whole number from 1 to 64"),
        (option_types.whole_number(64), "9" * 5_000, "is not a whole number from 1 to 64"),
        (option_types.positive, "abc", "is not a number above 0"),
        (option_types.positive, "nan", "is not a number above 0"),
        (option_types.positive, "inf", "is not a number above 0"),
        (option_types.seconds(60), "abc", "is not a number of seconds from 0 to 60"),
        (option_types.seconds(60), "61", "is not a number of seconds from 0 to 60"),
        (option_types.name, "a\nb", "is not a name"),
        (option_types.name, os.fsdecode(b"a\xff"), "is not a name"),
        (option_types.required_name, "", "the name is empty; `loadline status --json` lists"),
        (option_types.required_name, "a\nb", "is not a name"),
        (option_types.subject_root, "a.b c", "is not a subject root"),
        (option_types.subject_root, "a..b", "is not a subject root"),
        (option_types.server_url("nats", "tls"), "http://x", r"is not nats:// or tls://\. Write nats://host:port"),
    ],
)
def test_a_refused_text_is_answered_with_what_to_write(read: Callable[[str], object], text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        read(text)


def test_bounds_themselves_are_read() -> None:
    assert [option_types.whole_number(64)(text) for text in ("1", "64")] == [1, 64]
    assert [option_types.seconds(60)(text) for text in ("0", "60")] == [0, 60]
    assert option_types.subject_root("fleet-1.east_2") == "fleet-1.east_2"


def test_a_refused_url_is_not_quoted_since_it_may_have_a_password() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="contains a login") as refused:
        option_types.server_url("nats", "tls")("nats://agent:secret@host:4222")
    assert "secret" not in str(refused.value)


def connection(*options: str) -> ConnectionOptions:
    parser = argparse.ArgumentParser()
    connection_arguments(parser, "")
    return connection_of(parser.parse_args(options))


def test_options_replace_what_the_configuration_says_and_keep_its_logins(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(
        """
        nats = { servers = ["nats://a:1"], user = "worker", password_file = "p" }
        etcd.endpoints = ["https://b:2"]
        agent = { root = "east", namespace = "blue" }
        """,
        "utf-8",
    )
    nats, etcd = NatsKnobs(("nats://a:1",), "worker", "p"), EtcdKnobs(("https://b:2",))
    assert connection("--config", str(file)) == ConnectionOptions(nats, etcd, "east", "blue")
    options = ["--nats", "nats://c:3", "--etcd", "https://d:4", "--root", "west", "--namespace", "green"]
    nats, etcd = NatsKnobs(("nats://c:3",), "worker", "p"), EtcdKnobs(("https://d:4",))
    assert connection("--config", str(file), *options) == ConnectionOptions(nats, etcd, "west", "green")


def test_a_variable_that_an_option_replaces_need_not_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NATS__SERVERS", "ETCD__ENDPOINTS"):
        monkeypatch.setenv(f"LOADLINE__{variable}", "http://x")
    monkeypatch.setenv("LOADLINE__AGENT__ROOT", "r")
    plain, local = NatsKnobs(("nats://n:1",)), EtcdKnobs(("http://127.0.0.1:1",))
    options = ["--nats", plain.servers[0], "--etcd", local.endpoints[0]]
    assert connection(*options) == ConnectionOptions(plain, local, "r")


@pytest.mark.parametrize(
    ("variable", "options", "problem"),
    [
        ("NATS__CERT_FILE", ["--nats", "nats://n:1"], "nats.key_file: is missing while cert_file is set"),
        ("ETCD__KEY_FILE", ["--etcd", "https://e:1"], "etcd.cert_file: is missing while key_file is set"),
        ("NATS__USER", ["--nats", "nats://n:1"], "nats.password_file: is missing while user is set"),
    ],
)
def test_a_variable_that_is_used_beside_an_option_is_named(
    variable: str, options: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"LOADLINE__{variable}", "x")
    with pytest.raises(ConfigError, match=f"^environment variable LOADLINE__{variable}: {re.escape(problem)}"):
        connection(*options)


@pytest.mark.parametrize("command", [["explain"], ["drain", "m", "decode"], ["pause"]])
def test_a_name_that_is_not_utf_8_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, os.fsdecode(b"a\xff")])
    assert ended.value.code == 2
    assert r"'a\udcff' is not a name of 1 to 100 printable characters" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["drain", "m", "decode"], ["pause"], ["resume"]])
def test_an_empty_name_is_refused_before_an_agent_is_asked(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, ""])
    assert ended.value.code == 2
    assert "the name is empty; `loadline status --json` lists" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["gateway", "sidecar", "status", "history", "top"])
def test_commands_name_a_bad_root(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--root", "a b"])
    assert ended.value.code == 2
    assert "argument --root: 'a b' is not a subject root" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--model: no model is named"),
        (["--model", "m", "--itl-ms", "5"], "--itl-ms: has no effect without --ttft-ms"),
    ],
)
def test_a_gateway_that_lacks_an_option_is_invalid_input(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gateway", *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", [["gateway", "--model", "m"], ["sidecar"]])
def test_plain_http_to_another_host_names_the_option(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--etcd", "http://etcd.example:2379"]) == 2
    error = capsys.readouterr().err
    assert "--etcd: etcd.endpoints[0]: is not encrypted" in error
    assert "etcd.insecure = true" in error


def test_a_configuration_permits_plain_http_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADLINE__ETCD__INSECURE", "true")
    assert connection("--etcd", "http://etcd.example:2379").etcd.endpoints == ("http://etcd.example:2379",)


MODEL = """
[[models]]
name = "n"
objectives.ttft_ms = 70
pools = [{ name = "a", role = "aggregated", replicas_max = 4 }]
"""


def test_a_gateway_with_models_needs_only_the_connection_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[GatewayOptions] = []

    async def run(options: GatewayOptions, *_: object) -> None:
        started.append(options)

    monkeypatch.setattr("loadline.gateway.server.run", run)
    file = tmp_path / "gateway.toml"
    file.write_text("agent.root = 'r'\nnats.servers = ['nats://a:1']\n", "utf-8")
    assert main(["gateway", "--model", "m", "--config", str(file)]) == 0
    assert main(["gateway", "--config", str(file)]) == 2
    file.write_text(f"{file.read_text('utf-8')}{MODEL}", "utf-8")
    assert main(["gateway", "--config", str(file)]) == 0
    assert main(["gateway", "--model", "n", "--ttft-ms", "1", "--itl-ms", "2", "--config", str(file)]) == 0
    assert [(one.root, one.nats.servers) for one in started] == [("r", ("nats://a:1",))] * 3
    found = [{model: knobs and knobs.ttft_ms for model, knobs in one.objectives.items()} for one in started]
    assert found == [{"m": None}, {"n": 70}, {"n": 1}]
