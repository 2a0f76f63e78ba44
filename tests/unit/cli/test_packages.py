"""Packages that a configuration needs and that are not installed are errors with a remedy."""

import importlib.machinery
import sys
import tomllib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from loadline.cli.main import main
from loadline.demo.display import PlainDisplay, make_display
from tests.support.config_texts import LINEAR
from tests.support.simulation_files import write_options

PYPROJECT: Final = Path(__file__).parents[3] / "pyproject.toml"
H100: Final = '[[accelerators]]\nname = "h100"\n'
LIMITED: Final = H100 + "[allocation.capacity]\nh100 = 64\n"
QUOTA: Final = H100 + '[[namespaces]]\nname = "team"\ngpu_quota = { h100 = 64 }\n'
SMALL: Final = LINEAR.format(name="m", planner="static", knobs="static.replicas = { main = 1 }")


def forecasting(planner: str, knobs: str) -> str:
    return LINEAR.format(name="m", planner=planner, knobs=knobs)


# Extra, package, configuration that needs it, and the key to change.
NEEDED: Final = [
    (
        "kalman",
        "filterpy",
        forecasting("throughput", 'throughput.forecast.predictor = "kalman"'),
        "models[0].throughput.forecast.predictor",
    ),
    (
        "arima",
        "pmdarima",
        forecasting("sla", 'sla.throughput.forecast.predictor = "arima"'),
        "models[0].sla.throughput.forecast.predictor",
    ),
    (
        "prophet",
        "prophet",
        forecasting("hybrid", 'hybrid.queueing.forecast.auto.candidates = ["seasonal", "prophet"]'),
        "models[0].hybrid.queueing.forecast.auto.candidates",
    ),
    (
        "arima",
        "pmdarima",
        '[defaults]\nplanner = "queueing"\nqueueing.forecast.predictor = "arima"'
        + SMALL.replace('planner = "static"\nstatic.replicas = { main = 1 }', ""),
        "defaults.queueing.forecast.predictor (of models[0].queueing.forecast.predictor)",
    ),
    ("solver", "scipy", LIMITED + SMALL, "allocation.solver"),
    ("solver", "scipy", QUOTA + SMALL, "allocation.solver"),
    ("nkeys", "nkeys", '[nats]\ncredentials_file = "agent.creds"\n' + SMALL, "nats.credentials_file"),
]
# What no configuration asks for: the commands that use them say so, or do without.
OF_COMMANDS: Final = {"dev", "embedded", "plots", "tui"}

with_each_need = pytest.mark.parametrize(
    ("extra", "package", "text", "key"), NEEDED, ids=[f"{one[0]}-{index}" for index, one in enumerate(NEEDED)]
)


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let Python's import system find no such package, as on a machine without it."""
    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    find = importlib.machinery.PathFinder.find_spec

    def find_others(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if name.partition(".")[0] == package else find(name, path, target)

    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", find_others)


def write(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "loadline.toml"
    path.write_text(text, "utf-8")
    return ["--config", str(path)]


@with_each_need
def test_check_and_run_refuse_a_configuration_without_its_package(  # noqa: PLR0917 - a case, and where it is tried
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    extra: str,
    package: str,
    text: str,
    key: str,
) -> None:
    options = write(tmp_path, text)
    assert main(["check", *options]) == 0
    monkeypatch.setattr("loadline.app.run", lambda *_: pytest.fail("it runs"))
    hide(monkeypatch, package)
    capsys.readouterr()
    for command in ("check", "run"):
        assert main([command, *options]) != 0
        error = capsys.readouterr().err
        assert f"{key}: " in error
        assert f" needs the package {package}, which is not installed. " in error
        assert f"pip install 'loadline[{extra}]'" in error


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        f'{LIMITED}[allocation]\nsolver = "greedy"\n{SMALL}',
        f'[agent]\nonly = "migration"\n{NEEDED[0][2]}',
        forecasting("throughput", 'throughput.forecast.predictor = "seasonal"'),
    ],
    ids=["unlimited", "greedy", "migration", "seasonal"],
)
def test_a_configuration_that_needs_no_extra_is_valid_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for package in {package for _, package, _, _ in NEEDED}:
        hide(monkeypatch, package)
    assert main(["check", *write(tmp_path, text)]) == 0


def test_every_extra_is_asked_for_by_a_configuration_or_a_command() -> None:
    extras = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    assert {extra for extra, _, _, _ in NEEDED} | OF_COMMANDS == extras.keys()


def test_simulations_refuse_a_configuration_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write_options(tmp_path, config=NEEDED[0][2])
    hide(monkeypatch, NEEDED[0][1])
    for command in (["simulate", *options], ["compare", *options], ["step", *options[-2:]]):
        assert main(command) != 0
        assert "pip install 'loadline[kalman]'" in capsys.readouterr().err


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert not isinstance(make_display("header"), PlainDisplay)
    hide(monkeypatch, "rich")
    assert isinstance(make_display("header"), PlainDisplay)
