"""Each command imports its module when it is called, and every one of them finds it."""

import re
import subprocess
import sys

import pytest

from loadline.cli.main import parser

NAMES = re.findall(r"^    (\w+) ", parser().format_help(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_command_finds_its_module_and_its_function(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([name, "--help"])
    assert ended.value.code == 0
    assert f"loadline {name}" in capsys.readouterr().out


def test_all_commands_are_looked_at() -> None:
    assert {"up", "run", "step", "simulate", "explain", "version"} <= set(NAMES)


def test_a_command_may_be_parsed_twice_by_one_parser() -> None:
    one = parser()
    assert one.parse_args(["up", "--load", "2"]).load == one.parse_args(["up", "--load", "2"]).load == 2


def test_help_imports_no_command() -> None:
    program = "import sys; from loadline.cli.main import parser; parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.split())
    assert "loadline.cli.main" in modules
    assert modules.isdisjoint({"loadline.app", "loadline.cli.step", "nats", "aiohttp", "numpy"})
