"""Lazy import of command modules."""

import re
import subprocess
import sys

import pytest

from loadline.cli.main import parser

NAMES = re.findall(r"^    (\w+) ", parser().format_help(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_its_module_and_function(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([name, "--help"])
    assert ended.value.code == 0
    assert f"loadline {name}" in capsys.readouterr().out


def test_all_commands_are_covered() -> None:
    assert {"up", "run", "step", "simulate", "explain", "version"} <= set(NAMES)


def test_a_parser_can_parse_a_command_twice() -> None:
    one = parser()
    assert one.parse_args(["up", "--load", "2"]).load == one.parse_args(["up", "--load", "2"]).load == 2


def test_a_sidecar_does_not_pay_for_the_configuration_of_agents() -> None:
    """It runs beside every engine, and 20 MB are those of NumPy and the planners."""
    program = "import sys, loadline.cli.sidecar; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.split())
    assert "loadline.toml.connection" in modules
    assert modules.isdisjoint({"loadline.config", "loadline.core.planning", "numpy"})


def test_help_imports_no_command_module() -> None:
    program = "import sys; from loadline.cli.main import parser; parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.split())
    assert "loadline.cli.main" in modules
    assert modules.isdisjoint({"loadline.app", "loadline.cli.step", "nats", "aiohttp", "numpy"})
