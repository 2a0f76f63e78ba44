"""Documents are correct: links have targets, examples are valid, tables are complete."""

import ast
import functools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Final, get_args

import jsonschema
import msgspec
import pytest
import yaml

from loadline.app import settings
from loadline.cli.main import main, parser
from loadline.config import load, validate
from loadline.config.knobs import HttpKnobs
from loadline.config.tpot_profiles import read_tpot
from loadline.core.migration.in_flight import MigrationPhase
from loadline.core.migration.outcomes import MigrationCode
from loadline.core.planning.planners import BUILT_IN
from loadline.core.vocabulary.alarm_actions import ALARM_ACTIONS
from loadline.core.vocabulary.conditions import ConditionName, ConditionReason
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.migrations import MigrationFailure, MigrationRefusal
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.scalers.config_file import read_as
from loadline.scalers.dynamo_virtual_config import read as read_dynamo_virtual
from loadline.scalers.exec import read as read_exec
from loadline.scalers.keda_config import KedaScalerKnobs
from loadline.scalers.kubernetes.config import read as read_kubernetes
from loadline.scalers.local.circus import read as read_circus
from loadline.scalers.local.config import read as read_local
from loadline.scalers.ray_config import read as read_ray
from loadline.sim.compare.baselines import BASELINES
from loadline.sim.fleet import model_of, pools_of, read_fleet
from loadline.sim.fleet.reference import fleet_reference
from loadline.sources.dynamo_config import read_dynamo
from loadline.sources.gateway_config import read_gateway
from loadline.sources.llumnix_config import read_llumnix
from loadline.sources.prometheus_config import read_prometheus
from loadline.wire.codec import Codec, Rejected, decode_as, decode_worker_record
from loadline.wire.messages import MESSAGES, DecisionApplied, DrainReport, LoadReport, TrafficReport
from loadline.wire.subjects import Subjects
from tests.unit.repository.test_deploy_metrics import exported_metrics

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "agent" / "loadline"
REFERENCE, EXPLANATION = DOCS / "reference", DOCS / "explanation"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
PROTOCOL = (REFERENCE / "protocol.md").read_text("utf-8")
REASONS = (REFERENCE / "reasons.md").read_text("utf-8")
METRICS = (REFERENCE / "metrics-and-alarms.md").read_text("utf-8")
KINDS = MESSAGES | {"worker_record": WorkerRecord, "decision": Decision, "learned": LearnedState}
# Large answers, which no document shows; `loadline status --json` and similar commands print them.
NOT_SHOWN = {"agent_status", "explain_reply", "decisions_reply"}

with_each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(document: Path, language: str) -> list[str]:
    """Return the code blocks of a language, also those within lists."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", document.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [dedent(text) for _, text in found]


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table's rows whose first cell is code."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| `.*$", text, re.MULTILINE)
    ]


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@with_each_document
def test_links_have_targets(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text("utf-8")):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@with_each_document
def test_named_files_exist(document: Path) -> None:
    if document.name != "CHANGELOG.md":
        folders = r"((?:tests|tools|deploy|docs|agent|schemas)/[\w./@-]+)"
        named = re.findall(rf"`{folders}`", document.read_text("utf-8"))
        used = [path for text in blocks(document, "console") for path in re.findall(rf"(?<!\S){folders}", text)]
        assert [name for name in (*named, *used) if not (ROOT / name).exists()] == []


def test_planners_are_listed_by_their_group() -> None:
    titles = {
        "recommended": "Recommended",
        "compatible": "For those who ran Dynamo's planner or WVA",
        "baseline": "Baselines",
    }
    text = (REFERENCE / "planners.md").read_text("utf-8")
    found = {group: {row[0].split("`")[1] for row in rows(section(text, title))} for group, title in titles.items()}
    assert found == {group: {kind.name for kind in BUILT_IN if kind.group == group} for group in titles}


def test_every_path_of_the_architecture_exists() -> None:
    table = section((EXPLANATION / "architecture.md").read_text("utf-8"), "To change X, edit Y")
    paths = re.findall(r"`([a-z_]+(?:/[a-z_.]+)*)`", table.split("|---|---|")[1])
    assert len(paths) > 30
    assert [path for path in paths if not re.fullmatch(r"[a-z]+_[a-z]+", path) and not (PACKAGE / path).exists()] == []


def read_configuration(path: Path) -> None:
    assert validate(load(path, {})) == []


# Files by the name in the first line of a block; a block without one is a configuration of the agent.
READERS: Final[dict[str, Callable[[Path], object]]] = {
    "circus.toml": read_circus,
    "dynamo.toml": read_dynamo,
    "dynamo-virtual.toml": read_dynamo_virtual,
    "exec.toml": read_exec,
    "fleet.toml": read_fleet,
    "gateway.toml": read_gateway,
    "keda.toml": lambda path: read_as(KedaScalerKnobs, path, lambda knobs: knobs),  # without the files for TLS
    "kubernetes.toml": read_kubernetes,
    "llumnix.toml": read_llumnix,
    "loadline.toml": read_configuration,
    "local.toml": read_local,
    "prometheus.toml": read_prometheus,
    "ray.toml": read_ray,
    "pyproject.toml": lambda path: tomllib.loads(path.read_text("utf-8")),
}


@with_each_document
def test_files_are_valid(document: Path, tmp_path: Path) -> None:
    for text in blocks(document, "toml"):
        if 'planner = "in_flight"' in text:
            continue  # tests/planners install this planner, and validate the block with it
        named = re.match(r"# (\S+\.toml)\n", text)
        path = tmp_path / (named[1] if named else "loadline.toml")
        path.write_text(text, "utf-8")
        READERS[path.name](path)


def test_prometheus_scrapes_the_default_address_of_the_agent() -> None:
    [text] = [text for document in DOCUMENTS for text in blocks(document, "yaml") if "scrape_configs" in text]
    [job] = yaml.safe_load(text)["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{HttpKnobs().host}:{HttpKnobs().port}"]}]
    assert job["honor_labels"] is True


def test_the_fit_command_prints_the_parameters_that_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = DOCS / "how-to" / "size-and-forecast.md"
    [command] = re.findall(r"^\$ loadline (.*)", blocks(document, "console")[0].replace("\\\n", " "))
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == blocks(document, "text")[0]


def test_every_example_configuration_matches_the_example_fleets() -> None:
    examples = DOCS / "examples"
    fleets = [examples / name for name in ("fleet.toml", "serving.toml", "migration-fleet.toml")]
    configs = [path for path in sorted(examples.glob("*.toml")) if path not in fleets]
    assert configs
    for path in configs:
        config = load(path, {})
        # The profiler divided decode throughput by the 8 GPUs of a node, not by those of a worker: the warning is
        # correct.
        assert [one for one in validate(config) if "workers with 8 GPUs" not in one] == []
        for fleet in map(read_fleet, fleets):
            pools_of(fleet, model_of(fleet, settings(config)))


def test_the_example_of_times_per_output_token_is_read(tmp_path: Path) -> None:
    (text,) = blocks(REFERENCE / "profiles.md", "json")
    (tmp_path / "tpot.json").write_text(text, "utf-8")
    assert len(read_tpot(tmp_path / "tpot.json").tpot_ms) == text.count("p50")


def test_every_baseline_is_explained() -> None:
    text = section((EXPLANATION / "simulation.md").read_text("utf-8"), "The baselines")
    assert [cells[0].strip("`") for cells in rows(text)] == list(BASELINES)


def test_every_key_of_a_fleet_is_explained() -> None:
    assert (REFERENCE / "fleet-file.md").read_text("utf-8") == fleet_reference()


@with_each_document
def test_programs_compile(document: Path) -> None:
    for text in blocks(document, "python"):
        ast.parse(text)


def test_the_imports_of_the_readmes_scaler_exist() -> None:
    [text] = blocks(ROOT / "README.md", "python")
    exec(compile(text.replace("asyncio.run(main())", ""), "README.md", "exec"), {})  # noqa: S102 - our own document


@with_each_document
def test_commands_exist(document: Path) -> None:
    text = document.read_text("utf-8").replace("\\\n", " ")
    named = re.findall(r"`loadline ([^`\n]+)`", text)
    lines = re.findall(r"^ *[$#] (.*)", text, re.MULTILINE)
    run = [found for line in lines for found in re.findall(r"(?:^|[;&|] )(?:\S*/)?loadline ([^#;&|]+)", line)]
    for command in [*run, *(command for command in named if " " in command)]:
        parser().parse_args(shlex.split(command))  # raises SystemExit if the command is invalid
    for command in named:
        with pytest.raises(SystemExit) as ended:
            parser().parse_args([command.split()[0], "--help"])
        assert ended.value.code == 0


def test_main_options_of_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for cells in rows((REFERENCE / "cli.md").read_text("utf-8").split("\n## ")[0]):
        for command in re.findall(r"`loadline ([a-z]+)`", cells[0]):
            action = ["exec", "set"] if command == "scaler" else []  # --wait is of actions
            with pytest.raises(SystemExit):
                parser().parse_args([command, *action, "--help"])
            shown = re.findall(r"--[a-z-]+", capsys.readouterr().out)
            assert [option for option in re.findall(r"--[a-z-]+", cells[2]) if option not in shown] == [], command


def test_an_invalid_command_is_detected() -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["check", "FILE"])
    assert ended.value.code == 2


@functools.cache
def help_of(program: str) -> str:
    command = [sys.executable, *(["-m"] if "/" not in program else []), program, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


@with_each_document
def test_options_of_programs_in_the_documents_exist(document: Path) -> None:
    text = document.read_text("utf-8").replace("\\\n", " ")
    for program, arguments in re.findall(r"python (?:-m )?((?:tools|tests|loadline)[./][\w./]+)([^`\n]*)", text):
        path = program if "/" in program else program.replace(".", "/")
        files = [ROOT / path, ROOT / f"{path}.py", ROOT / path / "__main__.py", ROOT / f"agent/{path}.py"]
        assert any(file.is_file() for file in files), program
        for option in re.findall(r"--[a-z-]+", arguments):
            assert re.search(rf"{option}\b", help_of(program)), f"{program} has no {option}"


def test_named_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {
        extra
        for document in DOCUMENTS
        for extra in re.findall(r"(?:loadline|'\.)\[(\w+)\]", document.read_text("utf-8"))
    }
    assert named
    assert named <= extras.keys()


@with_each_document
def test_make_targets_exist(document: Path) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:^ *\$ |`)make ([a-z]+)", document.read_text("utf-8"), re.MULTILINE)) <= set(targets)


def test_every_message_has_a_valid_example() -> None:
    shown = re.findall(r"<!-- message: (\w+) -->\n```json\n(.*?)```", PROTOCOL, re.DOTALL)
    assert len(shown) == len(blocks(REFERENCE / "protocol.md", "json"))
    assert {name for name, _ in shown} == KINDS.keys() - NOT_SHOWN
    for name, text in shown:
        schema = json.loads((ROOT / "schemas" / f"{name}.v1.json").read_text("utf-8"))
        jsonschema.validate(json.loads(text), schema)
        message = decode_as(KINDS[name], text.encode())
        assert not isinstance(message, Rejected), message
        # The decoder ignores unknown fields, such as misspelt ones, so every field of an example must survive
        # re-encoding.
        assert json.loads(msgspec.json.encode(message)) == json.loads(text), name


def test_examples_of_messages_pass_the_agents_codec() -> None:
    shown = dict(re.findall(r"<!-- message: (\w+) -->\n```json\n(.*?)```", PROTOCOL, re.DOTALL))
    subjects = Subjects("loadline")
    codec = Codec(subjects, 262_144)
    load = msgspec.json.decode(shown["load_report"], type=LoadReport)
    traffic = msgspec.json.decode(shown["traffic_report"], type=TrafficReport)
    applied = msgspec.json.decode(shown["decision_applied"], type=DecisionApplied)
    drained = msgspec.json.decode(shown["drain_report"], type=DrainReport)
    frames = {
        subjects.load(load.model, load.pool, load.worker): "load_report",
        subjects.traffic(traffic.model, traffic.frontend): "traffic_report",
        subjects.applied(applied.model): "decision_applied",
        subjects.drained(drained.model, drained.pool, drained.worker): "drain_report",
    }
    for subject, name in frames.items():
        assert not isinstance(codec.decode(subject, shown[name].encode()), Rejected), name
    record = shown["worker_record"].encode()
    assert not isinstance(decode_worker_record(("workers", "llama", "decode", "decode-7"), record), Rejected)


def codes(text: str) -> list[str]:
    return [cells[0].strip("`") for cells in rows(text)]


def test_every_reason_is_listed() -> None:
    assert sorted(codes(section(REASONS, "Scaling"))) == sorted(map(str, ReasonCode))
    assert sorted(codes(section(REASONS, "Migration"))) == sorted(map(str, MigrationCode))
    outcomes = set(re.findall(r"`(\w+)`", section(REASONS, "Migration outcomes")))
    assert {*get_args(MigrationRefusal), *get_args(MigrationFailure), *get_args(MigrationPhase)} - {""} <= outcomes


def test_every_rejection_is_listed() -> None:
    assert sorted(codes(section(REASONS, "Rejections"))) == sorted(map(str, Rejection))


def test_every_metric_is_listed() -> None:
    listed = set(re.findall(r"`(loadline_\w+)`", section(METRICS, "Metrics")))
    exported = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in exported_metrics() if name.startswith("loadline_")
    }
    assert listed == exported


def test_every_condition_is_explained() -> None:
    table = rows(section(REASONS, "Conditions"))
    assert {cells[0].strip("`") for cells in table} == set(get_args(ConditionName))
    assert sorted(cells[1].strip("`") for cells in table) == sorted(get_args(ConditionReason))


def test_every_alarm_is_explained() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "agent" / "loadline" / "core").rglob("*.py"))
    raised = set(re.findall(r'RaiseAlarm\(\s*"(\w+)"', sources))
    assert raised
    assert {cells[0].strip("`") for cells in rows(section(METRICS, "Alarms"))} == raised == set(ALARM_ACTIONS)


def test_every_subject_of_the_asyncapi_document_is_described() -> None:
    addresses = re.findall(
        r"address: '?\{root\}\.v1\.([a-z]+(?:\.[a-z-]+)?)", (ROOT / "schemas" / "asyncapi.yaml").read_text("utf-8")
    )
    assert addresses
    for address in addresses:
        kind, _, method = address.partition(".")
        assert f"<root>.v1.{kind}." in PROTOCOL
        assert not method or re.search(rf"[`.]{method}`", PROTOCOL), method
