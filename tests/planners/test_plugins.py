"""Planners of installed packages, loaded by entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadline.config import parse, validate
from loadline.config.changes import key_changes
from loadline.core.controller import Controller
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import Settings
from loadline.errors import ConfigError
from tests.support.controller_world import ControllerWorld
from tests.support.plugins import EXAMPLE, ROOT, document_block, importable, write_plugin

CONFIG = """
[[models]]
name = "llama"
planner = "in_flight"
in_flight = { requests_per_worker = 30 }
pools = [{ name = "engine", role = "aggregated", replicas_max = 12 }]
"""
BARE = CONFIG.replace("in_flight = { requests_per_worker = 30 }\n", "")
MIXED = """
[[models]]
name = "llama-3.3-70b"
planner = "in_flight"
in_flight.requests_per_worker = 8
pools = [{ name = "prefill", role = "prefill", gpus_per_worker = 2, replicas_max = 16 },
         { name = "decode", role = "decode", gpus_per_worker = 2, replicas_max = 16 }]
"""


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process that can import the package."""
    path = os.pathsep.join([str(folder), str(ROOT / "agent")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "loadline", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


# -- usable ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_the_documented_section_equals_its_knobs() -> None:
    config = parse(document_block("toml", "loadline.toml"), "loadline.toml")
    (model,) = config.models
    assert validate(config) == []
    assert (type(model.knobs), model.knobs.requests_per_worker) == (PLANNERS[EXAMPLE].Knobs, 30.0)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("text", "place", "remedy"),
    [
        (
            CONFIG.replace("requests_per_worker", "request_per_worker"),
            "models[0].in_flight.request_per_worker",
            "Did you mean",
        ),
        (CONFIG.replace("= 30", "= 0"), "models[0].in_flight.requests_per_worker", "a number, above 0"),
        (
            f"[defaults.in_flight]\nrequests = 1\n{CONFIG}",
            "defaults.in_flight.requests",
            "Did you mean requests_per_worker?",
        ),
    ],
)
def test_its_keys_are_validated(text: str, place: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text, "loadline.toml")
    assert refused.value.place.startswith(place)
    assert remedy in refused.value.remedy


@pytest.mark.usefixtures("toy")
def test_its_knobs_have_layers_warnings_and_changes() -> None:
    before, low = parse(BARE, "x"), parse(f"[defaults.in_flight]\nrequests_per_worker = 0.5\n{BARE}", "x")
    (warning,) = validate(low)
    assert warning.startswith("defaults.in_flight.requests_per_worker (of models[0].in_flight.requests_per_worker): ")
    changed = {str(change) for change in key_changes(before, low)}
    assert "models.llama.in_flight.requests_per_worker: 64.0 -> 0.5" in changed


def test_check_describes_it(toy_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "loadline.toml").write_text(CONFIG)
    done = run(toy_folder, "check", "--config", tmp_path / "loadline.toml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Model llama: the in_flight planner decides. Replicas in proportion to requests in flight." in done.stdout
    assert "    One worker for every 30 requests in flight." in done.stdout


def test_it_is_simulated_and_its_journal_is_replayed(toy_folder: Path, tmp_path: Path) -> None:
    config, result, journal = tmp_path / "loadline.toml", tmp_path / "result.json", tmp_path / "journal"
    config.write_text(MIXED)
    trace, fleet = ROOT / "tests/data/azure2024_conv_bin600.csv", ROOT / "docs/examples/fleet.toml"
    options = ("--trace", trace, "--fleet", fleet, "--duration", 120, "--quiet", "--json", result, "--journal", journal)
    done = run(toy_folder, "simulate", "--config", config, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(result.read_text())["planner"] == EXAMPLE
    assert run(toy_folder, "replay", journal).returncode == 0
    without = run(tmp_path, "replay", journal)
    assert without.returncode == 1
    assert "'in_flight' is not an installed planner" in without.stderr
    assert "loadline.planners" in without.stderr


@pytest.mark.usefixtures("toy")
def test_a_controller_uses_it_and_a_snapshot_restores_it() -> None:
    world = ControllerWorld(planner=EXAMPLE, planner_knobs={EXAMPLE: {"requests_per_worker": 2.0}})
    world.boot()
    world.queue = 9
    assert {"prefill": 6, "decode": 1} in world.decisions(world.run(120))
    restored = Controller(msgspec.json.decode(msgspec.json.encode(world.settings), type=Settings))
    restored.restore(world.controller.snapshot())
    assert restored.snapshot() == world.controller.snapshot()


# -- unknown or broken -------------------------------------------------------------------------------------------------


def test_an_unknown_planner_is_refused_with_the_installed_ones() -> None:
    with pytest.raises(ConfigError) as refused:
        parse(CONFIG, "loadline.toml")
    assert (refused.value.place, refused.value.problem) == (
        "models[0].planner",
        "'in_flight' is not an installed planner",
    )
    assert all(name in refused.value.remedy for name in (*PLANNERS, "loadline.planners"))


def test_a_broken_package_affects_models_that_use_it_only(tmp_path: Path) -> None:
    write_plugin(tmp_path, "loadline_broken", "import nowhere_at_all", broken="loadline_broken:Broken")
    with importable(tmp_path):
        (warning,) = validate(parse(BARE.replace("in_flight", "saturation"), "x"))
        assert warning.startswith("planner broken: loadline_broken:Broken of loadline_broken cannot be loaded: Module")
        with pytest.raises(ConfigError) as refused:
            validate(parse(BARE.replace("in_flight", "broken"), "x"))
    assert "'broken' cannot be used: loadline_broken:Broken of loadline_broken" in refused.value.problem
    assert "nowhere_at_all" in refused.value.problem


TAKEN = """
from loadline.core.planning.planner import Planner
class Ours(Planner):
    name = "saturation"
    summary = "Ours."
"""

OURS = TAKEN.replace("saturation", "ours")
KNOBS = """
from msgspec import Struct
class OurKnobs(Struct):
    pace: float = 1.0
"""


@pytest.mark.parametrize(
    ("code", "name", "problem"),
    [
        (TAKEN, "saturation", "the name 'saturation' is taken by loadline.core.planning.planners.saturation"),
        (TAKEN, "ours", "its name 'saturation' differs from the name of the entry point"),
        ("class Ours: name = 'ours'", "ours", "Ours is not a subclass of loadline.core.planning.planner.Planner"),
        (OURS.replace('"Ours."', '""'), "ours", "its summary is empty"),
        (f"{OURS}    when: complex = 1j\n", "ours", "a snapshot cannot hold its fields: "),
        (f"{KNOBS}{OURS}    Knobs = OurKnobs\n", "ours", "its field knobs must be annotated as OurKnobs"),
        (TAKEN.replace("saturation", "guardrails"), "guardrails", "'guardrails' is a key of [[models]]"),
        (TAKEN.replace("saturation", "No Name"), "No Name", "must consist of lower-case letters, digits and _"),
    ],
)
def test_an_invalid_class_is_refused_with_the_reason(tmp_path: Path, code: str, name: str, problem: str) -> None:
    write_plugin(tmp_path, "loadline_ours", code, **{name: "loadline_ours:Ours"})
    before = dict(PLANNERS)
    with importable(tmp_path):
        sys.modules.pop("loadline_ours", None)
        (warning,) = validate(parse(BARE.replace("in_flight", "hpa"), "x"))
        assert problem in warning
        assert before == PLANNERS
