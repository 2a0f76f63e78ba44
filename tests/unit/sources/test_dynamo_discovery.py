"""Publishers in Dynamo's etcd: which entries name one, in either form of the record."""

from typing import Any

import msgspec
import pytest

from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.sources.dynamo_discovery import Publisher, Publishers

FLAT = {"type": "EventChannel", "namespace": "dynamo", "component": "backend", "instance_id": 7}
SCOPED = {
    "type": "EventChannel",
    "scope": {"kind": "Endpoint", "endpoint": {"namespace": "dynamo", "component": "backend", "name": "generate"}},
}
ZMQ = {"kind": "Zmq", "config": {"endpoint": "tcp://10.0.0.7:4001"}}
TOPIC = {"topic": "forward-pass-metrics"}
FOUND = Publisher("dynamo", "backend", "tcp://10.0.0.7:4001")


def read(value: object) -> set[Publisher]:
    found: list[set[Publisher]] = []
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    Publishers(found.append).read(StoreSnapshot([StoreEntry("k", data, 1, 1)], 1))
    return found[0]


@pytest.mark.parametrize("scope", [FLAT, SCOPED])
def test_both_forms_of_a_record_name_a_publisher(scope: dict[str, Any]) -> None:
    assert read({**scope, **TOPIC, "transport": ZMQ}) == {FOUND}


@pytest.mark.parametrize(
    "value",
    [
        {**FLAT, "topic": "kv-events", "transport": ZMQ},
        {**FLAT, **TOPIC, "transport": {"kind": "Nats", "config": {"subject_prefix": "namespace.dynamo"}}},
        {**FLAT, **TOPIC, "transport": {"kind": "Zmq", "config": {"endpoint": 7}}},
        {**FLAT, **TOPIC},
        b"\xff",
        b"[" * 100_000,
        b"",
    ],
)
def test_other_entries_name_none(value: object) -> None:
    assert read(value) == set()


def test_changes_add_and_remove_publishers() -> None:
    found: list[set[Publisher]] = []
    publishers = Publishers(found.append)
    entry = StoreEntry("k", msgspec.json.encode({**FLAT, **TOPIC, "transport": ZMQ}), 1, 1)
    publishers.follow([StoreChange("k", entry, 1)])
    publishers.follow([StoreChange("k", None, 2)])
    assert found == [{FOUND}, set()]
