"""Errors of the command line: one sentence, no traceback."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadline import __version__
from loadline.cli import output, remote
from loadline.cli.exit_codes import EXIT_CODES
from loadline.cli.main import main
from tests.support.config_texts import BASE


@pytest.mark.parametrize("url", ["nats://127.0.0.1:99999", "nats://", "nats://127.0.0.1:abc", "http://127.0.0.1", "x"])
def test_an_invalid_server_address_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--nats", url]) == 2
    assert "--nats: is not " in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        *(["--speed", value] for value in ("0", "-1", "nan", "inf", "fast")),
        *(["--load", value] for value in ("0", "-1", "1000000000")),
        *(["--agents", value] for value in ("0", "-1")),
        *(["--root", value] for value in ("a b", "*", ">", "a..b", "")),
    ],
)
def test_invalid_demo_options_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", *options])
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_an_unreachable_server_is_reported_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound but not listening, so connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["pause", "m", "--nats", url]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"loadline: cannot connect to NATS at {url}: [Errno ")
    assert line.endswith(". Name the server: --nats URL or --config FILE")


def test_an_operator_needs_no_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert remote.operator() == f"uid {os.getuid()}"
    monkeypatch.setenv("LOGNAME", "x" * 300)
    assert len(remote.operator()) == 64


def test_letters_that_the_output_lacks_are_escaped(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[[models]]\nname = "modèle"\n[[models.pools]]\nname = "p"\nrole = "aggregated"\n')
    command = [sys.executable, "-m", "loadline", "check", "--config", str(config)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mod\\xe8le" in done.stdout


def test_an_unknown_decision_of_a_journal_has_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--journal", "tests/golden/journal", "0123456789abcdef"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "loadline: no record of decision 0123456789abcdef; loadline history --journal tests/golden/journal lists all "
        "decisions of the journal with their reasons"
    )


def test_control_characters_are_escaped() -> None:
    assert output.printable("a\x1b[2Jb\u202ec\nd") == "a\\u001b[2Jb\\u202ec\nd"


def test_lines_of_a_table_end_with_their_last_text() -> None:
    assert (
        output.table([("name", "count", "why"), ("a", "12", ""), ("b", "", "")]) == "name  count  why\na        12\nb"
    )


def test_a_journal_that_cannot_be_created_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    config = tmp_path / "loadline.toml"
    for directory, is_warned in ((tmp_path / "file" / "x" / "y", True), (tmp_path / "x" / "y", False)):
        config.write_text(f'journal.directory = "{directory}"\n{BASE}', encoding="utf-8")
        assert main(["check", "--config", str(config)]) == 0
        printed = capsys.readouterr().out
        problem = f"{directory} cannot be created, since {tmp_path / 'file'} is not a folder. Name"
        warning = f"warning: {config}, line 1: journal.directory: {problem}"
        assert (warning in printed) is is_warned
    assert not (tmp_path / "x").exists(), "a check creates no folder"


def test_secrets_that_cannot_be_used_here_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("loadline.toml", "short", "right", "fifo", "large", "binary")
    config, short, right, fifo, large, binary = (tmp_path / name for name in names)
    large.write_bytes(b"x" * 65_537)
    binary.write_bytes(b"\xff")
    short.write_text("secret\n", "utf-8")
    os.mkfifo(fifo)
    right.write_text("a-token-of-enough-characters\n", "utf-8")
    warnings = {
        f'http.token_file = "{short}"': "http.token_file: has a token of fewer than 16 characters. Write",
        'http.token_file = "none"': "http.token_file: cannot be read: ",
        'nats.user = "u"\nnats.password_file = "none"': "nats.password_file: none cannot be read: ",
        f'nats.ca_file = "{short}"': f"nats.ca_file: {short} cannot be used: ",
        f'nats.ca_file = "{fifo}"': f"nats.ca_file: {fifo} cannot be used: it is not a regular file",
        'nats.ca_file = "a\\u0000b"': "nats.ca_file: ",
        'nats.credentials_file = "none"': "nats.credentials_file: none cannot be read",
        'nats.ca_file = "none"': "nats.ca_file: none cannot be used: ",
        'etcd.endpoints = ["https://e:1"]\netcd.ca_file = "none"': "etcd.ca_file: none cannot be used: ",
        'etcd.user = "u"\netcd.password_file = "none"': "etcd.password_file: none cannot be read: ",
        f'nats.user = "u"\nnats.password_file = "{large}"': f"nats.password_file: {large} cannot be read: {large} is l",
        f'nats.user = "u"\nnats.password_file = "{binary}"': f"nats.password_file: {binary} cannot be read: 'utf-8'",
        'etcd.ca_file = "none"': "",
        f'http.token_file = "{right}"\nnats.user = "u"\nnats.password_file = "{right}"': "",
    }
    for lines, warning in warnings.items():
        config.write_text(f"{lines}\n{BASE}", encoding="utf-8")
        assert main(["check", "--config", str(config)]) == 0
        printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
        assert len(printed) == bool(warning)
        expected = f"warning: {config}, line {lines.count(chr(10)) + 1}: {warning}"
        assert all(line.startswith(expected) for line in printed), printed


def test_each_secret_that_cannot_be_used_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "loadline.toml"
    lines = [
        'etcd = { endpoints = ["https://e:1"], user = "u", password_file = "none", ca_file = "none" }',
        'nats = { servers = ["tls://n:1"], credentials_file = "none", cert_file = "none", key_file = "none" }',
    ]
    config.write_text("\n".join([*lines, BASE]), "utf-8")
    assert main(["check", "--config", str(config)]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    found = {line.removeprefix(f"warning: {config}, line ").split(": ")[1] for line in printed}
    assert found == {"etcd.password_file", "etcd.ca_file", "nats.credentials_file", "nats.cert_file"}


def test_version_is_a_command_and_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    command = capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == command == f"loadline {__version__}\n"


def test_the_reference_has_the_table_of_exit_codes() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text()
    table = page.partition("| Code | Meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table == "\n".join(f"| {int(code)} | {text} |" for code, text in EXIT_CODES.items())
