"""Write schemas/ and the generated pages of docs/reference, which are derived from the Structs in the code."""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from loadline.cli.check import CheckResult
from loadline.cli.fit import FittedEngine
from loadline.cli.journal import ReplaySummary
from loadline.cli.profile_results import ProfileResult
from loadline.cli.scaler import ChangeResult, PlatformPool, ValidateResult
from loadline.cli.version import VersionResult
from loadline.config.reference import reference
from loadline.config.schema import file_schema
from loadline.core.migration.outcomes import SENTENCES as MIGRATION_SENTENCES
from loadline.core.planning.planners import BUILT_IN
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.sentences import SENTENCES
from loadline.core.vocabulary.status import AgentStatus
from loadline.doctor.findings import Finding
from loadline.forecast.backtest import Backtest
from loadline.journal import Row
from loadline.sim.compare.comparison import Comparison
from loadline.sim.fleet.reference import fleet_reference
from loadline.sim.result import SimulationResult
from loadline.wire.messages import MESSAGES, ExplainReply, OperatorReply
from loadline.wire.steps import StepInput, StepOutput

ROOT: Final = Path(__file__).resolve().parent.parent
REASONS: Final = Path("docs/reference/reasons.md")
STORED: Final[dict[str, type[Struct]]] = {"worker_record": WorkerRecord, "decision": Decision, "learned": LearnedState}
STEPS: Final[dict[str, type[Struct]]] = {"step_input": StepInput, "step_output": StepOutput}

OUTPUTS: Final[dict[str, Any]] = {
    "check": CheckResult,
    "compare": Comparison,
    "doctor": list[Finding],
    "drain": OperatorReply,
    "explain": ExplainReply,
    "fit": FittedEngine,
    "forecast": Backtest,
    "history": list[Row],
    "pause": OperatorReply,
    "profile": ProfileResult,
    "replay": ReplaySummary,
    "resume": OperatorReply,
    "scaler add": ChangeResult,
    "scaler remove": ChangeResult,
    "scaler set": ChangeResult,
    "scaler status": list[PlatformPool],
    "scaler validate": ValidateResult,
    "simulate": SimulationResult,
    "status": AgentStatus,
    "version": VersionResult,
}
"""Results of commands with ``--output json``."""

_ALONE: Final = "Answered by the agent that only migrates requests."

# Channel -> (tokens after <root>.v1, action of the agent, message, reply, sentence).
CHANNELS: dict[str, tuple[str, str, str, str, str]] = {
    "load": ("load.{model}.{pool}.{worker}", "receive", "load_report", "", "Workers report their load."),
    "traffic": ("traffic.{model}.{frontend}", "receive", "traffic_report", "", "Frontends report their traffic."),
    "decision": ("decision.{model}", "send", "scaling_decision", "", "The agent announces a committed decision."),
    "applied": ("applied.{model}", "receive", "decision_applied", "", "Scalers report the progress of a decision."),
    "drain": (
        "drain.{model}.{pool}.{worker}",
        "send",
        "drain_command",
        "drain_reply",
        "The agent orders a worker to drain.",
    ),
    "drained": (
        "drained.{model}.{pool}.{worker}",
        "receive",
        "drain_report",
        "",
        "A worker reports that it is drained.",
    ),
    "migrate": (
        "migrate.{model}.{pool}.{worker}",
        "send",
        "migrate_command",
        "migrate_reply",
        "The agent orders a worker to migrate requests to another one.",
    ),
    "migration": (
        "migration.{model}.{pool}.{worker}",
        "receive",
        "migration_report",
        "",
        "A worker reports on a migration.",
    ),
    "status": ("status.{agent}", "send", "agent_status", "", "Every agent publishes its status."),
    "api_status": ("api.status", "receive", "status_request", "agent_status", "Request the status of the agent."),
    "api_explain": (
        "api.explain",
        "receive",
        "explain_request",
        "explain_reply",
        "Request explanations.",
    ),
    "api_decisions": ("api.decisions", "receive", "empty", "decisions_reply", "Request the latest decisions."),
    "api_pause": ("api.pause", "receive", "pause_command", "operator_reply", "Pause a model."),
    "api_resume": ("api.resume", "receive", "pause_command", "operator_reply", "Resume a model."),
    "api_announce": (
        "api.announce",
        "receive",
        "announce_request",
        "announce_reply",
        "A scaler requests the current decisions.",
    ),
    "api_drain": ("api.drain", "receive", "drain_order", "operator_reply", "Drain one worker."),
}
# Methods of an agent that only migrates requests, which may run beside one that scales.
CHANNELS |= {
    f"api_migration_{method}": (
        f"api.migration-{method}",
        *CHANNELS[f"api_{method}"][1:4],
        f"{CHANNELS[f'api_{method}'][4]} {_ALONE}",
    )
    for method in ("status", "explain", "pause", "resume")
}


def json_schema(kind: Any, name: str) -> str:
    """Return the JSON Schema of a Struct or a list of Structs, with nested Structs under ``$defs``."""
    (own,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    if "$ref" in own:
        own = parts.pop(own["$ref"].rpartition("/")[2])
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:loadline:{name}", **own}
    written = json.dumps(schema | ({"$defs": parts} if parts else {}), indent=2) + "\n"
    return written.replace(r'\\Z"', '$"')  # the end of a text in JSON Schema, which has no \Z


def ref(place: str, name: str) -> dict[str, str]:
    """Return a reference within the AsyncAPI document."""
    return {"$ref": f"#/{place}/{name}"}


def asyncapi() -> str:
    """Return the AsyncAPI 3 document of all subjects, from the point of view of the agent."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for channel, (tokens, action, message, reply, sentence) in CHANNELS.items():
        address = f"{{root}}.v1.{tokens}"
        channels[channel] = {
            "address": address,
            "description": sentence,
            "messages": {message: ref("components/messages", message)},
            "parameters": {name: ref("components/parameters", name) for name in re.findall(r"{(\w+)}", address)},
        }
        operation: dict[str, Any] = {"action": action, "channel": ref("channels", channel), "summary": sentence}
        if reply:
            inbox = f"{channel}_reply"
            channels[inbox] = {
                "address": None,
                "description": "Inbox named in the request.",
                "messages": {reply: ref("components/messages", reply)},
            }
            operation["reply"] = {"address": {"location": "$message.header#/reply"}, "channel": ref("channels", inbox)}
        operations[channel] = operation
    document = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "loadline",
            "version": "1.0.0",
            "description": "Subjects of the agent: it receives load events and sends scaling decisions.",
        },
        "defaultContentType": "application/json",
        "servers": {"nats": {"host": "127.0.0.1:4222", "protocol": "nats"}},
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages(), "parameters": parameters()},
    }
    return yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def messages() -> dict[str, Any]:
    """Return the messages, with references to their JSON Schemas."""
    named: dict[str, Any] = {"empty": {"title": "No payload", "payload": {"type": "string", "maxLength": 0}}}
    for name, kind in MESSAGES.items():
        schema = {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": {"$ref": f"./{name}.v1.json"},
        }
        named[name] = {"title": kind.__name__, "summary": (kind.__doc__ or "").splitlines()[0], "payload": schema}
    return named


def parameters() -> dict[str, Any]:
    """Return the variable tokens of subjects."""
    names = {
        name: {"description": f"Name of the {name}, percent-encoded outside A-Za-z0-9_-."}
        for name in ("model", "pool", "worker", "frontend", "agent")
    }
    return {"root": {"description": "First tokens of every subject.", "default": "loadline"}, **names}


def with_sentences(text: str, sentences: Mapping[str, str]) -> str:
    """Fill the second column of the tables in ``text`` with the sentence of the code in the first one."""

    def filled(row: re.Match[str]) -> str:
        if row[1] not in sentences:
            return row[0]
        sentence = re.sub(r"\{(\w+):workers\}", r"*\1* workers", sentences[row[1]])
        sentence = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", sentence)
        return f"| `{row[1]}` | {sentence} |"

    return re.sub(r"^\| `(\w+)` \|[^|\n]*\|", filled, text, flags=re.MULTILINE)


def reasons_page() -> str:
    """Return docs/reference/reasons.md with the sentences of the code; its other columns are written by hand."""
    title, scaling, migration = (ROOT / REASONS).read_text(encoding="utf-8").split("\n## ", 2)
    policies, *others = migration.split("\n## ")
    scaling = with_sentences(scaling, SENTENCES)
    policies = with_sentences(policies, {str(code): sentence for code, sentence in MIGRATION_SENTENCES.items()})
    return "\n## ".join((title, scaling, policies, *others))


def outputs() -> dict[Path, str]:
    """Return the content of each generated file by path."""
    kinds = {**MESSAGES, **STORED, **STEPS}
    schemas = {Path(f"schemas/{n}.v1.json"): json_schema(k, f"{n}:v1") for n, k in kinds.items()}
    for command, kind in OUTPUTS.items():
        name = command.replace(" ", "_")
        schemas[Path(f"schemas/output/{name}.v1.json")] = json_schema(kind, f"output:{name}:v1")
    return {
        **schemas,
        Path("schemas/config.json"): json_schema(file_schema(BUILT_IN), "config"),
        Path("schemas/asyncapi.yaml"): asyncapi(),
        Path("docs/reference/configuration.md"): reference(),
        Path("docs/reference/fleet-file.md"): fleet_reference(),
        REASONS: reasons_page(),
    }


def main() -> int:
    """Write the files, or check them; return 1 if one is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is out of date")
    parser.add_argument("--into", type=Path, default=ROOT, help="project folder (default: this one)")
    args = parser.parse_args()
    wanted = outputs()
    pages = (args.into / "docs/reference" / name for name in ("configuration.md", "fleet-file.md", REASONS.name))
    files = [*args.into.glob("schemas/**/*"), *pages]
    there = {path.relative_to(args.into): path.read_text(encoding="utf-8") for path in files if path.is_file()}
    stray = sorted(there.keys() - wanted.keys())
    stale = sorted(path for path, text in wanted.items() if there.get(path) != text)
    if args.check:
        for path in [*stale, *stray]:
            print(f"{path} is out of date: run `make schemas` and commit the result", file=sys.stderr)
        return 1 if stale or stray else 0
    for path in stale:
        (args.into / path).parent.mkdir(parents=True, exist_ok=True)
        (args.into / path).write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    for path in stray:
        (args.into / path).unlink()
        print(f"removed {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
