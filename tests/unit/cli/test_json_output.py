"""``--output json``: every command that prints data has it, and what it prints has the schema that is checked in."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import jsonschema
import pytest

from loadline.cli.completion import all_parsers
from loadline.cli.main import main, parser
from tests.support.simulation_files import write_options
from tools.schemagen import OUTPUTS

ROOT: Final = Path(__file__).parents[3]
JOURNAL: Final = ROOT / "tests/golden/journal"
DATA: Final = ROOT / "agent/loadline/demo/data"
PROGRAMS: Final = {
    "completion", "gateway", "run", "scaler", "scaler run", "sidecar", "source", "step", "top", "up", "view",
}  # fmt: skip
"""Commands without ``--output``: they run until they are stopped, or print what another program reads."""
SCALE: Final = """\
#!/bin/sh
case $(cat) in
*observe*) echo '{"replicas": 2, "ready": 1, "detail": "no GPU"}' ;;
*validate*) echo '["grant it"]' ;;
esac
"""
CONFIG: Final = """\
[[models]]
name = "m"
pools = [{ name = "p", role = "aggregated" }]
"""


def options_of(command: argparse.ArgumentParser) -> set[str]:
    return {option for action in command._actions for option in action.option_strings}


def valid(command: str, printed: str) -> object:
    schema = json.loads((ROOT / "schemas/output" / f"{command.replace(' ', '_')}.v1.json").read_text("utf-8"))
    found = json.loads(printed)
    jsonschema.validate(found, schema)
    return found


def test_every_command_with_data_has_a_schema() -> None:
    _, *commands = all_parsers(parser())
    # Without "loadline", and without the name of the scaler before its action.
    named = {" ".join(word for word in one.prog.split()[1:] if "{" not in word): one for one in commands}
    assert {name for name, one in named.items() if "--output" in options_of(one)} == OUTPUTS.keys()
    assert named.keys() - OUTPUTS.keys() == PROGRAMS


def commands(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    config = tmp_path / "loadline.toml"
    config.write_text(CONFIG, "utf-8")
    yield "check", ["check", "--config", str(config)]
    yield "version", ["version"]
    sweeps = [str(DATA / f"dynamo_h100_llama3.3-70b-fp8_tp2_{role}.json") for role in ("prefill", "decode")]
    yield "fit", ["fit", "--profile", *sweeps]
    yield "replay", ["replay", str(JOURNAL)]
    yield "explain", ["explain", "--journal", str(JOURNAL)]
    yield "history", ["history", "--journal", str(JOURNAL)]
    options = [*write_options(tmp_path), "--quiet"]
    yield "simulate", ["simulate", *options]
    yield "compare", ["compare", *options, "--baseline", "static-peak", "--jobs", "1"]
    trace = ["--trace", options[1], "--interval", "10", "--origins", "2", "--horizon", "1"]
    yield "forecast", ["forecast", *trace, "--predictors", "constant"]


def test_what_commands_print_has_their_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, arguments in commands(tmp_path):
        assert main([*arguments, "--output", "json"]) == 0, command
        printed = capsys.readouterr().out
        assert valid(command, printed), command
        assert main(arguments) == 0
        assert capsys.readouterr().out != printed


def test_actions_of_scalers_have_their_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, config = tmp_path / "scale.sh", tmp_path / "exec.toml"
    script.write_text(SCALE, "utf-8")
    script.chmod(0o755)
    config.write_text(f'command = ["{script}"]\nmodels = [{{ name = "m", pools = [{{ name = "p" }}] }}]\n', "utf-8")
    for action, *more in (("status",), ("validate",), ("set", "m", "p", "2"), ("add", "m", "p", "1", "--wait", "0")):
        assert main(["scaler", "exec", action, *more, "--config", str(config), "--output", "json"]) in {0, 1}
        assert valid(f"scaler {action}", capsys.readouterr().out)


def test_errors_of_a_configuration_are_data_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "loadline.toml"
    config.write_text(CONFIG.replace('"m"', "3").replace("role", "rolle"), "utf-8")
    assert main(["check", "--config", str(config), "--output", "json"]) == 2
    found = valid("check", capsys.readouterr().out)
    assert isinstance(found, dict)
    assert [(one["where"], one["place"]) for one in found["errors"]] == [
        (f"{config}, line 2", "models[0].name"),
        (f"{config}, line 3", "models[0].pools[0].rolle"),
    ]


def test_json_is_short_for_output_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "loadline.toml"
    config.write_text(CONFIG, "utf-8")
    printed = []
    for option in (["--json"], ["--output", "json"]):
        assert main(["check", "--config", str(config), *option]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""
