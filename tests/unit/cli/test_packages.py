"""Packages that a configuration needs and that are missing or broken are errors with a remedy."""

import importlib.machinery
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from loadline.cli import packages
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


# Requirement to install, package, configuration that needs it, and the key to change.
NEEDED: Final = [
    (
        "filterpy",
        "filterpy",
        forecasting("throughput", 'throughput.forecast.predictor = "kalman"'),
        "models[0].throughput.forecast.predictor",
    ),
    (
        "pmdarima",
        "pmdarima",
        forecasting("sla", 'sla.throughput.forecast.predictor = "arima"'),
        "models[0].sla.throughput.forecast.predictor",
    ),
    (
        "loadline-agent[prophet]",
        "prophet",
        forecasting("hybrid", 'hybrid.queueing.forecast.auto.candidates = ["seasonal", "prophet"]'),
        "models[0].hybrid.queueing.forecast.auto.candidates",
    ),
    (
        "pmdarima",
        "pmdarima",
        '[defaults]\nplanner = "queueing"\nqueueing.forecast.predictor = "arima"'
        + SMALL.replace('planner = "static"\nstatic.replicas = { main = 1 }', ""),
        "defaults.queueing.forecast.predictor (of models[0].queueing.forecast.predictor)",
    ),
    ("filterpy", "filterpy", forecasting("throughput", ""), "models[0].throughput.forecast.auto.candidates"),
    ("scipy", "scipy", LIMITED + SMALL, "allocation.solver"),
    ("scipy", "scipy", QUOTA + SMALL, "allocation.solver"),
    ("loadline-agent[nkeys]", "nkeys", '[nats]\ncredentials_file = "agent.creds"\n' + SMALL, "nats.credentials_file"),
]
# What no configuration asks for: the commands that use them say so, or do without.
OF_COMMANDS: Final = {
    "circus", "dev", "docs", "dynamo", "keda", "kubernetes", "llumnix", "otel", "parquet", "plots", "tensorboard",
    "tui",
}  # fmt: skip

with_each_need = pytest.mark.parametrize(
    ("requirement", "package", "text", "key"), NEEDED, ids=[f"{one[1]}-{index}" for index, one in enumerate(NEEDED)]
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
    requirement: str,
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
        assert f"pip install '{requirement}'" in error


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
def test_a_configuration_that_needs_no_package_is_valid_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for package in {package for _, package, _, _ in NEEDED}:
        hide(monkeypatch, package)
    assert main(["check", *write(tmp_path, text)]) == 0


def test_every_extra_is_asked_for_by_a_configuration_or_a_command() -> None:
    extras = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    named = {requirement[len("loadline-agent[") : -1] for requirement, _, _, _ in NEEDED if "[" in requirement}
    assert named | OF_COMMANDS == extras.keys()


def test_simulations_refuse_a_configuration_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write_options(tmp_path, config=NEEDED[0][2])
    hide(monkeypatch, NEEDED[0][1])
    for command in (["simulate", *options], ["compare", *options], ["step", *options[-2:]]):
        assert main(command) != 0
        assert "pip install 'filterpy'" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["raise OSError('libgomp.so.1: no such file')", "import os; os._exit(7)"])
@pytest.mark.parametrize("case", [NEEDED[0], NEEDED[1], NEEDED[6]], ids=lambda case: str(case[1]))
def test_check_and_run_refuse_a_package_that_cannot_be_imported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, str, str, str],
    content: str,
) -> None:
    _, package, text, key = case
    broken = tmp_path / package
    broken.mkdir()
    (broken / "__init__.py").write_text(content, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("loadline.app.run", lambda *_: pytest.fail("it runs"))
    packages._import_elsewhere.cache_clear()
    for command in ("check", "run"):
        assert main([command, *write(tmp_path, text)]) != 0
        error = capsys.readouterr().err
        assert f"{key}: " in error
        reason = "OSError: libgomp.so.1: no such file" if "raise" in content else "exit status 7"
        assert f" needs the package {package}, which cannot be imported: {reason}. " in error
        assert f"pip install --force-reinstall '{package}'" in error
    monkeypatch.undo()
    assert main(["check", *write(tmp_path, text)]) == 0  # a failure is not remembered


def test_an_agent_starts_without_the_slow_imports() -> None:
    """They take 3 s and 240 MB, and belong into its child processes."""
    script = "import sys, loadline.cli.run, loadline.adapters.child_fitter; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {"loadline.app", "numpy"} <= set(imported)
    assert {"scipy", "filterpy", "pmdarima", "pandas", "sklearn", "matplotlib"}.isdisjoint(imported)


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert not isinstance(make_display("header"), PlainDisplay)
    hide(monkeypatch, "rich")
    assert isinstance(make_display("header"), PlainDisplay)
