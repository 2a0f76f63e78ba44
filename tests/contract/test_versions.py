"""Old and new versions decode each other's messages: each kept version against the code as it is.

``versions/0.1.json`` has the messages of 0.1, whose workers still answer drains and migrations by their name alone.
"""

import json
from functools import cache
from itertools import product
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.events import MigrationReported, WorkerDrained
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.codec import Codec, Rejected, decode_as
from loadline.wire.messages import MESSAGES
from loadline.wire.subjects import Subjects
from tests.contract.make_version import VERSIONS, schemas

NAMES = sorted(path.stem for path in VERSIONS.glob("*.json"))
KINDS: dict[str, type[msgspec.Struct]] = {
    **MESSAGES,
    "decision": Decision,
    "learned": LearnedState,
    "worker_record": WorkerRecord,
}
SUBJECTS = Subjects("loadline")
NUMBERS = {"number": 0.5, "integer": 1}
ENCODERS = {"json": msgspec.json.encode, "msgpack": msgspec.msgpack.encode}


@cache
def kept(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VERSIONS / f"{version}.json").read_text("utf-8"))
    return found


@cache
def present() -> dict[str, Any]:
    return schemas()


def message(schema: dict[str, Any], *, full: bool) -> Any:
    """Return a message of a schema, with its required fields only, or with all."""
    return value(schema, schema.get("$defs", {}), full=full)


def value(schema: dict[str, Any], definitions: dict[str, Any], *, full: bool) -> Any:  # noqa: PLR0911 - a line for each type
    if "$ref" in schema:
        return value(definitions[schema["$ref"].rpartition("/")[2]], definitions, full=full)
    if "anyOf" in schema:
        known = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return value(known[0], definitions, full=full)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return fields(schema, definitions, full=full)
        case "array":
            parts = schema.get("prefixItems")
            if parts is not None:
                return [value(one, definitions, full=full) for one in parts]
            count = max(schema.get("minItems", 0), int(full and bool(schema.get("items"))))
            return [value(schema["items"], definitions, full=full)] * count
        case "string":
            return text(schema)
        case "boolean":
            return True
        case "integer" | "number" as kind:
            return max(NUMBERS[kind], schema.get("minimum", 0))
    return {}  # of any type


def fields(schema: dict[str, Any], definitions: dict[str, Any], *, full: bool) -> dict[str, Any]:
    names = schema.get("properties", {})
    chosen = names if full else schema.get("required", ())
    found = {name: value(names[name], definitions, full=full) for name in chosen}
    others = schema.get("additionalProperties")
    if full and isinstance(others, dict):
        found["p"] = value(others, definitions, full=full)
    return found


def text(schema: dict[str, Any]) -> str:
    if schema.get("contentEncoding") == "base64":
        return "e30="
    if "://" in schema.get("pattern", ""):
        return "http://127.0.0.1:8000"
    return "x".ljust(schema.get("minLength", 1), "x")


def cases() -> list[Any]:
    found = product(NAMES, KINDS, (False, True))
    return [
        pytest.param(version, name, full, id=f"{version}-{name}-{'full' if full else 'least'}")
        for version, name, full in found
        if name in kept(version)
    ]


@pytest.mark.parametrize(("version", "name", "full"), cases())
def test_a_message_of_an_older_version_is_decoded(version: str, name: str, full: bool) -> None:  # noqa: FBT001
    schema = kept(version)[name]
    old = message(schema, full=full)
    Draft202012Validator(schema).validate(old)
    for form, encode in ENCODERS.items():
        if form == "msgpack" and name == "learned":  # bytes, which only agents write, and in JSON
            continue
        found = decode_as(KINDS[name], encode(old))
        assert not isinstance(found, Rejected), (form, found.detail)
        again = json.loads(msgspec.json.encode(found))
        assert lost(old, again) == [], "what an older version says reaches the newer one"


@pytest.mark.parametrize(("version", "name", "full"), cases())
def test_an_older_version_decodes_a_message_of_this_one(version: str, name: str, full: bool) -> None:  # noqa: FBT001
    new = message(present()[name], full=full)
    assert not isinstance(decode_as(KINDS[name], msgspec.json.encode(new)), Rejected)
    old = kept(version)[name]
    Draft202012Validator(opened(old) if name == "agent_status" else old).validate(new)


def opened(schema: Any) -> Any:
    """Return a schema whose enums have any text: agents may send new values in a status, as the protocol says."""
    if isinstance(schema, list):
        return [opened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: opened(one) for key, one in schema.items() if key != "enum"}


def lost(old: Any, new: Any, place: str = "") -> list[str]:
    """Return the places of values that differ; a field with its default value may be left out."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [one for key in old.keys() & new.keys() for one in lost(old[key], new[key], f"{place}.{key}")]
    if isinstance(old, list) and isinstance(new, list):
        return [
            one for number, pair in enumerate(zip(old, new, strict=True)) for one in lost(*pair, f"{place}[{number}]")
        ]
    return [] if old == new else [f"{place}: {old!r} is {new!r}"]


@pytest.mark.parametrize("version", NAMES)
def test_every_message_of_an_older_version_still_exists(version: str) -> None:
    assert kept(version).keys() <= KINDS.keys()


def test_the_subjects_of_0_1_are_read() -> None:
    codec = Codec(SUBJECTS, 262_144)
    for kind, name, event in (
        ("drained", "drain_report", WorkerDrained),
        ("migration", "migration_report", MigrationReported),
    ):
        old = message(kept("0.1")[name], full=False)
        found = codec.decode(SUBJECTS.by_name(kind, "x"), json.dumps(old).encode())
        assert isinstance(found, event)


def test_changes_that_break_are_found() -> None:
    """A field that becomes required, one that is removed, and a bound that grows."""
    new = message(present()["load_report"], full=False)
    old = json.loads(json.dumps(kept("0.1")["load_report"]))
    assert Draft202012Validator(old).is_valid(new)
    assert not Draft202012Validator({**old, "required": [*old["required"], "removed"]}).is_valid(new)
    old["properties"]["model"]["maxLength"] = 0
    assert not Draft202012Validator(old).is_valid(new)
    assert isinstance(decode_as(KINDS["load_report"], b'{"model":"x"}'), Rejected)
