"""Messages on the bus, and keys and values in the store."""

from typing import Final

import msgspec

from loadline.core.vocabulary.decisions import Decision, PoolTarget
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import Histogram, TrafficSample, WorkerRecord, WorkerSample
from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.runtime.registry import RegistryTranslator
from loadline.wire import codec
from loadline.wire.codec import Codec, Rejected, WireEvent, decode_as, decode_decision
from loadline.wire.keys import Keys
from loadline.wire.messages import MESSAGES, DecisionApplied, DrainReport, LoadReport, TrafficReport
from loadline.wire.subjects import Subjects
from tests.fuzz.target import Target

SUBJECTS: Final = Subjects("loadline")
KEYS: Final = Keys("default")
MODEL, POOL, WORKER = "meta-llama/Llama-3.1-8B", "decode", "w-1"
LOAD: Final = SUBJECTS.load(MODEL, POOL, WORKER)
TRAFFIC: Final = SUBJECTS.traffic(MODEL, "fe-1")
APPLIED: Final = SUBJECTS.applied(MODEL)
DRAINED: Final = SUBJECTS.drained(MODEL, POOL, WORKER)
MIGRATION: Final = SUBJECTS.migration(MODEL, POOL, WORKER)

REPORTS: Final[dict[str, msgspec.Struct]] = {
    LOAD: LoadReport(
        MODEL,
        POOL,
        WORKER,
        7,
        [
            WorkerSample(sequence=1, timestamp_ms=2, kv_blocks_used=3, kv_blocks_total=9, waiting_requests=4),
            WorkerSample(sequence=2, timestamp_ms=3, rank=1, kv_usage_ratio=0.25, itl_ms=20.5, schedulable=False),
        ],
    ),
    TRAFFIC: TrafficReport(
        MODEL,
        "fe-1",
        7,
        TrafficSample(
            sequence=1,
            interval_ms=1000,
            arrivals=3,
            completed=2,
            ttft_met=2,
            isl_histogram=Histogram((1.0, 8.0), (1, 2, 0)),
        ),
    ),
    APPLIED: DecisionApplied("d-1", MODEL, 1, 2, "scaler", "accepted", {"decode": 3}),
    DRAINED: DrainReport(MODEL, POOL, WORKER, 7),
}
"""One report of each kind by its subject."""
_MIGRATED: Final = {
    "command_id": "c-1",
    "model": MODEL,
    "epoch": 3,
    "source": {"pool": POOL, "worker": WORKER, "incarnation": 7},
    "destination": {"pool": POOL, "worker": "w-2", "incarnation": 8},
    "trigger": "load",
    "phase": "copying",
    "requests": 2,
}
_ENDPOINT: Final = {"pool": "decode", "worker": "w", "incarnation": 1}
_OTHERS: Final[dict[str, object]] = {
    "agent_status": {"agent": "a", "leader": "a", "models": [{"model": "m", "pools": [{"pool": "p"}]}]},
    "scaling_decision": {
        "decision_id": "d",
        "model": "m",
        "epoch": 1,
        "sequence": 2,
        "created_at_ms": 3,
        "expires_at_ms": 4,
        "targets": [{"pool": "p", "role": "decode", "replicas": 3, "before": 2, "victims": ["w"]}],
        "reasons": ["kv_usage_high"],
        "ttl_ms": 5,
    },
    "drain_command": {"drain_id": "d", "model": "m", "pool": "p", "worker": "w", "role": "decode", "incarnation": 1},
    "migrate_command": {**_MIGRATED, "source": _ENDPOINT, "ttl_ms": 9, "order": "LCR", "value": 1.0, "rule": "TOKEN"},
    "migrate_reply": {"command_id": "c", "accepted": True, "requests": 2, "tokens": 900},
    "explain_request": {"decision_id": "", "model": "m", "earlier": True},
    "pause_command": {"model": "m", "by": "me"},
    "announce_request": {"models": ["m", "n"], "by": "s"},
    "drain_order": {"model": "m", "pool": "p", "worker": "w", "by": "me"},
    "operator_reply": {"accepted": False, "detail": "no"},
    "status_request": {"part": 1},
}
"""A message of each of the other kinds, or the beginning of one."""


def read_frame(data: bytes) -> None:
    """Decode the payload behind the first line as a frame on the subject that this names."""
    subject, _, payload = data.partition(b"\n")
    check_outcome(Codec(SUBJECTS, 262_144).decode(subject.decode("utf-8", "replace"), payload))


def read_message(data: bytes) -> None:
    """Decode a message of the kind that the first line names."""
    name, _, payload = data.partition(b"\n")
    kind = MESSAGES.get(name.decode("utf-8", "replace"))
    outcomes: list[object] = [decode_decision(payload)]
    outcomes += [decode_as(one, payload) for one in ([kind] if kind is not None else MESSAGES.values())]
    for outcome in outcomes:
        if isinstance(outcome, Rejected):
            check_refusal(outcome)
        elif isinstance(outcome, msgspec.Struct):
            codec.encode(outcome)


def read_record(data: bytes) -> None:
    """Take the value behind the first line as that of the key in it: new, changed and removed."""
    key, _, value = data.partition(b"\n")
    events: list[object] = []
    translator = RegistryTranslator(KEYS, "all", events.append, check_logged, shared=True)
    name = KEYS.prefix + key.decode("utf-8", "replace")
    entry = StoreEntry(name, value, mod_revision=3, create_revision=2, lease_id=1)
    translator.on_snapshot(StoreSnapshot([entry], 3))
    translator.on_changes([StoreChange(name, entry, 4), StoreChange(name, None, 5)])
    for event in events:
        msgspec.json.encode(event)


def check_outcome(outcome: WireEvent | Rejected) -> str:
    """Check that what a frame says can be journaled, and a refusal logged; return the reason, or ``event``."""
    if isinstance(outcome, Rejected):
        return check_refusal(outcome)
    codec.encode(outcome)
    return "event"


def check_logged(refused: Rejected) -> None:
    """Check a refusal whose reason does not matter."""
    check_refusal(refused)


def check_refusal(refused: Rejected) -> Rejection:
    """Check that a refusal is safe to log."""
    assert len(refused.detail) <= codec.DETAIL_CHARS_MAX
    assert len(refused.subject) <= codec.SUBJECT_CHARS_MAX
    assert refused.detail.isprintable()
    assert refused.subject.isprintable()
    return refused.reason


def _line(first: str, message: object) -> bytes:
    return first.encode() + b"\n" + msgspec.json.encode(message)


RECORD: Final = WorkerRecord("m", "p", "w", "decode", 1, address="http://h:8000", gpus=2)
_DECISION: Final = Decision("d", "m", 1, 2, 3, 4, (PoolTarget("p", "decode", 3, 2),), ("kv_usage_high",))
WIRE_TARGETS: Final = (
    Target("codec", read_frame, [*(_line(*one) for one in REPORTS.items()), _line(MIGRATION, _MIGRATED)]),
    Target("messages", read_message, [*(_line(*one) for one in _OTHERS.items()), _line("decision", _DECISION)]),
    Target(
        "records",
        read_record,
        [
            _line("workers/m/p/w", RECORD),
            _line("state/m", LearnedState(start_ups_ms={"p": [40_000]}, planner="queueing", data=b"{}")),
            _line("decisions/m", _DECISION),
            b"pause/m\nsomebody",
            b"leader/all\nagent-1",
            b"leader/all/epoch\n1700000000000",
            b"agents/a%2Fb\n{}",
        ],
    ),
)
