import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from loadline.config import parse
from loadline.config.schema import file_table
from loadline.core.vocabulary.decisions import Decision, PoolTarget
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord, WorkerSample
from loadline.wire.messages import (
    MESSAGES,
    DecisionApplied,
    DrainCommand,
    DrainReply,
    ExplainRequest,
    LoadReport,
    OperatorReply,
    ScalingDecision,
    StatusRequest,
    TrafficReport,
)
from loadline.wire.subjects import Subjects

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "schemas"
TARGET = PoolTarget("p", "decode", 3, 2)

EXAMPLES: dict[str, msgspec.Struct] = {
    "load_report": LoadReport("m", "p", "w", 1, [WorkerSample(sequence=1, timestamp_ms=2, kv_usage_ratio=0.5)]),
    "traffic_report": TrafficReport("m", "f", 1, TrafficSample(sequence=1, interval_ms=1000, arrivals=3, ttft_ms=1.5)),
    "scaling_decision": ScalingDecision("d", "m", 1, 2, 3, 4, (TARGET,), ("kv_usage_high",), ttl_ms=5),
    "decision_applied": DecisionApplied("d", "m", 1, 2, "s", "done", {"p": 3}),
    "drain_command": DrainCommand("d", "m", "p", "w", "decode", 1, 2, 3),
    "drain_reply": DrainReply("d", accepted=True),
    "status_request": StatusRequest(1),
    "explain_request": ExplainRequest(),
    "operator_reply": OperatorReply(accepted=False, detail="why"),
    "worker_record": WorkerRecord("m", "p", "w", "decode", 1),
    "decision": Decision("d", "m", 1, 2, 3, 4, (TARGET,), ("kv_usage_high",)),
    "learned": LearnedState(start_ups_ms={"p": [40_000]}, planner="queueing", data=b"{}"),
}


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def schemagen(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/schemagen.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_generated_files_are_up_to_date() -> None:
    done = schemagen("--check")
    assert done.returncode == 0, done.stderr


def test_check_lists_stale_stray_and_missing_files(tmp_path: Path) -> None:
    assert schemagen("--into", str(tmp_path)).returncode == 0
    assert schemagen("--check", "--into", str(tmp_path)).returncode == 0
    assert schemagen("--into", str(tmp_path)).stdout == "", "a second run writes nothing"
    (tmp_path / "schemas/load_report.v1.json").write_text("{}")
    (tmp_path / "schemas/of_yesterday.v1.json").write_text("{}")
    (tmp_path / "docs/reference/configuration.md").unlink()
    done = schemagen("--check", "--into", str(tmp_path))
    assert done.returncode == 1
    for name in ("schemas/load_report.v1.json", "schemas/of_yesterday.v1.json", "docs/reference/configuration.md"):
        assert f"{name} is out of date: run `make schemas`" in done.stderr
    assert schemagen("--into", str(tmp_path)).returncode == 0
    assert schemagen("--check", "--into", str(tmp_path)).returncode == 0


def test_every_schema_is_valid_and_described() -> None:
    names = {path.name for path in SCHEMAS.glob("*.json")}
    others = ("worker_record", "decision", "learned", "step_input", "step_output")
    assert names == {f"{name}.v1.json" for name in (*MESSAGES, *others)} | {"config.json"}
    for name in names:
        schema = validator(name).schema
        assert isinstance(schema, dict)
        assert schema["title"]
        assert schema["description"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_schema_accepts_sent_messages(name: str) -> None:
    validator(f"{name}.v1.json").validate(json.loads(msgspec.json.encode(EXAMPLES[name])))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_schema_accepts_unknown_fields_and_refuses_missing_or_wrong_ones(name: str) -> None:
    check, body = validator(f"{name}.v1.json"), json.loads(msgspec.json.encode(EXAMPLES[name]))
    check.validate(body | {"field_of_tomorrow": 1})
    for field in msgspec.structs.fields(type(EXAMPLES[name])):
        broken: list[dict[str, Any]] = [body | {field.name: invalid_object()}]
        if field.required:
            broken.append({key: value for key, value in body.items() if key != field.name})
        for one in broken:
            with pytest.raises(ValidationError):
                check.validate(one)


def invalid_object() -> list[list[None]]:
    return [[None]]


def test_the_config_schema_agrees_with_the_parser() -> None:
    check = validator("config.json")
    body: dict[str, Any] = {"models": [{"name": "m", "pools": [{"name": "a", "role": "aggregated"}]}]}
    check.validate(body)
    effective = file_table(parse('models = [{name="m",pools=[{name="a",role="decode"}]}]', "x"))
    check.validate(json.loads(msgspec.json.encode(effective)))
    for broken in (
        {},
        body | {"natz": {}},
        body | {"http": {"port": 70_000}},
        body | {"agent": {"log_format": "xml"}},
        {"models": [{"name": "m", "pools": []}]},
    ):
        with pytest.raises(ValidationError):
            check.validate(broken)


def test_asyncapi_has_every_subject_and_no_broken_reference() -> None:
    document = yaml.safe_load((SCHEMAS / "asyncapi.yaml").read_text(encoding="utf-8"))
    assert document["asyncapi"] == "3.0.0"
    subjects = Subjects("{root}")
    names = {"model": "{model}", "pool": "{pool}", "worker": "{worker}", "frontend": "{frontend}", "agent": "{agent}"}
    filled = {channel["address"].format(root="{root}", **dict.fromkeys(names, "x")) for channel in addressed(document)}
    assert filled == {
        *(subjects.load("x", "x", "x"), subjects.traffic("x", "x"), subjects.decision("x"), subjects.applied("x")),
        *(kind("x", "x", "x") for kind in (subjects.drain, subjects.drained, subjects.migrate, subjects.migration)),
        subjects.status("x"),
        *(subjects.api(what, "migration") for what in ("status", "explain", "pause", "resume")),
        *(
            subjects.api(method)
            for method in ("status", "explain", "decisions", "pause", "resume", "drain", "announce")
        ),
    }
    for reference in references(document):
        if reference.startswith("#/"):
            place: Any = document
            for part in reference.removeprefix("#/").split("/"):
                place = place[part]
        else:
            assert (SCHEMAS / reference).is_file()


def addressed(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [channel for channel in document["channels"].values() if channel["address"]]


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [r for key, value in node.items() for r in ([value] if key == "$ref" else references(value))]
    return [r for value in node for r in references(value)] if isinstance(node, list) else []
